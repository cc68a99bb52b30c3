"""Bytes for a plan: all of a demand or nothing, after evictions and moves; and the way back."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from k3mem.pool import PAGE, STATE, Fit
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.types import NO_NODE, NO_STATE, Int32, NodeId, StateId


class Evict(IntEnum):
    """What may go to make room."""

    NOTHING = 0
    CHEAP = 1
    """What the policy puts first: KV without a checkpoint, superseded checkpoints."""
    ALL = 2
    """Whatever is not locked, in the policy's order."""


def take(core: Core, b: Builder, pages: int, states: int, evict: Evict = Evict.ALL) -> tuple[Int32, Int32] | None:
    """`pages` page ids and `states` state ids, or None: not now. What is taken returns on cancel.

    Moves that help are planned even when they do not yet suffice (they are progress); bounded by the policy's move
    budget a step.
    """
    if not make_room(core, b, pages, states, evict):
        return None
    arena = core.cache.arena
    got = arena.alloc(pages, states)
    if got is None:
        return None
    page_ids, state_ids = got
    b.fresh[PAGE].append(page_ids)
    b.fresh[STATE].append(state_ids)

    def give_back() -> None:
        if pages:
            arena.free_pages(page_ids)
        if states:
            arena.free_states(state_ids)

    b.journal.append(give_back)
    return page_ids, state_ids


def make_room(core: Core, b: Builder, pages: int, states: int, evict: Evict = Evict.ALL,
              node: NodeId = NO_NODE) -> bool:
    """Whether the demand can be allocated right now, after evictions and moves. With the `node` that a request would
    resume from, nothing is evicted for a demand that cannot fit beside it and what running requests hold."""
    cache, arena = core.cache, core.cache.arena
    if node != NO_NODE and arena.fits(pages, states) == Fit.NO and _hopeless(core, pages, states, node):
        return False
    if evict == Evict.ALL:
        fit = cache.room(pages, states)
    else:
        fit = cache.cheap_room(pages, states) if evict == Evict.CHEAP else arena.fits(pages, states)
    if fit == Fit.MOVES and core.move_left > 0:
        core.moves(b, arena.make_room(pages, states, core.move_left))
        fit = arena.fits(pages, states)
    return fit == Fit.NOW


def _hopeless(core: Core, pages: int, states: int, node: NodeId) -> bool:
    """Whether a demand cannot fit even with everything evicted that may be. O(lanes + pages of running requests)."""
    tree, arena, seats = core.cache.tree, core.cache.arena, core.lanes.taken()
    held = np.zeros(arena.page_id_end, np.bool_)
    for seat in seats:
        held[seat.pages[: seat.page_count]] = True
    nodes = {node, *(seat.node for seat in seats)}
    held[tree.pages(node)] = True
    kept = sum(tree.info(n).state != NO_STATE for n in nodes)
    private = arena.usage().live_states - tree.counters().checkpoints
    return not arena.capacity_for(pages + int(np.count_nonzero(held)), states + private + kept)


def take_state(core: Core, b: Builder, evict: Evict) -> StateId | None:
    """One state, or None."""
    got = take(core, b, 0, 1, evict)
    return None if got is None else StateId(int(got[1][0]))
