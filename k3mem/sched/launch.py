"""Launch: what becomes true the moment a plan is on the stream."""

from __future__ import annotations

from k3mem.executor import Ticket
from k3mem.plan import Plan
from k3mem.sched import close, moves
from k3mem.sched.builder import EMPTY, NOBODY, Builder
from k3mem.sched.core import Core, Flight
from k3mem.sched.lanes import Phase, Rows


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
    if b.rows is NOBODY:  # shared by all plans that have none; a launched plan's know the others, too
        b.rows = Rows(EMPTY)
    ends = lanes.launch(b.rows, plan.lane, plan.sample, core.step) or core.drafter is not None
    span, written = core.span, []
    if b.proposal is not None:
        metrics.drafts_offered += int(b.proposal.offered.sum())
        metrics.drafts_verified += sum(len(d) for d in b.proposal.drafts)
    for row in b.prefill:
        seat = row.seat
        start, end, lane = row.start, row.end, seat.lane
        metrics.prefill_tokens += end - start
        written.append((seat.pages[start // span : -(-end // span)].copy(), start % span))
        lanes.launched[lane] = seat.prefilled = end
        if end == seat.target:
            ends = ends or end + 1 >= seat.job.limit or bool(lanes.watched[lane])
            if seat.end is None:
                lanes.phase[lane] = Phase.DECODE
    pause = 0.0 if core.quiet is None else core.clock() - core.quiet
    core.quiet = None
    flight = Flight(plan, ticket, b.rows, b.prefill, b.snapshots, written, ends, b.proposal, pause)
    _count(core, b)
    if b.prefill:
        _publish(core, b, plan.step)
    core.flights.append(flight)
    return flight


def _publish(core: Core, b: Builder, step: int) -> None:
    for row in b.prefill:
        seat = row.seat
        for depth, target, kind in row.targets:
            core.metrics.events["snapshot"] += 1
            seat.anchors.pop(depth, None)
            if depth <= seat.node_depth or not close.publish(core, seat, depth, target, kind, step):
                core.cache.arena.free_state(target)
        for depth in [d for d in seat.slots if d <= row.end] if seat.slots else ():
            core.cache.arena.free_state(seat.slots.pop(depth))


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
            seat.job.again += seat.target - seat.node_depth
            continue
        if core.sessions is not None:
            core.sessions.computed(seat.job)
        metrics.requests += 1
        metrics.input_tokens += hit.input
        metrics.hit_tokens += hit.hit
        for cause, tokens in hit.causes.items():
            metrics.causes[cause] += tokens
        if kind >= 0:
            metrics.hits += 1
            metrics.consumed += 1
            metrics.hits_by_kind[kind] += 1
