"""The end of a tenancy: finished, retracted or aborted. A lane that ends gets no row from then on; what it owns is
published or given back when its last launched step has committed."""

from __future__ import annotations

import numpy as np

from k3mem.radix import Kind, Note
from k3mem.sched.core import Core
from k3mem.sched.job import End, Seated
from k3mem.sched.lanes import Phase
from k3mem.types import NO_STATE, Int32, StateId

KINDS = {End.FINISH: Kind.ANSWER_END, End.RETRACT: Kind.RETRACT, End.ABORT: Kind.RETRACT}


def retract(core: Core, seat: Seated) -> None:
    """Take the lane from a job that goes back to the queue with its tokens and its rank; at once if no row of it is
    in flight, so that its bytes count already. The open plan, if there is one, must have no row of it."""
    core.metrics.retractions += 1
    core.metrics.events["victim"] += 1
    seat.job.retractions += 1
    core.cache.log.add("retract", seat.job.request.id)
    mark(core, seat, End.RETRACT)
    settle(core, seat)


def mark(core: Core, seat: Seated, end: End) -> None:
    """No more rows for this seat. `settle` closes it once nothing of it is in flight."""
    seat.end = end
    core.lanes.phase[seat.lane] = Phase.DRAIN
    core.ending.add(seat.lane)


def settle(core: Core, seat: Seated) -> None:
    """Close a draining seat if no launched row of it is uncommitted."""
    if core.lanes.inflight[seat.lane] == 0:
        close(core, seat)


def close(core: Core, seat: Seated) -> None:
    """Publish what the seat computed, free the rest, free the lane. A retracted job returns to the queue."""
    end, job = seat.end, seat.job
    assert end is not None
    if core.policy.caching:
        _publish_last(core, seat, KINDS[end])
        core.pins.published(job.request.session, seat.node, job.ticket)
        if end == End.FINISH:
            core.cache.noted(seat.node, Note.UNKNOWN, job.ticket, core.now)
    release(core, seat)
    if end == End.RETRACT:
        core.queue.add(job)
    else:
        core.forget(job)


def _publish_last(core: Core, seat: Seated, kind: Kind) -> None:
    """Donate the working state itself, at the depth it has absorbed; or, where only grid depths may be kept, the
    latest snapshot. Nothing is copied."""
    depth = int(core.lanes.launched[seat.lane])
    if core.policy.deterministic or not core.policy.answer_ends:
        if seat.extra.latest is not None:
            state, on_grid = seat.extra.donate()
            if not publish(core, seat, on_grid, state, kind, int(core.lanes.last_step[seat.lane])):
                core.cache.arena.free_state(state)
        core.cache.tree.remember(seat.node, seat.job.tokens, depth)
        return
    if depth <= seat.node_depth and core.cache.tree.state(seat.node) != NO_STATE or depth == 0:
        return
    if publish(core, seat, depth, seat.state, kind, int(core.lanes.last_step[seat.lane])):
        seat.state = NO_STATE


def publish(core: Core, seat: Seated, depth: int, state: StateId, kind: Kind, stamp: int) -> bool:
    """Publish a seat's tokens up to `depth` with a checkpoint there; whether the tree took the state. The seat's
    lock moves to the new node. O(new tokens)."""
    cache, job = core.cache, seat.job
    kept = cache.keep(seat.node, job.tokens, depth, seat.pages[: seat.page_count], state, kind, stamp)
    cache.tree.lock(kept.node)
    cache.tree.unlock(seat.node)
    seat.node, seat.node_depth = kept.node, depth
    seat.owned = max(seat.owned, depth // core.span)
    if len(kept.changed) and seat.end is None:
        for first, pages in _runs(kept.changed.tolist(), kept.pages):
            core.deltas.append((seat, first, pages))
    return kept.taken


def _runs(index: list[int], pages: Int32) -> list[tuple[int, Int32]]:
    """(first index, pages) of the runs in ascending indices."""
    ends = [i for i in range(1, len(index)) if index[i] != index[i - 1] + 1]
    return [(index[a], pages[a:b]) for a, b in zip([0, *ends], [*ends, len(index)], strict=True)]


def release(core: Core, seat: Seated) -> None:
    """Give back all that a seat owns and its lane."""
    arena = core.cache.arena
    if seat.owned < seat.page_count:
        arena.free_pages(seat.pages[seat.owned : seat.page_count])
    states = [*seat.slots.values(), *seat.extra.release()]
    if seat.state != NO_STATE:
        states.append(seat.state)
    if states:
        arena.free_states(np.array(states, np.int32))
    core.cache.tree.unlock(seat.node)
    core.lanes.leave(seat.lane)
    core.ending.discard(seat.lane)
    core.wanting = None
