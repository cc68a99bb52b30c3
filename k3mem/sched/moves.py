"""Moves of a plan: in the order of their planning, without those that would carry nothing."""

from __future__ import annotations

import numpy as np

from k3mem.plan import PAGE, STATE, Plan
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.types import Bool, Int32


def add(core: Core, b: Builder, moves: Int32) -> None:
    """Put one batch of moves into the plan and journal it. Entries to which nothing has been written yet only change
    their place. O(moves)."""
    if not len(moves):
        return
    arena = core.cache.arena
    b.journal.append(lambda: arena.undo(_still_there(core, moves)))
    stale = np.zeros(len(moves), np.bool_)
    for kind in (PAGE, STATE):
        of_kind = np.flatnonzero(moves[:, 1] == kind)
        if len(of_kind):
            ids = arena.ids_at(kind, moves[of_kind, 3])
            stale[of_kind] = core.reserved[kind].get(ids)
    real = moves[~stale]
    b.move(real)
    core.move_left -= bytes_of(core, real)


def bytes_of(core: Core, moves: Int32) -> int:
    """Bytes that these moves carry. O(moves)."""
    pages = int(np.count_nonzero(moves[:, 1] == PAGE))
    return pages * core.shape.page_bytes + (len(moves) - pages) * core.shape.state_bytes


def drop_dead(core: Core, b: Builder) -> None:
    """Take out of the plan the moves of entries that this plan evicted afterwards, whoever has their places now.
    O(moves)."""
    if len(b.moves) == 1 and not any(_gone(core, kind, b.moves[0]).any() for kind in set(b.moves[0][:, 1].tolist())):
        return
    dead: set[tuple[int, int]] = set()
    """(kind, place) whose content, as it stands before the batches looked at already, nobody needs."""
    known: set[tuple[int, int]] = set()
    for i in range(len(b.moves) - 1, -1, -1):
        batch, keep = b.moves[i], np.ones(len(b.moves[i]), np.bool_)
        for kind in (PAGE, STATE):
            of_kind = np.flatnonzero(batch[:, 1] == kind)
            if not len(of_kind):
                continue
            gone = _gone(core, kind, batch)
            if not (gone.any() or dead):
                known.update((kind, place) for place in batch[of_kind, 2:4].ravel().tolist())
                dead.update((kind, place) for place in batch[of_kind, 3].tolist())
                continue
            for j, now_gone in zip(of_kind.tolist(), gone.tolist(), strict=True):
                source, destination = (kind, int(batch[j, 2])), (kind, int(batch[j, 3]))
                keep[j] = not (destination in dead if destination in known else now_gone)
                known |= {source, destination}
                dead.add(destination)
                (dead.discard if keep[j] else dead.add)(source)
        b.moves[i] = batch[keep]


def _gone(core: Core, kind: int, batch: Int32) -> Bool:
    """For the moves of one kind: whether their destination holds nothing written by now."""
    ids = core.cache.arena.ids_at(kind, batch[batch[:, 1] == kind, 3])
    return (ids < 0) | core.reserved[kind].get(ids)


def written(core: Core, plan: Plan) -> None:
    """A launched plan writes what it hands to lanes, and every state that it zeroes, restores or captures into.
    O(plan)."""
    if len(plan.lane_pages):
        core.reserved[PAGE].set(plan.lane_pages[:, 2], False)
    if plan.seats or len(plan.snapshots):
        core.reserved[STATE].set(plan.zero_states, False)
        core.reserved[STATE].set(plan.restores[:, 1], False)
        core.reserved[STATE].set(plan.snapshots[:, 2], False)


def _still_there(core: Core, moves: Int32) -> Int32:
    """Moves whose entry is still at its destination: what was evicted meanwhile needs no way back."""
    alive = np.zeros(len(moves), np.bool_)
    for kind in (PAGE, STATE):
        of_kind = moves[:, 1] == kind
        alive[of_kind] = core.cache.arena.ids_at(kind, moves[of_kind, 3]) >= 0
    return moves[alive]
