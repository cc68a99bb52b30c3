"""What every plan must obey beyond giving right tokens: who gets rows, bytes and targets, and in which order.

Looked at after planning and before launch, when queue, seats and plan stand side by side. Each raises Found.
"""

from __future__ import annotations

import numpy as np

from k3mem.fuzz.oracle import Found
from k3mem.plan import STATE, Plan, Row
from k3mem.pool import Fit
from k3mem.radix import Kind
from k3mem.sched import anchors
from k3mem.sched.core import Core
from k3mem.sched.job import End, Job, Seated
from k3mem.sched.lanes import Phase

MINOR = (Kind.CHUNK_END, Kind.INTERVAL)


def look(core: Core, plan: Plan, waited: dict[object, int], still: bool) -> None:
    """All of it. `waited`: plans for which each request had waited before this one. `still`: nothing has moved for it,
    written or not. O(plan + queue x lanes)."""
    moved(core, plan)
    victims(core, plan)
    reserved(core)
    chunks(core, plan)
    decodes(core, plan)
    named(core, plan)
    if still:
        targets(core, plan)
    followers(core, waited)


def moved(core: Core, plan: Plan) -> None:
    """Moves are bounded in bytes a step; the last entry may pass the bound."""
    states = int(np.count_nonzero(plan.moves[:, 1] == STATE))
    pages = len(plan.moves) - states
    size = pages * core.shape.page_bytes + states * core.shape.state_bytes
    if size > core.policy.move_budget + max(core.shape.page_bytes, core.shape.state_bytes):
        raise Found("oracle", f"plan {plan.step} moves {size} bytes, {core.policy.move_budget} are allowed")


def victims(core: Core, plan: Plan) -> None:
    """Who was retracted has no row."""
    rows = plan.lane
    wrong = set(rows[core.lanes.phase[rows] == Phase.FREE].tolist())
    if core.ending:
        wrong |= {lane for lane in rows.tolist() if core.lanes.seat(lane).end == End.RETRACT}
    if wrong:
        raise Found("oracle", f"plan {plan.step} has a row of lane {min(wrong)}, whose tenant was retracted or is gone")


def reserved(core: Core) -> None:
    """Who is let in has the pages of its prompt and the first one of decode; nobody's output is reserved."""
    assert core.open is not None
    for seat, _, _ in core.open.admitted:
        need = -(-(seat.job.count + 1) // core.span)
        if seat.page_count != need:
            raise Found("oracle", f"request {seat.job.request.id} was seated with {seat.page_count} pages, not {need}")


def chunks(core: Core, plan: Plan) -> None:
    """A chunk that does not end its prompt ends on the deepest grid depth that the budget reaches."""
    if core.capabilities.capture != "any":
        captured(core, plan)  # ends are drawn back to where the executor can capture
        return
    left, grid = core.policy.token_budget - int(plan.length.sum()), core.shape.grid
    ends = (plan.start + plan.length).tolist()
    for i in np.flatnonzero((plan.kind == Row.PREFILL) & ~plan.sample).tolist():
        deeper = ends[i] // grid * grid + grid
        seat = core.lanes.seat(int(plan.lane[i]))
        if deeper <= seat.target and deeper - ends[i] <= left:
            raise Found("oracle", f"plan {plan.step}: a chunk ends at {ends[i]}; the budget reaches {deeper}")


def captured(core: Core, plan: Plan) -> None:
    """No chunk passes a depth that could have been captured had it ended there: one that starts off the chunk grid ends
    at the next grid depth at most, where only chunk multiples from its start can be captured; and at its first anchor,
    where only its end can."""
    assert core.open is not None
    grid, final = core.shape.grid, core.capabilities.capture == "final"
    for row in core.open.prefill:
        off = row.start % core.shape.state_chunk and row.end > (row.start // grid + 1) * grid
        passed = [depth for depth in row.seat.anchors if row.start < depth < row.end]
        if passed and (final or off):
            raise Found("oracle", f"plan {plan.step}: a chunk [{row.start}, {row.end}) passes {passed[0]}, where a "
                                  "checkpoint is wanted and cannot be captured")


def decodes(core: Core, plan: Plan) -> None:
    """Decode and verify rows come first: no prompt gets a chunk while a lane that could decode has no row."""
    if not (plan.kind == Row.PREFILL).any():
        return
    lanes = core.lanes
    most = 1 if core.drafter is None else core.window
    ready = (lanes.phase == Phase.DECODE) & (lanes.launched + 1 < lanes.limit)
    ready &= lanes.launched + most <= lanes.covered  # who lacks a page may have to wait for it
    if core.drafter is not None:
        ready &= lanes.inflight == 0
    idle = np.setdiff1d(np.flatnonzero(ready), plan.lane)
    if len(idle):
        raise Found("oracle", f"plan {plan.step} computes prompts, and lane {idle[0]} decodes nothing")


def named(core: Core, plan: Plan) -> None:
    """A conditional target that was not written yet is named again by every plan that may pass its depth."""
    if core.policy.interval is None and not core.policy.deterministic:
        return  # decoding leaves nothing on its way
    told = {(row, depth, target) for row, depth, target in plan.snapshots.tolist()}
    ends = (plan.start + plan.length * plan.repeat).tolist()
    for row in np.flatnonzero(plan.kind != Row.PREFILL).tolist():
        seat = core.lanes.seat(int(plan.lane[row]))
        target, depth = seat.extra.pending, seat.extra.pending_depth
        if target is None or not plan.start[row] < depth <= ends[row] or depth <= seat.node_depth:
            continue
        if (row, depth, target) not in told:
            raise Found("oracle", f"plan {plan.step}: lane {seat.lane} may pass {depth}, and its target is not named")


def targets(core: Core, plan: Plan) -> None:
    """Where states are short, targets that matter come before chunk ends, and whoever waits before both. Not where
    entries moved: moves that an earlier demand had to pay for may be enough for a later one."""
    b = core.open
    assert b is not None
    taken = [(row, depth, kind) for row in b.prefill for depth, _, kind in row.targets]
    ends = [(row, depth) for row, depth, kind in taken if kind == Kind.CHUNK_END]
    if not core.policy.caching or not ends:
        return
    for row in b.prefill:
        has = {depth for other, depth, _ in taken if other is row}
        for depth, kind in anchors.inside(core, row.seat, row.start, row.end):
            if kind not in MINOR and depth not in has:
                raise Found("oracle", f"plan {plan.step}: no state for the {kind.name} at {depth}, but for a chunk end")
    head = next(iter(core.queue), None)
    if head is None or head.waits or not core.lanes.has_free or plan.length.sum() >= core.policy.token_budget:
        return
    pages = -(-(head.count + 1) // core.span)
    if core.policy.split is None and core.cache.arena.fits(pages, 0) == Fit.NOW:
        raise Found("oracle", f"plan {plan.step} leaves {len(ends)} chunk ends; request {head.request.id} would fit "
                              "in their place")


def followers(core: Core, waited: dict[object, int]) -> None:
    """Who waits has a running leader that will pass, or passes now, a slotted depth of their common prefix, above what
    it could resume from; the leader has its rank."""
    assert core.open is not None
    passed: dict[int, set[int]] = {}
    for row in core.open.prefill:
        passed[row.seat.lane] = {depth for depth, _, _ in row.targets}
    for job in core.queue:
        if job.waits <= waited.get(job.request.id, 0):
            continue
        tokens = job.tokens[: job.count]
        hit = core.cache.match(job.scope, tokens, job.count - 1, core.step + 1).depth
        if not any(_leads(core, seat, job, hit, passed) for seat in core.lanes.taken()):
            raise Found("oracle", f"request {job.request.id} waits, and no leader will pass what it waits for")


def _leads(core: Core, leader: Seated, job: Job, hit: int, passed: dict[int, set[int]]) -> bool:
    if leader.end is not None or leader.job.scope != job.scope or leader.rank > job.rank:
        return False
    depths = set(leader.slots) | passed.get(leader.lane, set())
    if any(leader.anchors.get(depth) == Kind.CHUNK_END for depth in leader.slots):
        raise Found("oracle", f"what a follower waits for on lane {leader.lane} is superseded by the next chunk")
    return any(hit < d < job.count and np.array_equal(leader.job.tokens[:d], job.tokens[:d]) for d in depths)
