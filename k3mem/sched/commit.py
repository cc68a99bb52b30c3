"""Commit: judge a step by its own plan and result, and by nothing that a later plan has changed."""

from __future__ import annotations

import numpy as np

from k3mem.errors import Corrupted
from k3mem.plan import Done, Plan, Result
from k3mem.radix import Kind
from k3mem.request import Output
from k3mem.sched import close
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import End, Seated
from k3mem.types import Int32

REASONS = {int(Done.STOP): "stop", int(Done.LENGTH): "length"}


def commit(core: Core, flight: Flight, result: Result) -> list[Output]:
    """Book a step's result; what each request got. O(rows + snapshots).

    Order: tokens first (a snapshot's path needs them), then snapshots that were written, then lanes that end.
    """
    plan, lanes, metrics = flight.plan, core.lanes, core.metrics
    _same_step(plan, result)
    _plausible(flight, result)
    core.failures = 0
    outputs, core.outputs = core.outputs, []
    lanes.inflight[plan.lane] -= 1
    decode = len(flight.decode_lanes)
    lanes.launched[flight.decode_lanes] -= flight.windows * plan.repeat - result.accepted[:decode]
    ends = result.accepted.cumsum().tolist()
    times = result.times.tolist()
    rows = zip(plan.lane.tolist(), result.accepted.tolist(), result.done.tolist(), ends, strict=True)
    for row, (lane, accepted, done, end) in enumerate(rows):
        if accepted:
            out = _book(core, lanes.seat(lane), result.tokens[end - accepted : end], done, times)
            if out is not None:
                outputs.append(out)
        elif row < decode or plan.sample[row]:
            metrics.overruns += 1
    for snapshot, written in zip(flight.snapshots, result.written.tolist(), strict=False):
        _landed(core, flight, snapshot.seat, snapshot.depth, snapshot.target, written)
    if core.ending:
        for lane in plan.lane.tolist():
            if lane in core.ending:
                close.settle(core, lanes.seat(lane))
    metrics.rows += len(plan.kind) * plan.repeat
    metrics.events["row"] += len(plan.kind) * plan.repeat
    return outputs


def _same_step(plan: Plan, result: Result) -> None:
    if result.step != plan.step or not np.array_equal(result.lane, plan.lane) or not np.array_equal(
            result.generation, plan.generation):
        raise Corrupted(f"the result of step {result.step} does not belong to plan {plan.step}: step, lanes or "
                        "generations differ; check the executor")


def _plausible(flight: Flight, result: Result) -> None:
    """A result has the plan's shape, and no row commits more than it may. Nothing was booked yet."""
    plan, accepted, decode = flight.plan, result.accepted, len(flight.decode_lanes)
    n = len(plan.kind)
    if len(accepted) != n or len(result.done) != n or len(result.written) != len(plan.snapshots):
        raise Corrupted(f"the result of step {result.step} has not one entry a row and a snapshot; check the executor")
    right = (accepted[:decode] <= flight.windows * plan.repeat).all()
    right = right and (accepted[decode:] <= plan.sample[decode:]).all()
    if not right or (n and accepted.min() < 0) or int(accepted.sum()) != len(result.tokens):
        raise Corrupted(f"the result of step {result.step} has {len(result.tokens)} tokens, accepted "
                        f"{accepted.tolist()} of rows of {plan.length.tolist()} tokens; check the executor")
    if len(result.written) and not result.written[plan.snapshots[:, 0] >= decode].all():
        raise Corrupted(f"step {result.step} did not write a prefill snapshot; those are unconditional: check the "
                        "executor")


def _book(core: Core, seat: Seated, tokens: Int32, done: int, times: list[float]) -> Output | None:
    """Append a row's tokens to its job, and end the job where the device or the host says so."""
    job, accepted, reason, keep = seat.job, len(tokens), None, None
    job.append(tokens)
    if seat.end is not None and seat.end != End.RETRACT:
        core.metrics.overruns += 1
        return None
    core.metrics.output_tokens += accepted
    if done:
        reason = REASONS[done]
    if job.request.stop is not None:
        keep = job.request.stop(job.tokens[job.prompt : job.count])
        if keep is not None:
            reason, job.keep = "host_stop", keep
    if reason is not None:
        job.reason = reason
        core.cache.log.add("end", job.request.id, job.count, reason)
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
        core.cache.arena.free_states(np.array([old], np.int32))
    if core.policy.deterministic:
        return
    state, depth = extra.donate()
    if depth <= seat.node_depth or not close.publish(core, seat, depth, state, Kind.INTERVAL, flight.plan.step):
        core.cache.arena.free_states(np.array([state], np.int32))
