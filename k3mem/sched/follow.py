"""One prefill for many: when a waiting request had better wait for a running one that computes its prefix."""

from __future__ import annotations

from k3mem.native import ffi, lib
from k3mem.radix import Kind, Match
from k3mem.sched import room
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.sched.job import Job, Rank, Seated
from k3mem.types import Int32

INTS = ffi.typeof("int32_t[]")
MAX_SLOTS = 2
"""Targets that one leader holds for its followers: what a request owns is bounded at any length."""

MOST_SHARED = 64
"""Leaders whose common prefix with a waiting job is remembered."""


def should_wait(core: Core, b: Builder, job: Job, tokens: Int32, found: Match) -> bool:
    """Whether `job` waits this plan: a running leader will pass a depth, inside their common prefix and above the
    job's own hit, for which a target is taken. It holds nothing, is asked again at every plan, and never waits more
    plans than its own cold prefill would take."""
    if not _patient(core, job) or not core.policy.caching:
        return False
    for leader in core.lanes.prompts():
        if _alike(leader, job) and _joins(core, b, leader, job, tokens, found):
            core.metrics.followers += job.waits == 0
            job.waits += 1
            b.journal.append(lambda: _unwait(job))
            return True
    return False


def hold_targets(core: Core, b: Builder, at: int) -> None:
    """Judge those from place `at` of the queue on, whom this plan could not admit anyway, at most `max_running` of
    them: the leader must not pass a depth that one of them would wait for. It counts as no waiting. Costs nothing for
    those who begin like no leader, and for those to whom a leader has nothing left to give."""
    leaders = core.lanes.prompts() if core.policy.follow and core.policy.caching else []
    if not leaders or at >= len(core.queue):
        return
    first = core.queue[at].rank
    last = core.queue[min(len(core.queue), at + core.policy.max_running) - 1].rank
    near: dict[Rank, tuple[Job, list[Seated]]] = {}
    for leader in leaders:
        if leader.job.opening is not None:
            for job in core.queue.alike(leader.job.scope, leader.job.opening, first, last):
                near.setdefault(job.rank, (job, []))[1].append(leader)
    for rank in sorted(near):
        job, beside = near[rank]
        tokens = job.tokens[: job.count]
        if not _patient(core, job) or not any(_ahead(core, b, leader, job, tokens) for leader in beside):
            continue
        found = core.cache.match(job.scope, tokens, len(tokens) - 1, b.step)
        for leader in beside:
            if _joins(core, b, leader, job, tokens, found):
                break


def _patient(core: Core, job: Job) -> bool:
    return job.waits < -(-job.count // core.policy.token_budget)


def _alike(leader: Seated, job: Job) -> bool:
    """Whether both begin with the same grid of tokens, and go on, in one scope: only then can a depth be common to
    both. O(grid)."""
    return leader.job.opening is not None and leader.job.scope == job.scope and leader.job.opening == job.opening


def _joins(core: Core, b: Builder, leader: Seated, job: Job, tokens: Int32, found: Match) -> bool:
    """Whether the leader will pass a depth for the job, with a target held there; it is lent the job's rank then."""
    depth = _ahead(core, b, leader, job, tokens)
    if depth <= found.depth or _meeting(core, b, leader, depth) is None:
        return False
    core.lanes.lend(leader, job.rank if leader.lent is None else min(leader.lent, job.rank))
    core.lent.append(leader)
    return True


def forget_loans(core: Core) -> None:
    """Take back what followers lent: they are about to be judged again. Rows planned before that still see the loans
    of the last judgement. O(loans)."""
    for seat in core.lent:
        if core.lanes.seats[seat.lane] is seat:
            core.lanes.lend(seat, None)
    core.lent.clear()


def _unwait(job: Job) -> None:
    job.waits -= 1


def _ahead(core: Core, b: Builder, leader: Seated, job: Job, tokens: Int32) -> int:
    """The deepest grid depth that both prompts pass in common, if the leader has still to pass it, else 0. O(what they
    share), once for each pair."""
    grid, key = core.grid, (int(leader.lane), leader.generation)
    depth = job.shared.get(key)
    if depth is None:
        if len(job.shared) >= MOST_SHARED:
            job.shared.clear()
        most = min(len(tokens) - 1, leader.target - 1)
        depth = job.shared[key] = common_prefix(tokens[:most], leader.job.tokens[:most]) // grid * grid
    launched = int(core.lanes.launched[leader.lane])
    if core.capabilities.capture == "final":
        launched = max([launched, *(r.end for r in b.prefill if r.seat is leader)])
    return depth if depth > launched else 0


def _meeting(core: Core, b: Builder, leader: Seated, depth: int) -> int | None:
    """The depth, with a target of the leader's held for it; None where there is none to be had."""
    if depth in leader.slots:
        return depth
    if len(leader.slots) >= MAX_SLOTS:
        return None
    target = room.take_state(core, b, room.Evict.CHEAP)
    if target is None:
        return None
    new = depth not in leader.anchors
    leader.anchors.setdefault(depth, Kind.BRANCH)
    leader.slots[depth] = target

    def back() -> None:
        leader.slots.pop(depth, None)
        if new:
            leader.anchors.pop(depth, None)

    b.journal.append(back)
    return depth


def common_prefix(a: Int32, b: Int32) -> int:
    """Leading tokens that two arrays share. O(shared)."""
    return int(lib.k3_tokens_common(ffi.from_buffer(INTS, a), ffi.from_buffer(INTS, b), min(len(a), len(b))))
