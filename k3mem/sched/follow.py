"""One prefill for many: when a waiting request had better wait for a running one that computes its prefix."""

from __future__ import annotations

import numpy as np

from k3mem.radix import Kind, Match
from k3mem.sched import room
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.sched.job import Job, Seated
from k3mem.sched.lanes import Phase
from k3mem.types import Int32

MAX_SLOTS = 2
"""Targets that one leader holds for its followers: what a request owns is bounded at any length."""


def should_wait(core: Core, b: Builder, job: Job, tokens: Int32, found: Match) -> bool:
    """Whether `job` waits this plan: a running leader will pass a depth, inside their common prefix and above the
    job's own hit, for which a target is taken. It holds nothing, is asked again at every plan, and never waits more
    plans than its own cold prefill would take."""
    if not _patient(core, job) or not core.policy.caching:
        return False
    for leader in core.lanes.in_phase(Phase.PREFILL):
        if leader.job.scope == job.scope and _joins(core, b, leader, job, tokens, found):
            core.metrics.followers += job.waits == 0
            job.waits += 1
            b.journal.append(lambda: _unwait(job))
            return True
    return False


def hold_targets(core: Core, b: Builder, jobs: list[Job]) -> None:
    """Judge jobs that this plan could not admit anyway, at most `max_running` of them: the leader must not pass a
    depth that one of them would wait for. It counts as no waiting. O(lanes) a job, and where a leader shares a page
    with it O(its tokens)."""
    if not core.policy.follow or not core.policy.caching:
        return
    leaders = core.lanes.in_phase(Phase.PREFILL)
    for job in jobs[: core.policy.max_running] if leaders else ():
        tokens = job.tokens[: job.count]
        near = [s for s in leaders if s.job.scope == job.scope and _same_start(core, s, tokens)]
        if not near or not _patient(core, job):
            continue
        found = core.cache.match(job.scope, tokens, len(tokens) - 1, b.step)
        for leader in near:
            if _joins(core, b, leader, job, tokens, found):
                break


def _patient(core: Core, job: Job) -> bool:
    return job.waits < -(-job.count // core.policy.token_budget)


def _same_start(core: Core, leader: Seated, tokens: Int32) -> bool:
    grid = core.shape.grid
    return min(len(tokens), leader.target) > grid and bool((leader.job.tokens[:grid] == tokens[:grid]).all())


def _joins(core: Core, b: Builder, leader: Seated, job: Job, tokens: Int32, found: Match) -> bool:
    """Whether the leader will pass a depth for the job, with a target held there; it is lent the job's rank then."""
    if _meeting(core, b, leader, tokens, found) is None:
        return False
    leader.lent = job.rank if leader.lent is None else min(leader.lent, job.rank)
    core.lent.append(leader)
    return True


def forget_loans(core: Core) -> None:
    """Take back what followers lent: they are about to be judged again. Rows planned before that still see the loans
    of the last judgement. O(loans)."""
    for seat in core.lent:
        seat.lent = None
    core.lent.clear()


def _unwait(job: Job) -> None:
    job.waits -= 1


def _meeting(core: Core, b: Builder, leader: Seated, tokens: Int32, found: Match) -> int | None:
    """The deepest depth that the leader has still to pass, with a target held for it; None where there is none."""
    grid = core.shape.grid
    launched = int(core.lanes.launched[leader.lane])
    if core.capabilities.capture == "final":
        launched = max([launched, *(r.end for r in b.prefill if r.seat is leader)])
    floor = max(found.depth, launched)
    most = min(len(tokens) - 1, leader.target - 1)
    if most // grid * grid <= floor:
        return None
    common = common_prefix(tokens[:most], leader.job.tokens[:most])
    depth = common // grid * grid
    if depth <= floor:
        return None
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
    """Leading tokens that two arrays of equal length share. Compares in growing pieces. O(shared)."""
    at, step, n = 0, 64, min(len(a), len(b))
    while at < n:
        end = min(n, at + step)
        differ = np.flatnonzero(a[at:end] != b[at:end])
        if len(differ):
            return at + int(differ[0])
        at, step = end, step * 4
    return n
