"""Root causes in plans and lanes: moves, restores, copies, steps in flight. See `plants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.executors.mock.device import Device, Run
from k3mem.fuzz.patching import Plant, patched, plans
from k3mem.plan import Plan, Row
from k3mem.pool import ExtraBuffer
from k3mem.radix import Kind, Match
from k3mem.sched import admit, close, decode, scheduler
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.sched.job import End, Seated
from k3mem.sched.lanes import Lanes


def _moves(change: Any) -> Plant:
    return plans(lambda plan: replace(plan, moves=change(plan.moves.copy())) if len(plan.moves) else plan)


def moves_through_the_new_table() -> Plant:
    """The source of a move is looked up in the table that holds its destination already: nothing moves."""

    def change(moves: Any) -> Any:
        moves[:, 2] = moves[:, 3]
        return moves

    return _moves(change)


def batches_are_one() -> Plant:
    """All batches of a plan run as one: a chain overwrites what it has still to move."""

    def make(old: Any) -> Any:
        def move(self: Builder, moves: Any) -> None:
            old(self, moves)
            if self.moves and self.batches > 1:
                self.moves[-1][:, 0] = 0
        return move

    return patched(Builder, "move", make)


def moves_are_dropped() -> Plant:
    """A plan forgets its moves."""
    return _moves(lambda moves: moves[:0])


def tables_miss_moves() -> Plant:
    """An entry that moved keeps its old place in the device's table."""

    def change(plan: Plan) -> Plan:
        moved = plan.moves[plan.moves[:, 1] == 0, 3]
        return replace(plan, page_table=plan.page_table[~np.isin(plan.page_table[:, 1], moved)])

    return plans(change)


def snapshot_one_off() -> Plant:
    """A prefill snapshot is taken one token before the depth under which it is published."""

    def change(plan: Plan) -> Plan:
        snapshots = plan.snapshots.copy()
        for entry in snapshots:
            inside = plan.kind[entry[0]] == Row.PREFILL and entry[1] - 1 > plan.start[entry[0]]
            entry[1] -= bool(inside)
        return replace(plan, snapshots=snapshots)

    return plans(change)


def tails_are_not_copied() -> Plant:
    """Who resumes at a tail gets a page without the tail's rows."""
    return plans(lambda plan: replace(plan, page_copies=plan.page_copies[:0]))


def tail_page_is_shared() -> Plant:
    """Who resumes at a tail writes on in the tail's own page."""

    def make(old: Any) -> Any:
        def tell(core: Core, b: Builder, seat: Seated, found: Match, in_place: bool) -> None:
            if found.depth % core.span:
                seat.pages[seat.owned] = core.cache.tree.pages(found.node)[-1]
            old(core, b, seat, found, in_place)
            b.copies.clear()
        return tell

    return patched(admit, "_tell_device", make)


def restore_is_forgotten() -> Plant:
    """A request at a hit starts from what its working state's bytes held before."""
    return plans(lambda plan: replace(plan, restores=plan.restores[:0]))


def deltas_are_forgotten() -> Plant:
    """A page that the tree had already replaces the writer's, and the device is not told."""

    def make(old: Any) -> Any:
        def plan(self: scheduler.Scheduler) -> Any:
            self.core.deltas.clear()
            return old(self)
        return plan

    return patched(scheduler.Scheduler, "plan", make)


def freed_before_the_last_reader() -> Plant:
    """A lane that ends closes at once, whatever rows of it are in flight."""
    return patched(close, "settle", lambda old: lambda core, seat: close.close(core, seat))


def freed_twice_on_abort() -> Plant:
    """Both the abort and the end of the lane give its pages back."""

    def make(old: Any) -> Any:
        def mark(core: Core, seat: Seated, end: End) -> None:
            if end == End.ABORT and seat.owned < seat.page_count:
                core.cache.arena.free_pages(seat.pages[seat.owned : seat.page_count])
            old(core, seat, end)
        return mark

    return patched(close, "mark", make)


def generation_stays() -> Plant:
    """A lane's new tenant has the generation of the last one."""

    def make(old: Any) -> Any:
        def take(self: Lanes) -> Any:
            lane = old(self)
            self.generation[lane] = 1
            return lane
        return take

    return patched(Lanes, "take", make)


def done_is_ignored() -> Plant:
    """The device decodes on in a lane that has ended."""

    def make(old: Any) -> Any:
        def sample(self: Device, run: Run) -> None:
            old(self, run)
            for tenant in run.lanes:
                if tenant is not None:
                    tenant.done = 0
        return sample

    return patched(Device, "sample", make)


def fold_runs_twice() -> Plant:
    """The accepted records are replayed twice."""

    def make(old: Any) -> Any:
        def fold(self: Device, run: Run) -> None:
            old(self, run)
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def fold_counts_by_row() -> Plant:
    """How many records a lane replays is read from its neighbour."""

    def make(old: Any) -> Any:
        def fold(self: Device, run: Run) -> None:
            verify = [i for i, kind in enumerate(run.kind) if kind == Row.VERIFY and run.lanes[i] is not None]
            counts = [run.fresh[i] for i in verify]
            for i, count in zip(verify, counts[1:] + counts[:1], strict=True):
                run.fresh[i] = min(count, len(run.records[i]))
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def donated_at_the_cut() -> Plant:
    """A state that has absorbed an overrun token is published where the output ends."""

    def make(old: Any) -> Any:
        def publish_last(core: Core, seat: Seated, kind: Kind) -> None:
            depth = int(core.lanes.launched[seat.lane])
            cut = seat.job.count - 2
            if seat.job.prompt <= cut < depth and cut > seat.node_depth and depth == seat.job.count - 1 \
                    and kind == Kind.RETRACT:
                core.lanes.launched[seat.lane] = cut
            old(core, seat, kind)
            core.lanes.launched[seat.lane] = depth
        return publish_last

    return patched(close, "_publish_last", make)


def targets_begin_anew() -> Plant:
    """Each plan takes a new target for a depth that an earlier one names already; the earlier is lost."""

    def make(old: Any) -> Any:
        def add(core: Core, b: Builder) -> None:
            for lane in b.lanes.tolist():
                extra: ExtraBuffer = core.lanes.seat(lane).extra
                if core.lanes.inflight[lane] == 0:
                    extra.pending, extra.pending_depth = None, -1
            old(core, b)
        return add

    return patched(decode, "add_snapshots", make)
