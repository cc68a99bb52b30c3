"""Bytes for a plan: all of a demand or nothing, after evictions and moves; and the way back."""

from __future__ import annotations

import numpy as np

from k3mem.pool import Fit
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.types import NO_NODE, Int32, NodeId, StateId

EMPTY = np.zeros(0, np.int32)


def take(core: Core, b: Builder, pages: int, states: int, *, evict: bool = True) -> tuple[Int32, Int32] | None:
    """`pages` page ids and `states` state ids, or None: not now. What is taken returns on cancel.

    With `evict`, checkpoints go in the policy's order until the demand fits. Moves that help are planned even when
    they do not yet suffice (they are progress); bounded by the policy's move budget a step.
    """
    if not make_room(core, b, pages, states, evict=evict):
        return None
    arena = core.cache.arena
    got = arena.alloc(pages, states)
    if got is None:
        return None
    page_ids, state_ids = got

    def give_back() -> None:
        if pages:
            arena.free_pages(page_ids)
        if states:
            arena.free_states(state_ids)

    b.journal.append(give_back)
    return page_ids, state_ids


def make_room(core: Core, b: Builder, pages: int, states: int, *, evict: bool = True,
              protect: NodeId = NO_NODE) -> bool:
    """Whether the demand can be allocated right now, after evictions and moves."""
    arena = core.cache.arena
    fit = core.cache.room(pages, states, protect) if evict else arena.fits(pages, states)
    if fit == Fit.MOVES and core.move_left > 0:
        core.moves(b, arena.make_room(pages, states, core.move_left))
        fit = arena.fits(pages, states)
    return fit == Fit.NOW


def take_state(core: Core, b: Builder, *, evict: bool) -> StateId | None:
    """One state, or None."""
    got = take(core, b, 0, 1, evict=evict)
    return None if got is None else StateId(int(got[1][0]))
