"""What the device keeps between plans: tables from ids to places, and lanes."""

from __future__ import annotations

from collections.abc import Iterable

from k3mem.executor import Layout
from k3mem.executors.mock import model
from k3mem.executors.mock.memory import NOBODY, Memory
from k3mem.plan import PAGE, Done, Plan, Sampling, Seat

NOWHERE = -1
KIND = ("page", "state")
MAX_LIST = 1 << 24
"""Longest page list that is believed."""


class LaneState:
    """A lane's tenant as the device sees it; exact after every step."""

    __slots__ = ("cache_context", "cache_epoch", "cache_label", "cache_pages", "depth", "done", "draw", "generation",
                 "key", "last_token", "limit", "name", "pages", "prompt", "sampling", "script", "seed", "state")

    def __init__(self, seat: Seat) -> None:
        self.generation = seat.generation
        self.key = (seat.lane, seat.generation)
        self.name = f"lane {seat.lane}"
        self.seed = model.seed_of(seat.scope)
        self.state = seat.state
        self.depth = max(0, seat.depth)
        """Absorbed depth."""
        self.prompt, self.limit = seat.prompt, seat.limit
        self.last_token = seat.last_token
        self.done = int(Done(seat.done))
        self.sampling: Sampling = seat.sampling
        self.draw = model.draw_of(seat.sampling)
        self.script = model.script_of(seat.sampling)
        self.pages: list[int] = []
        """Page ids; -1 where no entry arrived."""
        self.cache_epoch = -1
        """Context digest of the first `cache_pages` pages, valid while the memory's epoch is this."""
        self.cache_pages = 0
        self.cache_context: list[int] = []
        self.cache_label = 0

    def token(self, output: int, position: int, vocab_size: int) -> int:
        """The token sampled for `position`."""
        offset = position - self.prompt
        if 0 <= offset < len(self.script):
            return self.script[offset]
        return model.next_token(output, self.draw, offset, vocab_size)


class Tables:
    """Id tables and lanes, and the check that an id in use owns the place it maps to."""

    def __init__(self, layout: Layout, memory: Memory) -> None:
        self.memory, self.log = memory, memory.log
        self.lane_count = layout.lanes
        self.owners = (memory.page_owner, memory.state_owner)
        self.places = ([NOWHERE] * layout.page_ids, [NOWHERE] * layout.state_ids)
        """[kind][id] place."""
        self.lanes: list[LaneState | None] = [None] * layout.lanes
        self.handed_out: list[int] = []
        """Page ids whose place changed hands in the running plan."""
        self._map_sinks()

    def _map_sinks(self) -> None:
        for places, owner in zip(self.places, self.owners, strict=True):
            places[0] = owner[0] = 0

    def find(self, kind: int, entry: int, what: str) -> int:
        """The place of an id in use, NOWHERE if it has none. Reports sinks, unknown and stale ids. O(1)."""
        places = self.places[kind]
        if not 0 < entry < len(places):
            self.log.report(f"{what} names {KIND[kind]} id {entry}, which is "
                            f"{'the sink' if entry == 0 else 'out of range'}")
            return 0 if entry == 0 else NOWHERE
        place = places[entry]
        if place == NOWHERE:
            self.log.report(f"{what} names {KIND[kind]} id {entry}, which has no table entry")
        elif self.owners[kind][place] != entry:
            self.log.report(f"{what} names {KIND[kind]} id {entry} at place {place}, which is owned by "
                            f"{self.owners[kind][place]}")
        return place

    def update(self, plan: Plan) -> None:
        """The table phase of a plan: tables, then seats, then page lists."""
        self.handed_out = []
        if plan.resync:
            self.forget()
        self._map(0, plan.page_table.tolist(), plan.resync)
        self._map(1, plan.state_table.tolist(), plan.resync)
        for seat in plan.seats:
            self.seat(seat)
        for lane, index, page in plan.lane_pages.tolist():
            self.extend(lane, index, page)

    def forget(self) -> None:
        """Before a resync: no lane, no table entry. Owners stay, to tell who keeps his place."""
        self.lanes = [None] * self.lane_count
        for places in self.places:
            places[:] = [NOWHERE] * len(places)
        self._map_sinks()

    def _map(self, kind: int, entries: Iterable[list[int]], resync: bool) -> None:
        places, owner, memory = self.places[kind], self.owners[kind], self.memory
        seen: dict[int, int] = {}
        for entry, place in entries:
            if entry == 0 and place == 0:
                continue
            if not (0 < entry < len(places) and memory.holds(kind, place)):
                self.log.report(f"maps {KIND[kind]} id {entry} to place {place}: out of range, or the sink's id")
                continue
            if self._is_sink(kind, place):
                self.log.report(f"maps {KIND[kind]} id {entry} to place {place}, where a sink lies")
            if seen.setdefault(place, entry) != entry:
                self.log.report(f"maps {KIND[kind]} ids {seen[place]} and {entry} to place {place}")
            old = places[entry]
            if old not in (NOWHERE, place):
                if kind == PAGE:
                    memory.change(old)
                if owner[old] == entry:
                    owner[old] = NOBODY
            places[entry] = place
            if owner[place] != entry:
                self._hand_over(kind, place, entry)
        if resync:
            for place, holder in enumerate(owner):
                if holder > 0 and seen.get(place) != holder:
                    owner[place] = NOBODY

    def _hand_over(self, kind: int, place: int, entry: int) -> None:
        """A place changes hands: nobody may read what its last tenant left."""
        self.owners[kind][place] = entry
        if kind == PAGE:
            self.memory.poison_page(place)
            self.handed_out.append(entry)
        else:
            self.memory.poison_state(place)

    def _is_sink(self, kind: int, place: int) -> bool:
        low, high = self.memory.bytes_of(kind, place)
        return low < self.memory.page_bytes or high > self.memory.top - self.memory.state_bytes

    def seat(self, seat: Seat) -> None:
        if not 0 <= seat.lane < self.lane_count:
            self.log.report(f"seats lane {seat.lane}, which is out of range")
            return
        old = self.lanes[seat.lane]
        if old is not None and old.generation == seat.generation:
            self.log.report(f"seats lane {seat.lane} with the generation {seat.generation} of its last tenant")
        if seat.depth < 0 or seat.limit < seat.depth:
            self.log.report(f"seats lane {seat.lane} at depth {seat.depth}, outside 0 .. its limit {seat.limit}")
        self.lanes[seat.lane] = LaneState(seat)

    def extend(self, lane: int, index: int, page: int) -> None:
        """Entry `index` of a lane's page list."""
        tenant = self.lanes[lane] if 0 <= lane < self.lane_count else None
        if tenant is None:
            self.log.report(f"extends the page list of lane {lane}, which has no seat")
            return
        if not 0 <= index < MAX_LIST:
            self.log.report(f"names entry {index} of lane {lane}'s page list")
            return
        pages = tenant.pages
        pages.extend([-1] * (index + 1 - len(pages)))
        pages[index] = page
        tenant.cache_epoch = -1

    def tenant(self, lane: int, generation: int) -> LaneState | None:
        """The tenant that a row names, or None, which is reported."""
        tenant = self.lanes[lane] if 0 <= lane < self.lane_count else None
        if tenant is None:
            self.log.report(f"row for lane {lane}, which has no seat")
        elif tenant.generation != generation:
            self.log.report(f"row for lane {lane} generation {generation}, whose tenant is {tenant.generation}")
            return None
        return tenant
