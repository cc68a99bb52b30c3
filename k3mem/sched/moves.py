"""Moves of a plan: in the order of their planning, without those that would carry nothing."""

from __future__ import annotations

import numpy as np

from k3mem.native import ffi, lib
from k3mem.plan import PAGE, STATE, Plan
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.types import Int32

INTS, LONGS = ffi.typeof("int32_t[]"), ffi.typeof("int64_t[]")
_PAGES = ffi.new("int64_t *")


def add(core: Core, b: Builder, moves: Int32) -> None:
    """Put one batch of moves into the plan and journal it. Entries to which nothing has been written yet only change
    their place. O(moves)."""
    if not len(moves):
        return
    arena = core.cache.arena
    b.journal.append(lambda: arena.undo(_still_there(core, moves)))
    real = moves.copy()
    n = lib.k3_moves_real(arena.raw, core.reserved[PAGE].raw, ffi.from_buffer(INTS, real), len(real), _PAGES)
    b.move(real[:n])
    core.move_left -= _bytes(core, n, _PAGES[0])


def bytes_of(core: Core, moves: Int32) -> int:
    """Bytes that these moves carry. O(moves)."""
    return _bytes(core, len(moves), lib.k3_moves_pages(ffi.from_buffer(INTS, moves), len(moves)))


def _bytes(core: Core, moves: int, pages: int) -> int:
    return pages * core.shape.page_bytes + (moves - pages) * core.shape.state_bytes


def drop_dead(core: Core, b: Builder) -> None:
    """Take out of the plan the moves of entries that this plan evicted afterwards, whoever has their places now.
    O(moves)."""
    moves = b.moves[0] if len(b.moves) == 1 else np.concatenate(b.moves)
    n, size = len(moves), 4 << len(moves).bit_length()
    alive = lib.k3_moves_alive(core.cache.arena.raw, core.reserved[PAGE].raw, ffi.from_buffer(INTS, moves), n,
                               ffi.new(LONGS, size), size)
    b.moves = [moves if alive == n else moves[:alive]]


def written(core: Core, plan: Plan) -> None:
    """A launched plan writes what it hands to lanes, and every state that it zeroes, restores or captures into.
    O(plan)."""
    pages, states = core.reserved
    if len(plan.lane_pages):
        pages.set_column(plan.lane_pages, 2, False)
    if len(plan.snapshots):
        states.set_column(plan.snapshots, 2, False)
    if plan.seats:
        states.set(plan.zero_states, False)
        states.set_column(plan.restores, 1, False)


def _still_there(core: Core, moves: Int32) -> Int32:
    """Moves whose entry is still at its destination: what was evicted meanwhile needs no way back."""
    alive = np.zeros(len(moves), np.bool_)
    for kind in (PAGE, STATE):
        of_kind = moves[:, 1] == kind
        alive[of_kind] = core.cache.arena.ids_at(kind, moves[of_kind, 3]) >= 0
    return moves[alive]
