"""Bytes for a plan: all of a demand or nothing, after evictions and moves; and the way back."""

from __future__ import annotations

from enum import IntEnum
from functools import partial

from k3mem.pool import PAGE, STATE, Fit
from k3mem.sched import moves
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


def take(core: Core, b: Builder, pages: int, states: int, evict: Evict = Evict.ALL,
         node: NodeId = NO_NODE) -> tuple[Int32, Int32] | None:
    """`pages` page ids and `states` state ids, or None: not now. What is taken returns on cancel. `node`: as for
    `make_room`.

    Moves that help are planned even when they do not yet suffice (they are progress); bounded by the policy's move
    budget a step.
    """
    arena = core.cache.arena
    got = arena.alloc(pages, states)
    if got is None:
        got = arena.alloc(pages, states) if make_room(core, b, pages, states, evict, node=node) else None
        if got is None:
            return None
    page_ids, state_ids = got
    if pages:
        core.reserved[PAGE].set(page_ids, True)
    if states:
        core.reserved[STATE].set(state_ids, True)

    def give_back() -> None:
        if pages:
            arena.free_pages(page_ids)
        if states:
            arena.free_states(state_ids)

    b.journal.append(give_back)
    return page_ids, state_ids


def make_room(core: Core, b: Builder, pages: int, states: int, evict: Evict = Evict.ALL,
              node: NodeId = NO_NODE) -> bool:
    """Whether the demand can be allocated right now, after evictions and moves. `node`: what a request would resume
    from, and keeps beside the demand."""
    cache, arena = core.cache, core.cache.arena
    fit = arena.fits(pages, states)
    if fit == Fit.NO and evict != Evict.NOTHING and not hopeless(core, b, pages, states, node):
        fit = cache.room(pages, states) if evict == Evict.ALL else cache.cheap_room(pages, states)
        while fit == Fit.NO and evict == Evict.ALL and core.pins.give_one(int(core.policy.pin_share * arena.state_top)):
            core.metrics.events["victim"] += 1
            fit = cache.room(pages, states)
    if fit == Fit.MOVES and core.move_left > 0:
        moves.add(core, b, arena.make_room(pages, states, core.move_left))
        fit = arena.fits(pages, states)
    return fit == Fit.NOW


def hopeless(core: Core, b: Builder, pages: int, states: int, node: NodeId) -> bool:
    """Whether a demand would not fit even if everything went that no running request needs: then nothing of the cache
    should go for it. What stays is bounded from below by the lanes' own pages and states, the checkpoints they stand
    on, and of the pages they share the longest path under each first page. O(lanes + rows + pages of `node`)."""
    tree, arena, shared = core.cache.tree, core.cache.arena, dict[int, int]()
    if core.policy.split is None:
        cached = tree.counters()
        free = (cached.checkpoints - cached.locks) * arena.state_bytes  # unlocked checkpoints alone, at the least
        if free >= pages * arena.page_bytes + states * arena.state_bytes:
            return False
    seats = core.lanes.taken()
    nodes = {seat.node for seat in seats}
    paths = [(seat.pages, seat.owned) for seat in seats]
    if node != NO_NODE:
        nodes.add(node)
        own = tree.pages(node)
        paths.append((own, len(own)))
    for held, count in paths:
        if count:
            first = int(held[0])
            shared[first] = max(shared.get(first, 0), count)
    for seat in seats:
        pages += seat.page_count - seat.owned
        states += (seat.state != NO_STATE) + len(seat.slots)
        states += (seat.extra.latest is not None) + (seat.extra.pending is not None)
    states += sum(tree.state(n) != NO_STATE for n in nodes)
    states += sum(len(row.targets) for row in b.prefill)
    return not core.cache.arena.capacity_for(pages + sum(shared.values()), states)


def take_state(core: Core, b: Builder, evict: Evict) -> StateId | None:
    """One state, or None. It returns on cancel."""
    arena = core.cache.arena
    state = arena.alloc_state()
    if state is None:
        state = arena.alloc_state() if make_room(core, b, 0, 1, evict) else None
        if state is None:
            return None
    core.reserved[STATE].set_one(state, True)
    b.journal.append(partial(arena.free_state, state))
    return state
