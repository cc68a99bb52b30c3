"""Root causes of known faults, put back into our own functions. Each is a context manager; nothing stays behind.

They change what the scheduler or the mock device does from the moment of entry, so a random world can run under them
as well as a scenario can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from k3mem import engine
from k3mem.executors.mock import model
from k3mem.executors.mock.device import Device, Run
from k3mem.fuzz.patching import Plant, all_of, patched, plans
from k3mem.plan import STATE, Plan, Result, Row
from k3mem.pool import Arena, Fit
from k3mem.radix import Kind, Match
from k3mem.sched import admit, anchors, close, commit, decode, launch, prefill, room, scheduler
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import Seated
from k3mem.sched.lanes import Needs, Rows
from k3mem.types import Int32, NodeId, StateId

# -- snapshots and donation

def snapshot_is_a_reference() -> Plant:
    """A prefill snapshot is the working state itself, not a copy of it."""

    def make(old: Any) -> Any:
        def add_targets(core: Core, b: Builder) -> None:
            old(core, b)
            for row in b.prefill:
                row.targets = [(depth, row.seat.state, kind) for depth, _, kind in row.targets]
        return add_targets

    return patched(prefill, "add_targets", make)


def donated_and_freed() -> Plant:
    """The state that a request gives to the tree goes back to the free list as well: saved, but not held."""

    def make(old: Any) -> Any:
        def publish_last(core: Core, seat: Seated, kind: Kind) -> None:
            state = seat.state
            old(core, seat, kind)
            seat.state = state
        return publish_last

    return patched(close, "_publish_last", make)


def published_when_planned() -> Plant:
    """Checkpoints of a chunk are visible once it is planned; nothing takes them back."""

    def make(old: Any) -> Any:
        def plan(self: scheduler.Scheduler) -> Plan | None:
            made = old(self)
            if self.core.open is not None:
                launch._publish(self.core, self.core.open, self.core.open.step)
                for row in self.core.open.prefill:
                    row.targets = []
                self.core.open.journal.clear()
            return made  # type: ignore[no-any-return]
        return plan

    return patched(scheduler.Scheduler, "plan", make)


def capture_ignored() -> Plant:
    """Targets are named at every anchor, whatever depths the executor can capture."""

    def make(old: Any) -> Any:
        def inside(core: Core, seat: Seated, start: int, end: int) -> list[tuple[int, Kind]]:
            return sorted((depth, kind) for depth, kind in seat.anchors.items() if start < depth <= end)
        return inside

    return all_of(patched(anchors, "inside", make),
                  patched(anchors, "cut", lambda old: lambda core, seat, start, end: end))


def interior_never_filled(admitted: bool = False) -> Plant:
    """The device exposes a row's final state only, and says that it wrote every target; or admits that it did not."""

    def make(old: Any) -> Any:
        def snapshot(self: Device, run: Run, target: int, number: int, *state: Any) -> None:
            row, depth, _ = run.plan.snapshots[number].tolist()
            if run.kind[row] != Row.PREFILL or depth == run.start[row] + run.length[row]:
                old(self, run, target, number, *state)
            elif not admitted:
                run.written[number] = True
        return snapshot

    return patched(Device, "_snapshot", make)


# -- the arena

def only_states_are_evicted() -> Plant:
    """Where a state is short of bytes, only cached states go; KV that lies on the bytes stays."""

    def make(old: Any) -> Any:
        def cached_room(self: Cache, pages: int, states: int, protect: NodeId = NodeId(-1)) -> Fit:
            if states and not self.tree.counters().checkpoints:
                return self.arena.fits(pages, states)
            return old(self, pages, states, protect)  # type: ignore[no-any-return]
        return cached_room

    return patched(Cache, "room", make)


def pages_are_not_zeroed() -> Plant:
    """A page is handed out with what its bytes held before."""
    return plans(lambda plan: replace(plan, zero_pages=plan.zero_pages[:0]))


def states_are_not_zeroed(where: Callable[[Plan], bool] = lambda plan: True) -> Plant:
    """A cold request starts from what its state's bytes held before."""
    return plans(lambda plan: replace(plan, zero_states=plan.zero_states[:0]) if where(plan) else plan)


def single_tokens_are_decodes() -> Plant:
    """A row of one token is taken for a decode, which has a valid state: nothing is cleared for it."""

    def change(plan: Plan) -> Plan:
        short = {int(lane) for lane, length in zip(plan.lane, plan.length, strict=True) if length == 1}
        spared = [seat.state for seat in plan.seats if seat.lane in short]
        return replace(plan, zero_states=plan.zero_states[~np.isin(plan.zero_states, spared)])

    return plans(change)


def capacity_remembered() -> Plant:
    """What fits is remembered until something is allocated, freed or moved: a lease changes nothing."""

    def make(old: Any) -> Any:
        known: dict[tuple[Any, ...], Fit] = {}

        def fits(self: Arena, pages: int, states: int) -> Fit:
            key = (id(self), pages, states, self.usage(), self.moves_count)
            return known.setdefault(key, old(self, pages, states))
        return fits

    return patched(Arena, "fits", make)


def handles_are_views() -> Plant:
    """An allocation hands out a view of its own table, which the next one writes."""

    def make(old: Any) -> Any:
        tables = (np.zeros(1 << 12, np.int32), np.zeros(1 << 12, np.int32))

        def alloc(self: Arena, pages: int, states: int) -> tuple[Int32, Int32] | None:
            got = old(self, pages, states)
            if got is None:
                return None
            for table, ids in zip(tables, got, strict=True):
                table[: len(ids)] = ids
            return tables[0][:pages], tables[1][:states]
        return alloc

    return patched(Arena, "alloc", make)


def half_translated() -> Plant:
    """One of two routes to a page list takes places for ids: entries that come after the first plan of a seat."""

    def make(old: Any) -> Any:
        def touch(core: Core, b: Builder, seat: Seated, end: int, whole: tuple[int, int] = (0, 0)) -> None:
            before = len(b.lane_pages)
            old(core, b, seat, end, whole)
            b.lane_pages[before:] = [
                (lane, first, core.cache.arena.page_places(pages)) for lane, first, pages in b.lane_pages[before:]
            ]
        return touch

    def rows(old: Any) -> Any:
        def touch_rows(core: Core, b: Builder, rows: Rows, needs: Needs) -> None:
            before = len(b.fresh)
            old(core, b, rows, needs)
            for i in range(before, len(b.fresh)):
                b.fresh[i] = b.fresh[i].copy()
                b.fresh[i][:, 2] = core.cache.arena.page_places(b.fresh[i][:, 2])
        return touch_rows

    return all_of(patched(decode, "touch_rows", rows), patched(prefill, "touch", make))


# -- overlap

def counts_by_row() -> Plant:
    """Accepted counts are looked up by a row's place in the next batch."""

    def make(old: Any) -> Any:
        def booked(core: Core, flight: Flight, result: Result) -> Any:
            return old(core, flight, replace(result, accepted=np.roll(result.accepted, 1)))
        return booked

    return patched(commit, "commit", make)


def shared_plan_buffers() -> Plant:
    """Every plan is written into the same arrays."""
    buffers: dict[str, Any] = {}

    def change(plan: Plan) -> Plan:
        out = {}
        for name in ("lane", "generation", "start", "length"):
            array = getattr(plan, name)
            buffer = buffers.setdefault(name, np.zeros(256, array.dtype))
            buffer[: len(array)] = array
            out[name] = buffer[: len(array)]
        return replace(plan, **out)

    return plans(change)


# -- pressure and accounting

def a_target_is_a_must() -> Plant:
    """An optional target that finds no room is an error."""

    def make(old: Any) -> Any:
        def take_state(core: Core, b: Builder, evict: room.Evict) -> StateId | None:
            got = old(core, b, evict)
            assert got is not None, "no state for a checkpoint"
            return got  # type: ignore[no-any-return]
        return take_state

    return patched(room, "take_state", make)


def one_spare_for_two() -> Plant:
    """The spare state of a step is promised to everybody in it who asks."""

    def make(old: Any) -> Any:
        spare: dict[int, StateId | None] = {}

        def take_state(core: Core, b: Builder, evict: room.Evict) -> StateId | None:
            if id(b) not in spare:
                spare.clear()
                spare[id(b)] = old(core, b, evict)
            return spare[id(b)]
        return take_state

    return patched(room, "take_state", make)


def fork_before_admission() -> Plant:
    """A match takes a state for its request at once; a refused admission forgets to return it."""

    def make(old: Any) -> Any:
        def seat(core: Core, b: Builder, job: Any, found: Match) -> bool:
            admitted = old(core, b, job, found)
            if not admitted and found.depth:
                core.cache.arena.alloc(0, 1)
            return admitted  # type: ignore[no-any-return]
        return seat

    return patched(admit, "_seat", make)


def clamp_of_its_own(states: int) -> Plant:
    """Admission counts this many states a request, whatever is then allocated."""

    def make(old: Any) -> Any:
        def reserve(core: Core, b: Builder, found: Match, need: int) -> Any:
            running = core.lanes.running
            most = core.cache.arena.usage().live_states + core.cache.arena.room_states(True)
            return None if (running + 1) * states > most else old(core, b, found, need)
        return reserve

    return patched(admit, "_reserve", make)


# -- speculation

def fold_stops_short() -> Plant:
    """The accepted drafts of a window never reach the state: only its first row does."""

    def make(old: Any) -> Any:
        def fold(self: Device, run: Run) -> None:
            run.fresh = [min(1, count) for count in run.fresh]
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def no_fold() -> Plant:
    """Drafts are verified and never committed to the state."""
    return patched(Device, "fold", lambda old: lambda self, run: None)


def records_survive_their_tenant() -> Plant:
    """What a window left unaccepted is replayed by the next window on the same lane."""

    def make(old: Any) -> Any:
        left: dict[int, tuple[int, list[Any]]] = {}

        def fold(self: Device, run: Run) -> None:
            tenants = zip(run.plan.lane.tolist(), run.plan.generation.tolist(), strict=True)
            for i, (lane, generation) in enumerate(tenants):
                if run.kind[i] == Row.VERIFY and run.lanes[i] is not None:
                    before, stale = left.get(lane, (generation, []))
                    left[lane] = (generation, run.records[i][run.fresh[i] :])
                    if before != generation:
                        run.records[i] = [*stale, *run.records[i]]
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def snapshot_over_drafts() -> Plant:
    """A conditional snapshot is taken as the window is verified, over drafts that are rejected afterwards."""

    def make(old: Any) -> Any:
        def fold(self: Device, run: Run) -> None:
            for i, tenant in enumerate(run.lanes):
                if tenant is None or run.kind[i] != Row.VERIFY or not run.targets[i]:
                    continue
                place = self.tables.find(STATE, tenant.state, "fold")
                matrix, window, label = self.memory.read_state(place, "folds into")
                for depth, (fed, token) in enumerate(run.records[i], tenant.depth + 1):
                    matrix, window = model.absorb(matrix, window, fed, token)
                    label = model.chain(label, token)
                    for wanted, target, number in run.targets[i]:
                        if wanted == depth:
                            self._snapshot(run, target, number, matrix, window, label)
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def unwritten_is_published() -> Plant:
    """A conditional snapshot counts as written once its window was planned."""

    def make(old: Any) -> Any:
        def landed(core: Core, flight: Flight, seat: Seated, depth: int, target: int, written: bool) -> None:
            job = seat.job
            if job.count < depth:  # publishing needs tokens; drafts stand in for the rejected ones
                count = job.count
                job.append(np.zeros(depth - count, np.int32))
                old(core, flight, seat, depth, target, True)
                job.count = count
            else:
                old(core, flight, seat, depth, target, True)
        return landed

    return patched(commit, "_landed", make)


def window_is_drafts() -> Plant:
    """The window has as many rows as drafts: the current token is forgotten."""

    def change(plan: Plan) -> Plan:
        verify = plan.kind == Row.VERIFY
        return replace(plan, length=np.where(verify, plan.length - 1, plan.length).astype(np.int32))

    return plans(change)


def capabilities_unchecked() -> Plant:
    """Whatever the executor lacks, the engine is made."""
    return patched(engine, "_check_fit", lambda old: lambda *a: None)


# -- numbers

def chunks_end_anywhere() -> Plant:
    """A chunk ends where the budget does, on the grid or off it."""

    def make(old: Any) -> Any:
        def chunk_end(core: Core, b: Builder, seat: Seated, start: int) -> int:
            return min(seat.target, start + max(0, prefill.budget_left(core, b)))
        return chunk_end

    return patched(prefill, "_chunk_end", make)
