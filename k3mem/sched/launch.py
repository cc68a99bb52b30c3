"""Launch: what becomes true the moment a plan is on the stream."""

from __future__ import annotations

import numpy as np

from k3mem.executor import Ticket
from k3mem.plan import Plan
from k3mem.sched import close, moves
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core, Flight
from k3mem.sched.lanes import Phase
from k3mem.types import Int32


def launched(core: Core, b: Builder, plan: Plan, ticket: Ticket) -> Flight:
    """Advance the lanes, publish the chunks' checkpoints (stream order makes them safe from here on), count.
    O(rows + tokens published)."""
    lanes, metrics = core.lanes, core.metrics
    b.journal.clear()
    core.deltas.clear()
    core.resync = False
    core.step = core.cache.log.step = plan.step + plan.repeat - 1
    metrics.steps += plan.repeat
    metrics.overlapped += plan.repeat if core.flights else plan.repeat - 1 if core.policy.steps_in_flight else 0
    if len(plan.moves):
        metrics.move_count += len(plan.moves)
        metrics.move_bytes += moves.bytes_of(core, plan.moves)
        metrics.events["move"] += len(plan.moves)
    moves.written(core, plan)
    metrics.prefill_tokens += sum(r.end - r.start for r in b.prefill)
    ends = lanes.launch(b.rows, plan.lane, core.step)
    flight = Flight(plan, ticket, b.rows, b.prefill, b.snapshots, _written(core, b), ends or _ends_lane(core, b),
                    b.proposal, 0.0 if core.quiet is None else core.clock() - core.quiet)
    core.quiet = None
    if b.proposal is not None:
        metrics.drafts_offered += int(b.proposal.offered.sum())
        metrics.drafts_verified += sum(len(d) for d in b.proposal.drafts)
    for row in b.prefill:
        lane = row.seat.lane
        lanes.launched[lane] = row.seat.prefilled = row.end
        if row.samples and row.seat.end is None:
            lanes.phase[lane] = Phase.DECODE
    _count(core, b)
    _publish(core, b, plan.step)
    core.flights.append(flight)
    return flight


def _ends_lane(core: Core, b: Builder) -> bool:
    """Whether the commit of a prefill row may end its request, or a drafter's lanes wait for this commit."""
    lanes = core.lanes
    return core.drafter is not None or any(
        r.samples and (r.end + 1 >= lanes.limit[r.seat.lane] or bool(lanes.watched[r.seat.lane])) for r in b.prefill)


def _written(core: Core, b: Builder) -> list[tuple[Int32, int]]:
    span = core.span
    return [
        (r.seat.pages[r.start // span : -(-r.end // span)].copy(), r.start % span) for r in b.prefill
    ]


def _publish(core: Core, b: Builder, step: int) -> None:
    for row in b.prefill:
        seat = row.seat
        for depth, target, kind in row.targets:
            core.metrics.events["snapshot"] += 1
            seat.anchors.pop(depth, None)
            if depth <= seat.node_depth or not close.publish(core, seat, depth, target, kind, step):
                core.cache.arena.free_states(np.array([target], np.int32))
        for depth in [d for d in seat.slots if d <= row.end]:
            core.cache.arena.free_states(np.array([seat.slots.pop(depth)], np.int32))


def _count(core: Core, b: Builder) -> None:
    metrics = core.metrics
    metrics.events["restore"] += len(b.restores)
    for seat, first, kind in b.admitted:
        hit = seat.job.hit
        assert hit is not None
        metrics.events["admit"] += 1
        core.cache.log.add("admit", seat.job.request.id, seat.node_depth)
        if not first:
            metrics.resumed_tokens += seat.target - seat.node_depth
            continue
        if core.sessions is not None:
            core.sessions.computed(seat.job)
        metrics.requests += 1
        metrics.input_tokens += hit.input
        metrics.hit_tokens += hit.hit
        metrics.causes.update(hit.causes)
        if kind >= 0:
            metrics.hits += 1
            metrics.consumed += 1
            metrics.hits_by_kind[kind] += 1
