"""Admission: from the queue to a lane, with all bytes of the next phase or none."""

from __future__ import annotations

import numpy as np

from k3mem.plan import Seat
from k3mem.radix import Kind, Match
from k3mem.request import Hit
from k3mem.sched import anchors, follow, prefill, room
from k3mem.sched.builder import Builder
from k3mem.sched.close import retract
from k3mem.sched.core import Core
from k3mem.sched.job import Job, Seated, listed
from k3mem.types import NO_NODE, NO_STATE, Int32, NodeId, ScopeId, StateId


def admit(core: Core, b: Builder) -> None:
    """Seat waiting jobs in rank order while lanes, budget and bytes last. The first that does not fit keeps its
    place: nobody behind it is admitted past it, except past one that waits as a follower. Running prompts of no lower
    priority get their chunks before a job does; those of lower priority come after the queue. Where budget or lanes
    are out, those left may still have targets held for them that running prompts are about to pass."""
    core.blocked = False
    followers, queue = 0, core.queue
    if queue:
        prefill.add_rows(core, b, queue[0].rank[0])
    follow.forget_loans(core)
    while followers < len(queue):
        job = queue[followers]
        prefill.add_rows(core, b, job.rank[0])
        if prefill.budget_left(core, b) <= 0:
            follow.hold_targets(core, b, followers)
            return
        if not core.lanes.has_free:
            _stop_at(core, job, followers)
            follow.hold_targets(core, b, followers)
            return
        tokens = job.tokens[: job.count]
        found = match(core, job.scope, tokens, b.step)
        if core.policy.follow and follow.should_wait(core, b, job, tokens, found):
            followers += 1
            continue
        if not _seat(core, b, job, found):
            _stop_at(core, job, followers)
            return


def _stop_at(core: Core, job: Job, followers: int) -> None:
    """A job does not fit: note what could change that."""
    if _in_the_way(core, job) is not None:
        core.wanting = job
    core.blocked = followers == 0 and not core.ending and core.wanting is None


def preempt(core: Core) -> None:
    """Before a plan: retract the last rank, if it keeps a job of higher priority waiting. It gets no row from this
    plan on."""
    job, core.wanting = core.wanting, None
    victim = _in_the_way(core, job) if job is not None and job.reason is None else None
    if victim is not None:
        retract(core, victim)


def _in_the_way(core: Core, job: Job) -> Seated | None:
    """The last rank of those who run, if it is of lower priority than a job that waits; None while somebody leaves
    anyway."""
    if core.ending or len(core.priorities) < 2 or core.lanes.lowest() <= job.rank[0]:
        return None
    victim = core.lanes.last()
    return victim if victim is not None and victim.rank[0] > job.rank[0] else None


def match(core: Core, scope: ScopeId | None, tokens: Int32, step: int) -> Match:
    """What a prompt would resume from in a plan numbered `step`. `scope` None: one that nobody has used."""
    if scope is None or not core.policy.caching:
        node = NO_NODE if scope is None else core.cache.tree.root(scope)
        return Match(node, 0, NO_STATE, 0, 0, 0, 0)
    return core.cache.match(scope, tokens, len(tokens) - 1, step)


def hit_of(core: Core, scope: ScopeId | None, tokens: Int32, found: Match) -> Hit:
    """A match in words: what it gives a prompt, and why not more."""
    kind = int(core.cache.tree.info(found.node).kind) if found.depth else -1
    causes = {"never_seen": len(tokens)}
    if core.policy.caching:
        causes = core.cache.explain(scope, tokens, found, found.depth, len(tokens) - 1)
    return Hit(len(tokens), found.depth, max(found.kv, found.depth), max(found.known, found.depth), kind, causes,
               found.evicted)


def _seat(core: Core, b: Builder, job: Job, found: Match) -> bool:
    """Reserve, seat, and give the first chunk; False changes nothing but the room made."""
    tree, span = core.cache.tree, core.span
    shared = found.depth // span
    need = -(-(job.count + 1) // span) - shared
    tree.lock(found.node)
    taken = _reserve(core, b, found, need)
    if taken is None:
        tree.unlock(found.node)
        if found.depth and not core.lanes.running:  # alone: what it would resume from is all that stands in its way
            return _seat(core, b, job, _from_nothing(core, job, found))
        return False
    pages, state, in_place = taken
    b.journal.append(lambda: tree.unlock(found.node))
    if found.state != NO_STATE and not in_place:
        tree.touch(found.node)
    core.queue.remove(job)
    first = job.admission is None
    if first:
        job.admission = core.admissions
        core.admissions += 1
    b.journal.append(lambda: _requeue(core, job, first))
    seat = _new_seat(core, b, job, found, pages, state)
    _tell_device(core, b, seat, found, in_place)
    b.journal.append(lambda: _unseat(core, seat))
    _count(core, b, seat, found, in_place)
    prefill.add_chunk(core, b, seat)
    return True


def _from_nothing(core: Core, job: Job, found: Match) -> Match:
    """The match without its checkpoints."""
    root, evicted = core.cache.tree.root(job.scope), max(found.evicted, found.depth)
    return Match(root, 0, NO_STATE, found.known, found.kv, evicted, 0)


def _reserve(core: Core, b: Builder, found: Match, need: int) -> tuple[Int32, StateId, bool] | None:
    """(pages, working state, taken over in place). The last resort for a state is the restore's own source."""
    got = room.take(core, b, need, 1, room.Evict.ALL, found.node)
    if got is not None:
        return got[0], StateId(int(got[1][0])), False
    tree = core.cache.tree
    if found.state == NO_STATE or tree.info(found.node).lock > 1:
        return None
    got = room.take(core, b, need, 0, room.Evict.ALL, found.node)
    if got is None:
        return None
    info = tree.info(found.node)
    state = tree.take(found.node)
    core.metrics.takeovers += 1
    tokens = tree.path_tokens(found.node)
    b.journal.append(
        lambda: _put_back(core, found.node, tokens, state, Kind(info.kind), info.stamp)
    )
    return got[0], state, True


def _put_back(core: Core, node: NodeId, tokens: Int32, state: StateId, kind: Kind, stamp: int) -> None:
    core.cache.tree.publish(node, tokens, len(tokens), core.cache.tree.pages(node), state, kind, stamp)


def _new_seat(core: Core, b: Builder, job: Job, found: Match, pages: Int32, state: StateId) -> Seated:
    span = core.span
    shared = found.depth // span
    job.reserve(job.count + 1)  # its first tokens are booked with everybody's
    lane, count = core.lanes.take(), shared + len(pages)
    held = np.empty(-(-job.limit // span), np.int32)
    held[:shared] = core.cache.tree.pages(found.node)[:shared]
    held[shared:count] = pages
    seat = Seated(
        job=job, lane=lane, generation=int(core.lanes.generation[lane]), target=job.count, state=state,
        node=found.node, node_depth=found.depth, pages=held, held=listed(held, count), owned=shared,
        prefilled=found.depth,
        anchors=anchors.planned(core, job, job.count, found) if core.policy.caching else {},
    )
    core.lanes.sit(seat, found.depth, count * span, shared)
    b.lane_pages.append((lane, 0, held[:shared]))
    return seat


def _tell_device(core: Core, b: Builder, seat: Seated, found: Match, in_place: bool) -> None:
    job = seat.job
    b.seats.append(Seat(
        lane=seat.lane, generation=seat.generation, scope=core.cache.digest(job.scope), state=seat.state,
        depth=found.depth, prompt=job.prompt, limit=job.limit, sampling=job.request.sampling,
    ))
    if found.depth == 0:
        b.zero_states.append(seat.state)
        return
    if not in_place:
        b.restores.append((found.state, seat.state))
    rows = found.depth % core.span
    if rows:
        source = int(core.cache.tree.pages(found.node)[-1])
        b.copies.append((source, int(seat.pages[seat.owned]), rows))
        b.lane_pages.append((seat.lane, seat.owned, seat.pages[seat.owned : seat.owned + 1].copy()))
        seat.touched = seat.owned + 1


def _unseat(core: Core, seat: Seated) -> None:
    core.lanes.leave(seat.lane)
    core.ending.discard(seat.lane)


def _requeue(core: Core, job: Job, first: bool) -> None:
    """Back to the queue after a cancel, unless it was aborted while the plan was open. The number of a `first`
    admission is given back."""
    if first:
        job.admission = None
        core.admissions -= 1
    if job.reason is None:
        core.queue.add(job)
    else:
        core.forget(job)


def _count(core: Core, b: Builder, seat: Seated, found: Match, in_place: bool) -> None:
    """Counters of an admission, and what undoes them on cancel."""
    job, metrics = seat.job, core.metrics
    first = job.hit is None
    if job.hit is None:
        job.hit = hit_of(core, job.scope, job.tokens[: job.count], found)
        kind = job.hit.kind
    else:
        kind = int(core.cache.tree.info(found.node).kind) if found.depth else -1

    def undo() -> None:
        if first:
            job.hit = None

    b.journal.append(undo)
    b.admitted.append((seat, first, kind))
    metrics.peak_running = max(metrics.peak_running, core.lanes.running)
