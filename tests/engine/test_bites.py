"""The mock bites in a running world: whatever single entry of a launched plan is left out, something shows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest

from k3mem.errors import K3MemError
from k3mem.plan import PAGE, Plan, Result, Row
from k3mem.sched.core import Core
from k3mem.sched.job import Seated
from k3mem.types import NodeId
from tests.engine.pairwise import Cell
from tests.engine.test_matrix import AXES, PLAIN, world
from tests.plans import omit

PHASES = ("moves", "page_table", "state_table", "lane_pages", "zero_pages", "zero_states", "page_copies", "restores",
          "snapshots", "seats")
FULL = os.environ.get("K3MEM_FULL") == "1"
FIRST_STEP = (3, 60)
"""The plan that is spoilt is the first after a step of this range that has an entry of the phase."""


@dataclass
class Sabotage:
    """Leaves one entry of one phase out of one plan, once, and lets its snapshot seem written."""

    phase: str
    first: int
    rng: Random
    plan: Plan | None = None
    index: int = -1
    result: Result | None = None
    moved: tuple[int, int, Seated | None] | None = None
    """(kind, id, the seat whose page it is) of an omitted move."""
    settled: bool = False
    unneeded: bool = False
    told: dict[str, dict[int, int]] = field(default_factory=lambda: {"page_table": {}, "state_table": {}})
    """What the device's tables hold before the spoilt plan."""

    def __call__(self, plan: Plan) -> Plan:
        entries = len(getattr(plan, self.phase))
        if self.plan is not None or plan.step < self.first or not entries:
            if self.plan is None:
                self._tell(plan)
            return plan
        self.plan, self.index = plan, self.rng.randrange(entries)
        return omit(plan, self.phase, self.index)

    def _tell(self, plan: Plan) -> None:
        for name, table in self.told.items():
            if plan.resync:
                table.clear()
            table |= dict(getattr(plan, name).tolist())

    def mend(self, result: Result) -> Result:
        """The result that an executor would give which has the whole plan and drops the entry silently."""
        if self.plan is None or result.step != self.plan.step:
            return result
        self.result = result
        if self.phase != "snapshots":
            return result
        row, depth, _ = self.plan.snapshots[self.index]
        written = self.plan.kind[row] == Row.PREFILL or depth <= self.plan.start[row] + result.accepted[row]
        return replace(result, written=np.insert(result.written, self.index, written))

    @property
    def lanes(self) -> set[int]:
        """Lanes that use the entry in its own plan."""
        assert self.plan is not None
        plan, entry = self.plan, getattr(self.plan, self.phase)[self.index]
        if self.phase == "lane_pages":
            return {int(entry[0])}
        if self.phase == "snapshots":
            return {int(plan.lane[entry[0]])}
        if self.phase == "zero_pages":
            return {int(lane) for lane, _, page in plan.lane_pages if page == entry}
        return set()

    @property
    def matters(self) -> bool:
        """False for an id handed out again at the place where the device has it already, for a moved page that nobody
        needed any more, and for what only a row uses that turned out to do nothing, since its lane had ended."""
        if self.plan is None or self.unneeded:
            return False
        if self.phase in self.told:
            entry, place = getattr(self.plan, self.phase)[self.index].tolist()
            return self.told[self.phase].get(entry) != place or self.plan.resync
        users, result = self.lanes, self.result
        if not users or result is None:
            return True
        idle = {int(lane) for lane, n, sample in zip(result.lane, result.accepted, self.plan.sample, strict=True)
                if sample and not n}
        return not users <= idle

    def watch(self, core: Core) -> None:
        """After each step. A page that its lane had at the move is not needed if the lane has given it back (as a
        duplicate of the tree's) when the plan has committed, or if it holds rejected drafts only."""
        if self.plan is None or self.phase != "moves":
            return
        if self.moved is None:
            _, kind, _, place = self.plan.moves[self.index].tolist()
            page = int(core.cache.arena.ids_at(kind, [place])[0])
            holder = next((s for s in core.lanes.taken() if page in s.pages[s.owned : s.page_count]), None)
            self.moved = (kind, page, holder)
        kind, page, holder = self.moved
        if kind != PAGE or holder is None or self.settled or any(f.plan.step <= self.plan.step for f in core.flights):
            return
        self.settled = True
        index = np.flatnonzero(holder.pages[: holder.page_count] == page)
        kept = any(page in core.cache.tree.pages(NodeId(int(node))) for node in core.cache.tree.walk().node)
        seated = core.lanes.seats[holder.lane] is holder and len(index) > 0
        rejected = len(index) > 0 and holder.job.count - 1 <= int(index[0]) * core.span
        self.unneeded = rejected or not (kept or seated)


@dataclass
class Trial:
    sabotage: Sabotage
    cell: Cell
    seed: int
    shown: list[str] = field(default_factory=list)


def trial(seed: int, requests: int = 24) -> Trial:
    """One world, one omission; ends when something shows."""
    rng = Random(seed)
    cell: Cell = PLAIN | {axis: rng.choice(values) for axis, values in AXES.items()}
    cell["split"], cell["interval"] = rng.random() < 0.3, rng.choice([None, 32])
    sabotage = Sabotage(rng.choice(PHASES), rng.randint(*FIRST_STEP), rng)
    one = Trial(sabotage, cell, seed)
    w = world(cell, seed, requests, mangle=sabotage, audit_every=1 << 30, check_every=1 << 30)
    collect = w.executor.collect
    w.executor.collect = lambda ticket: sabotage.mend(collect(ticket))  # type: ignore[method-assign]
    launch = w.engine.launch

    def launch_and_look(plan: Plan) -> Any:
        flight = launch(plan)
        if sabotage.plan is not None:
            w.audit_every = 1
            sabotage.watch(w.engine.scheduler.core)
            w.audit()  # before the commit gives back what the step did not need after all
        return flight

    w.engine.launch = launch_and_look  # type: ignore[method-assign]
    try:
        while (w.made < w.requests or w.engine.has_work) and not w.failures:
            w.act()
            w.one_step()
            sabotage.watch(w.engine.scheduler.core)
        if not w.failures:
            w.settle()
    except K3MemError as error:
        w.failures.append(repr(error))
    one.shown = w.failures
    return one


def trials(count: int, seed: int) -> list[Trial]:
    """The first `count` trials, from `seed` on, in which something that matters was left out."""
    out: list[Trial] = []
    while len(out) < count:
        one = trial(seed)
        if one.sabotage.plan is None:
            assert not one.shown, (one.seed, one.shown[:3])
        elif one.shown or one.sabotage.matters:
            out.append(one)
        seed += 1
    return out


@pytest.mark.parametrize(("count", "seed"), [
    (150, 0),
    pytest.param(1000, 10_000, marks=pytest.mark.skipif(not FULL, reason="takes minutes: set K3MEM_FULL=1")),
])
def test_nothing_can_be_left_out_unnoticed(count: int, seed: int) -> None:
    made = trials(count, seed)
    escaped = [(one.seed, one.sabotage.phase) for one in made if not one.shown]
    assert len(escaped) <= count // 100, escaped
    assert {one.sabotage.phase for one in made} == set(PHASES)


@pytest.mark.parametrize("seed", range(3))
def test_a_world_without_an_omission_shows_nothing(seed: int) -> None:
    cell = PLAIN | {axis: values[seed % len(values)] for axis, values in AXES.items()}
    assert not world(cell, seed, 24, audit_every=1).run().failures
