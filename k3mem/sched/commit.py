"""Commit: judge a step by its own plan and result, and by nothing that a later plan has changed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from k3mem.errors import Corrupted
from k3mem.plan import Done, Plan, Result, Row
from k3mem.radix import Kind
from k3mem.request import Output
from k3mem.sched import close
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import End, Seated
from k3mem.types import Int32

REASONS = {Done.STOP: "stop", Done.LENGTH: "length"}


class Stop(NamedTuple):
    """A request's stop function ends it."""

    keep: int | None
    reason: str
    detail: str
    """For the event log."""


def commit(core: Core, flight: Flight, result: Result) -> list[Output]:
    """Book a step's result; what each request got. O(rows + snapshots).

    Order: the callers' stop functions, whatever they do, before anything is booked; then tokens (a snapshot's path
    needs them), snapshots that were written, lanes that end.
    """
    plan, lanes = flight.plan, core.lanes
    _same_step(plan, result)
    _plausible(plan, result)
    stops = _ask_stops(core, plan, result)
    core.failures = 0
    outputs, core.outputs = core.outputs, []
    lanes.inflight[plan.lane] -= 1
    windows = np.where(plan.kind == Row.PREFILL, 0, plan.length * plan.repeat)
    advanced = windows > 0
    lanes.launched[plan.lane[advanced]] -= (windows - result.accepted)[advanced]
    ends = np.cumsum(result.accepted).tolist()
    rows = zip(plan.lane.tolist(), plan.sample.tolist(), result.accepted.tolist(), result.done.tolist(), ends,
               strict=True)
    for lane, samples, accepted, done, end in rows:
        if accepted:
            out = _book(core, lanes.seat(lane), result.tokens[end - accepted : end], done, stops.get(lane), result)
            if out is not None:
                outputs.append(out)
        elif samples:
            core.metrics.overruns += 1
    for snapshot, written in zip(flight.snapshots, result.written.tolist(), strict=False):
        _landed(core, flight, snapshot.seat, snapshot.depth, snapshot.target, written)
    if core.ending:
        for lane in plan.lane.tolist():
            if lane in core.ending:
                close.settle(core, lanes.seat(lane))
    core.metrics.rows += len(plan.kind) * plan.repeat
    core.metrics.events["row"] += len(plan.kind) * plan.repeat
    return outputs


def _same_step(plan: Plan, result: Result) -> None:
    if result.step != plan.step or not np.array_equal(result.lane, plan.lane) or not np.array_equal(
            result.generation, plan.generation):
        raise Corrupted(f"the result of step {result.step} does not belong to plan {plan.step}: step, lanes or "
                        "generations differ; check the executor")


def _plausible(plan: Plan, result: Result) -> None:
    """A result has the plan's shape, and no row commits more than it may. Nothing was booked yet."""
    most = np.where(plan.kind == Row.PREFILL, plan.sample, plan.length * plan.repeat)
    n = len(plan.kind)
    if len(result.accepted) != n or len(result.done) != n or len(result.written) != len(plan.snapshots):
        raise Corrupted(f"the result of step {result.step} has not one entry a row and a snapshot; check the executor")
    wrong = (result.accepted < 0) | (result.accepted > most)
    if wrong.any() or int(result.accepted.sum()) != len(result.tokens):
        raise Corrupted(f"the result of step {result.step} has {len(result.tokens)} tokens, accepted "
                        f"{result.accepted.tolist()} of at most {most.tolist()}; check the executor")
    prefill = plan.kind[plan.snapshots[:, 0]] == Row.PREFILL
    if not result.written[prefill].all():
        raise Corrupted(f"step {result.step} did not write a prefill snapshot; those are unconditional: check the "
                        "executor")


def _ask_stops(core: Core, plan: Plan, result: Result) -> dict[int, Stop]:
    """Lane -> what its request's stop function said, where it said something. Nothing of the step is booked yet, so a
    function that calls the engine, or an interrupt from outside, finds whole steps only. A function that raises, or
    keeps what is not there, ends its own request (`failed`) and nobody else's."""
    out: dict[int, Stop] = {}
    ends = np.cumsum(result.accepted).tolist()
    for lane, accepted, end in zip(plan.lane.tolist(), result.accepted.tolist(), ends, strict=True):
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


def _book(core: Core, seat: Seated, tokens: Int32, done: int, stop: Stop | None, result: Result) -> Output | None:
    """Append a row's tokens to its job, and end the job where the device or the host says so."""
    job, accepted = seat.job, len(tokens)
    job.append(tokens)
    if seat.end == End.FINISH or seat.end == End.ABORT:
        core.metrics.overruns += 1
        return None
    core.metrics.output_tokens += accepted
    reason, keep = (REASONS[Done(done)] if done else None), None
    detail = reason or ""
    if stop is not None:
        keep, reason, detail = stop
    if reason is not None:
        job.reason, job.keep = reason, keep
        core.cache.log.add("end", job.request.id, job.count, detail)
        close.mark(core, seat, End.FINISH)
    first = last = None
    if len(result.times):
        first, last = float(result.times[0]), float(result.times[min(accepted, len(result.times)) - 1])
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
