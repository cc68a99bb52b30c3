"""A failed step: what it may have damaged, what goes with it, who starts again."""

from __future__ import annotations

import numpy as np

from k3mem.errors import Effect, ExecutorFailed
from k3mem.plan import PAGE, STATE, Plan
from k3mem.request import Output
from k3mem.sched import close
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import End, Seated
from k3mem.types import Bool, Int32

INTACT = np.iinfo(np.int32).max
MAX_FAILURES = 3


def fail(core: Core, failed: list[Flight], effect: Effect, first_step: int) -> None:
    """Drop everything that the failed flights may have damaged; jobs with a row in them, or standing on damage,
    go back to the queue. `first_step`: number of the first failed step. O(tree + lanes); failures are rare.

    Raises ExecutorFailed after `MAX_FAILURES` failures without a commit between; no job is left then.
    """
    core.failures += 1
    core.resync = True
    core.metrics.failures += 1
    core.cache.log.failed(first_step)
    core.cache.log.add("failure", detail=effect.value)
    for flight in failed:
        core.lanes.inflight[flight.plan.lane] -= 1
    rows, states = _damage(core, failed, effect)
    gone = core.cache.tree.drop(0 if effect == Effect.CONTENTS_LOST else first_step, rows, states)
    hit = {int(lane) for flight in failed for lane in flight.plan.lane}
    hit |= {seat.lane for flight in failed for seat in flight.plan.seats}
    core.pins.give_way()
    for seat in core.lanes.taken():
        if effect == Effect.CONTENTS_LOST or seat.lane in hit or _stands_on(core, seat, rows, states):
            requeue(core, seat)
        else:
            _forget_damage(core, seat, rows, states)
    core.cache.give_back(gone)
    give_up(core)


def give_up(core: Core) -> None:
    """After too many failures in a row: report every request, drop it, raise ExecutorFailed."""
    if core.failures < MAX_FAILURES:
        return
    ids = list(core.jobs)
    core.outputs += [Output(i, [], True, "failed") for i in ids if core.jobs[i].reason is None]
    for flight in core.flights:
        core.lanes.inflight[flight.plan.lane] -= 1
    core.flights.clear()
    for seat in core.lanes.taken():
        close.release(core, seat)
    core.queue.clear()
    core.jobs.clear()
    for request_id in ids:
        core.undraft(request_id)
    if core.sessions is not None:
        core.sessions.clear()
    core.failures = 0
    raise ExecutorFailed(f"{MAX_FAILURES} steps failed without a commit between; {len(ids)} requests dropped: "
                         f"{ids[:8]}; repair the executor and submit them again")


def _damage(core: Core, failed: list[Flight], effect: Effect) -> tuple[Int32, Bool]:
    """(first damaged row by page id or INTACT, damaged by state id). Without effect only what moved is lost: it lies
    where it was before, and the tables no longer say where that is."""
    arena = core.cache.arena
    rows = np.full(arena.page_id_end, 0 if effect == Effect.CONTENTS_LOST else INTACT, np.int32)
    states = np.full(arena.state_id_end, effect == Effect.CONTENTS_LOST, np.bool_)
    if effect == Effect.NO_EFFECT:
        for flight in failed:
            _damage_moves(core, flight.plan, rows, states)
        return rows, states
    stood: dict[int, int] = {}
    for flight in failed:
        for lane, start in zip(flight.plan.lane.tolist(), flight.plan.start.tolist(), strict=True):
            stood[lane] = min(start, stood.get(lane, start))
    for flight in failed:
        plan = flight.plan
        _damage_moves(core, plan, rows, states)
        rows[plan.zero_pages] = 0
        states[plan.zero_states] = True
        rows[plan.page_copies[:, 1]] = 0
        states[plan.restores[:, 1]] = True
        states[plan.snapshots[:, 2]] = True
        for pages, first in flight.written:
            rows[pages[1:]] = 0
            if len(pages):
                rows[pages[0]] = min(int(rows[pages[0]]), first)
        for lane, start, window in zip(
                flight.rows.lane.tolist(), plan.start.tolist(), flight.rows.windows().tolist(), strict=False):
            _damage_decode(core, core.lanes.seat(lane), stood[lane], start + window * plan.repeat, rows)
        for lane in plan.lane.tolist():
            state = core.lanes.seat(lane).state
            if state >= 0:
                states[state] = True
    return rows, states


def _damage_decode(core: Core, seat: Seated, low: int, end: int, rows: Int32) -> None:
    """A decode or verify row writes where the device stands. After an earlier failed step that may be as far up as
    that step's own start (`low`), on whatever pages the list names there."""
    span = core.span
    for index in range(low // span, min(-(-end // span), seat.page_count)):
        page = seat.pages[index]
        rows[page] = min(int(rows[page]), max(0, low - index * span))


def _damage_moves(core: Core, plan: Plan, rows: Int32, states: Bool) -> None:
    for kind in (PAGE, STATE):
        places = plan.moves[plan.moves[:, 1] == kind, 3]
        ids = core.cache.arena.ids_at(kind, places)
        if kind == PAGE:
            rows[ids[ids >= 0]] = 0
        else:
            states[ids[ids >= 0]] = True


def _stands_on(core: Core, seat: Seated, rows: Int32, states: Bool) -> bool:
    """Whether a seat without a row in the failed steps relies on damaged bytes."""
    depth = int(core.lanes.launched[seat.lane])
    used = -(-depth // core.span)
    pages = seat.pages[:used]
    info = core.cache.tree.info(seat.node)
    lost = seat.node_depth > 0 and not info.has_kv
    return lost or bool(states[seat.state]) or bool((rows[pages] < core.span).any())


def _forget_damage(core: Core, seat: Seated, rows: Int32, states: Bool) -> None:
    """What a surviving seat holds beside what it stands on: pages handed to the device for rows still to come are
    zeroed again, a damaged snapshot is dropped."""
    used = -(-int(core.lanes.launched[seat.lane]) // core.span)
    if (rows[seat.pages[used : seat.touched]] < INTACT).any():
        core.reserved[PAGE].set(seat.pages[used : seat.touched], True)
        seat.touched = max(used, seat.owned)
    if seat.extra.latest is not None and states[seat.extra.latest]:
        core.cache.arena.free_state(seat.extra.donate()[0])


def requeue(core: Core, seat: Seated) -> None:
    """Leave the lane without publishing anything; the job, if it has not ended, starts again from what is left."""
    job = seat.job
    close.release(core, seat)
    if seat.end in (None, End.RETRACT):
        job.waits = 0
        core.queue.add(job)
    else:
        core.forget(job)
