"""What the device keeps between plans: tables from ids to places, and lanes."""

from __future__ import annotations

import numpy as np

from k3mem.executor import Layout
from k3mem.executors.torch_ref.sampling import Sampler
from k3mem.plan import PAGE, STATE, Done, Plan, Seat
from k3mem.types import Float64, Int32, Int64

NOWHERE = -1


class Lane:
    """A lane's tenant; exact after every step."""

    __slots__ = ("depth", "done", "generation", "last_token", "limit", "pages", "prompt", "proposal", "sampler",
                 "state")

    def __init__(self, seat: Seat) -> None:
        self.generation, self.state, self.depth = seat.generation, seat.state, seat.depth
        self.prompt, self.limit, self.last_token, self.done = seat.prompt, seat.limit, seat.last_token, seat.done
        self.sampler = Sampler(seat.sampling)
        self.pages: Int32 = np.full(16, NOWHERE, np.int32)
        """Page ids; at least as long as the list."""
        self.proposal: tuple[int, Int32, Float64] | None = None
        """(absorbed depth, tokens, confidences) of the block drafter's newest word."""

    def extend(self, index: int, page: int) -> None:
        """Entry `index` of the page list. O(1), amortised."""
        if index >= len(self.pages):
            more = np.full(max(len(self.pages), index + 1 - len(self.pages)), NOWHERE, np.int32)
            self.pages = np.concatenate((self.pages, more))
        self.pages[index] = page

    def ends(self, token: int, committed: int) -> int:
        """`Done` after this token, `committed` tokens in all. A stop id comes first."""
        if token in self.sampler.stops:
            return int(Done.STOP)
        return int(Done.LENGTH) if committed >= self.limit else int(Done.NO)


class Tables:
    """Id tables and lanes."""

    def __init__(self, layout: Layout) -> None:
        self.places: tuple[Int64, Int64] = (np.full(layout.page_ids, NOWHERE, np.int64),
                                            np.full(layout.state_ids, NOWHERE, np.int64))
        """[kind][id] place."""
        self.lanes: list[Lane | None] = [None] * layout.lanes
        self.step = 0
        """Number of the plan that is being carried out, for messages."""
        self.clear()

    def clear(self) -> None:
        """Forget all but the sinks."""
        for places in self.places:
            places[:] = NOWHERE
            places[0] = 0
        self.lanes = [None] * len(self.lanes)

    def update(self, plan: Plan) -> None:
        """The table phase: tables, then seats, then page lists. O(what changed)."""
        self.step = plan.step
        if plan.resync:
            self.clear()
        for kind, table in ((PAGE, plan.page_table), (STATE, plan.state_table)):
            if len(table):
                self.places[kind][table[:, 0]] = table[:, 1]
        for seat in plan.seats:
            self.lanes[seat.lane] = Lane(seat)
        for number, index, page in plan.lane_pages.tolist():
            self.lane(number).extend(index, page)

    def lane(self, number: int, generation: int | None = None) -> Lane:
        """A lane's tenant. Raises RuntimeError where the plan speaks of another one."""
        lane = self.lanes[number]
        if lane is None or generation not in (None, lane.generation):
            seated = "nobody" if lane is None else f"generation {lane.generation}"
            raise RuntimeError(f"step {self.step}: lane {number}: the plan speaks of generation {generation}, seated "
                               f"is {seated}")
        return lane

    def place(self, kind: int, entry: int) -> int:
        """Where an id lies. Raises RuntimeError where no table says so."""
        place = int(self.places[kind][entry])
        if entry <= 0 or place == NOWHERE:
            raise RuntimeError(f"step {self.step}: {('page', 'state')[kind]} id {entry} is "
                               f"{'no entry but a sink' if entry <= 0 else 'in no table'}")
        return place

    def page_places(self, number: int, lane: Lane, count: int) -> Int64:
        """[count] places of a lane's first pages. Raises RuntimeError where one is missing."""
        ids = lane.pages[:count]
        places: Int64 = self.places[PAGE][ids]
        if len(ids) < count or (ids <= 0).any() or (places == NOWHERE).any():
            raise RuntimeError(f"step {self.step}: lane {number} needs {count} pages; its list or the page table lacks "
                               "one of them")
        return places
