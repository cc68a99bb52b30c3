"""Commit: judge a step by its own plan and result, and by nothing that a later plan has changed."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from k3mem.errors import Corrupted
from k3mem.plan import Done, Plan, Result
from k3mem.radix import Kind
from k3mem.request import Output, Outputs
from k3mem.sched import close, speculate
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import End, Job, Seated
from k3mem.types import Int32, UInt8

LAST_DONE = int(max(Done))
INT32, UINT8 = np.dtype(np.int32), np.dtype(np.uint8)
LOUD = 255
"""In place of a row's `Done`: its lane needs a look, whatever the device says."""
REASONS = {int(Done.STOP): "stop", int(Done.LENGTH): "length"}


class Stop(NamedTuple):
    """A request's stop function ends it."""

    keep: int | None
    reason: str
    detail: str
    """For the event log."""


def commit(core: Core, flight: Flight, result: Result) -> Outputs:
    """Book a step's result; what each request got. O(rows + tokens + snapshots) in one pass in C; in Python only what
    lanes that end, drain, or have a stop function need.

    Order: the callers' stop functions, whatever they do, before anything is booked; then tokens (a snapshot's path
    needs them), snapshots that were written, lanes that end.
    """
    plan, lanes, metrics = flight.plan, core.lanes, core.metrics
    _same_step(plan, result)
    accepted, done, tokens = _own(flight, result)
    stops, loud, last = {}, done, LAST_DONE
    if lanes.stoppers:
        if not lanes.judge(flight.rows, accepted, done, len(tokens), LAST_DONE):
            _implausible(plan, result)
        stops = _ask_stops(core, plan, result)
        if stops:
            loud, last = done.copy(), LOUD
            loud[[lane in stops for lane in plan.lane.tolist()]] = LOUD
    ids = lanes.ids.take(plan.lane)
    booked = lanes.commit(flight.rows, accepted, loud, tokens, last)
    if booked is None:
        _implausible(plan, result)
    if core.drafter is not None:
        speculate.learn(core, flight, result)
    core.failures = 0
    ends, core.outputs = core.outputs, []
    for prefill in flight.prefill:
        if not prefill.seat.job.ticket and core.policy.caching:
            _asked(core, prefill.seat.job)
    times = result.times.tolist()
    outputs = Outputs(ends, ids, accepted, tokens, times)
    for row, end in booked.loud:
        lane = int(plan.lane[row])
        new = tokens[end - int(accepted[row]) : end]
        outputs.put(row, _book(core, lanes.seat(lane), new, int(done[row]), stops.get(lane), times))
    metrics.output_tokens += booked.quiet
    metrics.overruns += booked.overruns
    if flight.snapshots:
        for snapshot, written in zip(flight.snapshots, result.written.tolist(), strict=False):
            _landed(core, flight, snapshot.seat, snapshot.depth, snapshot.target, written)
    if core.ending:
        for lane in [lane for lane in plan.lane.tolist() if lane in core.ending]:
            close.settle(core, lanes.seat(lane))
    rows = len(plan.kind) * plan.repeat
    metrics.rows += rows
    metrics.events["row"] += rows
    return outputs


def _asked(core: Core, job: Job) -> None:
    """Tell the eviction policy of a request, once: when its first chunk commits, so that none is told of one that was
    cancelled."""
    grid = core.shape.grid
    job.ticket = core.cache.keeper.requested(job.scope, job.tokens[: (job.prompt - 1) // grid * grid], core.now)


def _same_step(plan: Plan, result: Result) -> None:
    lanes = result.lane is plan.lane or np.array_equal(result.lane, plan.lane)
    generations = result.generation is plan.generation or np.array_equal(result.generation, plan.generation)
    if result.step != plan.step or not lanes or not generations:
        raise Corrupted(f"the result of step {result.step} does not belong to plan {plan.step}: step, lanes or "
                        "generations differ; check the executor")


def _own(flight: Flight, result: Result) -> tuple[Int32, UInt8, Int32]:
    """(accepted, done, tokens) of a result that has the plan's shape. They are ours: the executor may use its arrays
    again. O(rows + tokens)."""
    plan, n = flight.plan, len(flight.plan.kind)
    if len(result.accepted) != n or len(result.done) != n or len(result.written) != len(plan.snapshots):
        raise Corrupted(f"the result of step {result.step} has not one entry a row and a snapshot; check the executor")
    if len(plan.snapshots) and not all(result.written[len(flight.snapshots) :].tolist()):
        raise Corrupted(f"step {result.step} did not write a prefill snapshot; those are unconditional: check the "
                        "executor")
    return _copy(result.accepted, INT32), _copy(result.done, UINT8), _copy(result.tokens, INT32)


def _copy(array: Any, dtype: Any) -> Any:
    return array.copy() if getattr(array, "dtype", None) == dtype and array.ndim == 1 else np.array(array, dtype)


def _implausible(plan: Plan, result: Result) -> NoReturn:
    """A row commits more than it may, or the counts do not add up."""
    if max(result.done.tolist(), default=0) > LAST_DONE:
        raise Corrupted(f"the result of step {result.step} ends lanes with {result.done.tolist()}, which no `Done` "
                        "is; check the executor")
    raise Corrupted(f"the result of step {result.step} has {len(result.tokens)} tokens, accepted "
                    f"{result.accepted.tolist()} of rows of {plan.length.tolist()} tokens; check the executor")


def _ask_stops(core: Core, plan: Plan, result: Result) -> dict[int, Stop]:
    """Lane -> what its request's stop function said, where it said something. Nothing of the step is booked yet, so a
    function that calls the engine, or an interrupt from outside, finds whole steps only. A function that raises, or
    keeps what is not there, ends its own request (`failed`) and nobody else's."""
    out: dict[int, Stop] = {}
    ends = np.cumsum(result.accepted).tolist()
    for lane, accepted, end in zip(plan.lane.tolist(), result.accepted.tolist(), ends, strict=True):
        if lane not in core.lanes.stoppers:
            continue
        seat = core.lanes.seat(lane)
        stop = seat.job.request.stop
        if stop is None or not accepted or seat.end in (End.FINISH, End.ABORT):
            continue
        said = seat.job.preview(result.tokens[end - accepted : end])
        try:
            keep = stop(said)
            if keep is not None:
                out[lane] = Stop(_kept(keep, len(said)), "host_stop", "host_stop")
        except Exception as e:  # the caller's code: anything may come
            out[lane] = Stop(None, "failed", f"failed: stop(): {type(e).__name__}: {e}")
    return out


def _kept(keep: object, count: int) -> int:
    if isinstance(keep, bool) or not isinstance(keep, (int, np.integer)) or not 0 <= keep <= count:
        raise ValueError(f"returned {keep!r}; return None to go on, or how many of the {count} output tokens to keep")
    return int(keep)


def _book(core: Core, seat: Seated, tokens: Int32, done: int, stop: Stop | None, times: list[float]) -> Output | None:
    """Append a row's tokens to its job, and end the job where the device or the host says so."""
    job, accepted, reason, keep, detail = seat.job, len(tokens), None, None, ""
    job.append(tokens)
    if seat.end is not None and seat.end != End.RETRACT:
        core.metrics.overruns += 1
        return None
    core.metrics.output_tokens += accepted
    if stop is not None:
        keep, reason, detail = stop
    elif done:
        reason = detail = REASONS[done]
    if reason is not None:
        job.reason, job.keep = reason, keep
        core.cache.log.add("end", job.request.id, job.count, detail)
        close.mark(core, seat, End.FINISH)
    first, last = (times[0], times[min(accepted, len(times)) - 1]) if times else (None, None)
    return Output(job.request.id, tokens.tolist(), reason is not None, reason, keep, first, last)


def _landed(core: Core, flight: Flight, seat: Seated, depth: int, target: int, written: bool) -> None:
    """A conditional snapshot that was written becomes the seat's latest and, where off-grid ends are allowed, at once
    a checkpoint. One that was not written stays the target of later plans, or returns with the seat."""
    extra = seat.extra
    if extra.pending != target or not written:
        return
    core.metrics.events["snapshot"] += 1
    old = extra.landed()
    if old is not None:
        core.cache.arena.free_state(old)
    if core.policy.deterministic:
        return
    state, depth = extra.donate()
    if depth <= seat.node_depth or not close.publish(core, seat, depth, state, Kind.INTERVAL, flight.plan.step):
        core.cache.arena.free_state(state)
