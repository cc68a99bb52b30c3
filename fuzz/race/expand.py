"""A plan as commands: phase after phase, with the addresses that each reads and writes, and what each does to the
mirror. What a single stream cannot show as a race (an order that is there, but wrong) is judged on the way.

Two views of a row. Its *accesses* are the worst case that the plan allows: all of a window, a lane that the host does
not know to have ended. Its *effect* on the mirror is what its result says, so that later reads are judged exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from k3mem.fuzz.race import space as at
from k3mem.fuzz.race.mirror import NOBODY, NOWHERE, POISON, ZERO, Mirror, Origin, Tenant
from k3mem.fuzz.race.order import Command
from k3mem.fuzz.race.report import Race
from k3mem.fuzz.race.rows import RowWork
from k3mem.fuzz.race.space import KIND, Space, ranges
from k3mem.plan import PAGE, STATE, Plan, Result, Row
from k3mem.types import Int32, Int64

FORWARD = "forward"
Tell = Callable[[Race], None]


class Expander:
    """Expands plans in the order of their launch. Yields commands; tells races; keeps the mirror."""

    def __init__(self, space: Space, tell: Tell) -> None:
        self.space, self.tell = space, tell
        self.mirror = Mirror(space)
        self.need_resync = False

    def expand(self, plan: Plan, result: Result | None) -> Iterator[Command]:
        """The commands of a plan that ran, or, without a result, that was launched and perhaps ran."""
        step = plan.step
        if self.need_resync and not plan.resync:
            self.race(step, "no_resync", "a failed step", f"step {step}: tables", "the device's tables",
                      "a plan with resync=True before it")
        self.need_resync = False
        yield from self._moves(plan)
        yield from self._tables(plan)
        yield from self._zeroing(plan)
        yield from self._copies(plan)
        yield from self._restores(plan)
        if plan.rows:
            yield from RowWork(self, plan, result).commands()
        yield Command(FORWARD, f"step {step}: end", signals=((FORWARD, step + plan.repeat - 1),), step=step)

    def race(self, step: int, kind: str, first: object, second: object, place: str, edge: str) -> None:
        self.tell(Race(kind, step, str(first), str(second), place, edge))

    # -- moves

    def _moves(self, plan: Plan) -> Iterator[Command]:
        """Batches in order. A move uses up its source, so it counts as written."""
        mirror, space, step = self.mirror, self.space, plan.step
        moves = sorted(plan.moves.tolist(), key=lambda move: move[0])
        for batch, kind, source, destination in moves:
            if not (space.holds(kind, source) and space.holds(kind, destination)):
                self.race(step, "stale_entry", "the arena's layout", f"step {step}: moves: kind {kind}, {source} -> "
                          f"{destination}", f"a place of kind {kind}", "a place inside the arena")
                continue
            used = [space.of(kind, source), space.of(kind, destination)]
            name = f"step {step}: moves: batch {batch}: {KIND[kind]} place {source} -> {destination}"
            if max(used[0][0], used[1][0]) < min(used[0][1], used[1][1]):
                self.race(step, "moves_overlap", name, name, space.describe(*used[0]),
                          "a source apart from its destination")
                used.pop()
            yield Command(FORWARD, name, writes=ranges(used), phase=(step, "moves", batch), step=step)
        for _, kind, source, destination in moves:
            if not (space.holds(kind, source) and space.holds(kind, destination)):
                continue
            if mirror.owner[kind][source] == NOBODY:
                origin = mirror.origin[kind].get(source)
                self.race(step, "moved_nobody", origin or "nobody", f"step {step}: moves: {KIND[kind]} place {source} "
                          f"-> {destination}", space.describe(*space.of(kind, source)),
                          "an id that owned the place before")
            if source != destination:
                mirror.move(kind, source, destination)
                mirror.origin[kind][destination] = Origin(step, "moves", f"from place {source}")

    # -- tables

    def _tables(self, plan: Plan) -> Iterator[Command]:
        step, mirror = plan.step, self.mirror
        for kind, table, base in ((PAGE, plan.page_table, at.PAGE_TABLE), (STATE, plan.state_table, at.STATE_TABLE)):
            if len(table):
                self._twice(plan, f"{KIND[kind]} table: id", table[:, 0], table[:, 1], base)
                real = table[table[:, 0] > 0]
                self._shared_places(plan, kind, real)
                low = base + real[:, 0].astype(np.int64)
                name = f"step {step}: {KIND[kind]} table"
                yield Command(FORWARD, name, writes=np.stack([low, low + 1], 1), step=step)
        held = {lane: tenant.generation for lane, tenant in mirror.lanes.items()} if not plan.resync else {}
        for seat in plan.seats:
            name = f"step {step}: seats: lane {seat.lane} generation {seat.generation}"
            inside = 0 <= seat.lane < self.space.lanes
            if not inside or held.get(seat.lane) == seat.generation:
                self.race(step, "stale_lane", "the lane's last tenant", name, f"registers of lane {seat.lane}",
                          "a generation of the tenant's own" if inside else f"a lane below {self.space.lanes}")
            if not inside:
                continue
            lane = [(at.LANES + seat.lane, at.LANES + seat.lane + 1),
                    (at.LISTS + seat.lane * at.LIST, at.LISTS + (seat.lane + 1) * at.LIST)]
            yield Command(FORWARD, name, writes=ranges(lane), phase=(step, "seats"), step=step)
        mirror.update(plan)
        if len(plan.lane_pages):
            yield self._page_lists(plan)

    def _page_lists(self, plan: Plan) -> Command:
        step, lanes = plan.step, plan.lane_pages.astype(np.int64)
        known = np.isin(lanes[:, 0], list(self.mirror.lanes))
        known &= (lanes[:, 1] >= 0) & (lanes[:, 1] < self.space.page_ids)
        for lane, index, _ in lanes[~known].tolist():
            self.race(step, "stale_lane", "nobody's seat", f"step {step}: page lists: lane {lane}",
                      f"entry {index} of the page list of lane {lane}", "a seat, and room in the list")
        lanes = lanes[known]
        low = lanes[:, 0] * at.LIST + lanes[:, 1]
        self._twice(plan, "page list entry", low, lanes[:, 2], at.LISTS)
        return Command(FORWARD, f"step {step}: page lists", writes=np.stack([low, low + 1], 1) + at.LISTS, step=step)

    def _twice(self, plan: Plan, what: str, keys: Int32 | Int64, values: Int32 | Int64,
               base: int) -> None:
        """Two entries of one phase for one cell."""
        if len(np.unique(keys)) == len(keys):
            return
        first: dict[int, int] = {}
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            if key in first:
                kind = "told_twice" if first[key] == value else "tables_conflict"
                self.race(plan.step, kind, f"step {plan.step}: {what} -> {first[key]}", f"step {plan.step}: {what} -> "
                          f"{value}", self.space.describe(base + key, base + key + 1), "an order inside the phase")
            first[key] = value

    def _shared_places(self, plan: Plan, kind: int, table: Int32) -> None:
        """Two ids of one phase on one place."""
        if len(np.unique(table[:, 1])) == len(table):
            return
        first: dict[int, int] = {}
        for entry, place in table.tolist():
            other = first.setdefault(place, entry)
            if other != entry and self.space.holds(kind, place):
                self.race(plan.step, "tables_conflict", f"step {plan.step}: {KIND[kind]} table: id {other}",
                          f"step {plan.step}: {KIND[kind]} table: id {entry}",
                          self.space.describe(*self.space.of(kind, place)), "a place of its own for each id")

    # -- zeroing, copies, restores

    def find(self, step: int, phase: str, kind: int, entry: int, writes: bool, who: str) -> int:
        """Place of an id in use, NOWHERE if it has none. Tells ids that own no place."""
        mirror = self.mirror
        place = mirror.place(kind, entry)
        if place != NOWHERE and mirror.owner[kind][place] == entry:
            return place
        owner = int(mirror.owner[kind][place]) if place != NOWHERE else NOBODY
        taken = f"the hand-over of the place to {KIND[kind]} id {owner}" if owner > 0 else "no owner of the place"
        self.race(step, "foreign_write" if writes else "stale_entry",
                  "no table entry" if place == NOWHERE else taken, f"step {step}: {phase}: {who}",
                  f"{KIND[kind]} id {entry}" + (f" at place {place}" if place != NOWHERE else ""),
                  "a table update, or a free after the last use")
        return place

    def missing(self, step: int, phase: str, who: str, kind: int, place: int, poison: bool, what: str) -> None:
        """A read of bytes that hold poison, or zeros in place of what was written."""
        origin = self.mirror.origin[kind].get(place)
        self.race(step, "use_before_write" if poison else "lost_write", origin or "nobody",
                  f"step {step}: {phase}: {who}", f"{what} of {KIND[kind]} place {place}",
                  "a write since the place changed hands" if poison else "the write after the zeroing")

    def _zeroing(self, plan: Plan) -> Iterator[Command]:
        step = plan.step
        for kind, entries in ((PAGE, plan.zero_pages), (STATE, plan.zero_states)):
            for entry in entries.tolist():
                who = f"{KIND[kind]} id {entry}"
                place = self.find(step, "zeroing", kind, entry, True, who)
                if place == NOWHERE:
                    continue
                self.mirror.zero(kind, place, Origin(step, "zeroing", who))
                yield Command(FORWARD, f"step {step}: zeroing: {who}", writes=ranges([self.space.of(kind, place)]),
                              phase=(step, "zeroing"), step=step)

    def _copies(self, plan: Plan) -> Iterator[Command]:
        step, mirror, space = plan.step, self.mirror, self.space
        for source, target, count in plan.page_copies.tolist():
            who = f"page id {source} -> {target}, {count} rows"
            count = max(0, min(count, space.span))
            origin = self.find(step, "page copies", PAGE, source, False, who)
            place = self.find(step, "page copies", PAGE, target, True, who)
            if NOWHERE in (origin, place):
                continue
            if mirror.filled[origin] < count:
                rows = mirror.labels[origin, int(mirror.filled[origin]) : count]
                self.missing(step, "page copies", who, PAGE, origin, bool((rows == POISON).any()),
                             f"rows {int(mirror.filled[origin])}..{count - 1}")
            yield Command(FORWARD, f"step {step}: page copies: {who}", ranges([space.rows(origin, 0, count)]),
                          ranges([space.of(PAGE, place)]), phase=(step, "page copies"), step=step)
            mirror.copy_page(origin, place, count, Origin(step, "page copies", who))

    def _restores(self, plan: Plan) -> Iterator[Command]:
        step, mirror, space = plan.step, self.mirror, self.space
        later = set(plan.snapshots[:, 2].tolist()) if len(plan.restores) else set()
        for source, target in plan.restores.tolist():
            who = f"state id {source} -> {target}"
            origin = self.find(step, "restores", STATE, source, False, who)
            place = self.find(step, "restores", STATE, target, True, who)
            if source in later:
                self.race(step, "restored_before_write", f"step {step}: snapshots: target {source}",
                          f"step {step}: restores: {who}", f"state id {source}", "a later plan for the restore")
            if NOWHERE in (origin, place):
                continue
            label = int(mirror.state[origin])
            if label in (POISON, ZERO):
                self.missing(step, "restores", who, STATE, origin, label == POISON, "all")
            yield Command(FORWARD, f"step {step}: restores: {who}", ranges([space.of(STATE, origin)]),
                          ranges([space.of(STATE, place)]), phase=(step, "restores"), step=step)
            mirror.write_state(place, label, Origin(step, "restores", who))

    # -- failure

    def fail(self, plan: Plan, effect_unknown: bool) -> None:
        """A launched plan that failed: its tables may have arrived; all it may have written is poison."""
        self.need_resync = True
        if not effect_unknown:
            return
        mirror, space = self.mirror, self.space
        moved = [(kind, p) for _, kind, s, d in plan.moves.tolist() for p in (s, d) if space.holds(kind, p)]
        for _, kind, source, destination in sorted(plan.moves.tolist(), key=lambda move: move[0]):
            if space.holds(kind, source) and space.holds(kind, destination) and source != destination:
                mirror.move(kind, source, destination)
        mirror.update(plan)
        entries = [(PAGE, page) for page in plan.zero_pages.tolist() + plan.page_copies[:, 1].tolist()]
        entries += [(STATE, state) for state in plan.zero_states.tolist() + plan.restores[:, 1].tolist()]
        entries += [(STATE, state) for state in plan.snapshots[:, 2].tolist()]
        for i, lane in enumerate(plan.lane.tolist()):
            tenant = mirror.lanes.get(lane)
            if tenant is not None:
                entries.append((STATE, tenant.state))
                self._damage_rows(plan, i, tenant)
        for kind, place in [*moved, *((kind, mirror.place(kind, entry)) for kind, entry in entries)]:
            if place != NOWHERE:
                mirror.poison(kind, place)

    def _damage_rows(self, plan: Plan, i: int, tenant: Tenant) -> None:
        """Rows that row i may have written, from where its lane may have stood."""
        span, start = self.space.span, int(plan.start[i])
        low = start if plan.kind[i] == Row.PREFILL else min(start, tenant.depth)
        high = start + int(plan.length[i]) * plan.repeat
        for index in range(low // span, min(-(-high // span), tenant.listed)):
            place = self.mirror.place(PAGE, int(tenant.pages[index]))
            if place != NOWHERE:
                self.mirror.poison_rows(place, max(0, low - index * span), min(span, high - index * span))
