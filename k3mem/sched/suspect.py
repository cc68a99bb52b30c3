"""The invariants of seats, pages, states and locks over arrays of all lanes: whether anything is wrong at all. What is
wrong, `check` then says, one object at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from k3mem.plan import PAGE, Row
from k3mem.radix import Walk
from k3mem.sched.core import Core
from k3mem.sched.follow import MAX_SLOTS
from k3mem.sched.job import COUNT, Seated
from k3mem.sched.lanes import Phase
from k3mem.types import Bool, Int32, Int64

LANE, NODE, DEPTH, OWNED, SCOPE, TARGET, PREFILLED, LIMIT, ENDS, STATE = range(10)
"""Columns of `Tables.word`."""


@dataclass(slots=True)
class Tables:
    """All seats' words, and all entries of their page lists, lane after lane."""

    seats: list[Seated]
    word: Int64
    """[seats, 10]"""
    counts: Int64
    """[seats] pages in each list."""
    page: Int32
    """[sum(counts)]"""
    index: Int64
    """Place of each page in its list ..."""
    of: Int64
    """... and whose list it is: a number of a seat."""

    @classmethod
    def of_core(cls, core: Core) -> Tables:
        """O(lanes + pages)."""
        seats = core.lanes.taken()
        word = np.array([
            (s.lane, s.node, s.node_depth, s.owned, s.job.scope, s.target, s.prefilled, s.job.limit, s.end is not None,
             s.state) for s in seats
        ], np.int64).reshape(-1, 10)
        counts = core.lanes.held[word[:, LANE], COUNT]
        lists = [s.pages[:n] for s, n in zip(seats, counts.tolist(), strict=True)]
        of = np.repeat(np.arange(len(seats)), [len(pages) for pages in lists])
        page = np.concatenate(lists) if lists else np.zeros(0, np.int32)
        first = np.cumsum(counts) - counts
        index = np.arange(len(page)) - first[of] if len(page) == counts.sum() else np.zeros(len(page), np.int64)
        return cls(seats, word, counts, page, index, of)


def lanes(core: Core, t: Tables) -> Bool:
    """[seats] whether a lane's numbers do not agree with its seat, its job or its rows in flight. O(lanes + rows)."""
    table, lane, span = core.lanes, t.word[:, LANE], core.span
    count = table.text[lane, COUNT]
    sampled = np.zeros(len(table), np.int64)
    for flight in core.flights:
        plan = flight.plan
        tokens = np.where(plan.kind == Row.PREFILL, 1, plan.length.astype(np.int64) * plan.repeat)
        np.add.at(sampled, plan.lane[plan.sample], tokens[plan.sample])
    target, prefilled, ends = t.word[:, TARGET], t.word[:, PREFILLED], t.word[:, ENDS] != 0
    prefills = prefilled < target
    expected = np.where(prefills, prefilled, count - 1 + sampled[lane])
    phase = np.where(ends, Phase.DRAIN, np.where(prefills, Phase.PREFILL, Phase.DECODE))
    least, touched = -(-expected // span), table.touched[lane]
    ending = np.zeros(len(table), np.bool_)
    ending[list(core.ending)] = True
    ranks = np.array([s.rank for s in t.seats], np.int64).reshape(-1, 3)
    wrong: Bool = (
        (table.limit[lane] != t.word[:, LIMIT]) | (table.covered[lane] != t.counts * span)
        | (table.launched[lane] != expected) | (table.phase[lane] != phase) | (ending[lane] != ends)
        | (touched < least) | (touched > t.counts) | (t.counts > table.held[lane, 1])
        | (target > count) | (prefilled > target) | (table.last_step[lane] > core.step)
        | (table.rank[lane] != ranks).any(1)
    )
    return wrong


def unwritten(core: Core, t: Tables) -> Bool:
    """[seats] whether `touched` does not part a list: pages below it have been written to by a launched plan, or will
    be by the open one; from it on none has. O(pages)."""
    reserved = core.reserved[PAGE].get(t.page)
    if core.open is not None:
        runs = [pages for _, _, pages in core.open.lane_pages]
        told = np.concatenate([*runs, *(rows[:, 2] for rows in core.open.fresh), np.zeros(0, np.int32)])
        reserved &= ~np.isin(t.page, told)
    differs = (reserved != (t.index >= core.lanes.touched[t.word[t.of, LANE]])) & (t.index >= t.word[t.of, OWNED])
    return np.bincount(t.of[differs], minlength=len(t.seats)) > 0


def places(core: Core, t: Tables) -> tuple[int, Int32]:
    """The first seat, by number, that does not stand in the tree where it says (the number of seats: all do), and locks
    on the node of each. O(tokens on their paths)."""
    deepest = int(t.word[:, DEPTH].max(initial=0))
    if int(t.word[:, DEPTH].min(initial=0)) < 0:
        return 0, np.zeros(len(t.seats), np.int32)
    stands = np.ascontiguousarray(t.word[:, [LANE, NODE, DEPTH, OWNED, SCOPE]])
    first, locks = core.lanes.standing(core.cache.tree.raw, stands, deepest)
    for i, seat in enumerate(t.seats[:first]):
        seat.extra.check()
        if seat.slots and (len(seat.slots) > MAX_SLOTS or not seat.slots.keys() <= seat.anchors.keys()):
            return i, locks
    return first, locks


def locks(core: Core, t: Tables, locked: Int32) -> bool:
    """Whether the tree's locks are not those of seats, pins and holds. `locked`: locks on each seat's node.
    O(lanes)."""
    tree = core.cache.tree
    holders = Counter(t.word[:, NODE].tolist())
    known = dict(zip(holders, (0,) * len(holders), strict=True))
    known.update(zip(t.word[:, NODE].tolist(), locked.tolist(), strict=True))
    others = [*core.pins.nodes, *core.cache.holds.elements()]
    for node in others:
        holders[int(node)] += 1
        known[int(node)] = tree.info(node).lock
    return holders.total() != tree.counters().locks or any(known[node] != n for node, n in holders.items())


def pages(core: Core, t: Tables) -> bool:
    """Whether a page's references are not those of tree and seats. O(pages)."""
    arena = core.cache.arena
    held = arena.page_refs()
    own = t.page[t.index >= t.word[t.of, OWNED]]
    if len(own) and not 0 < int(own.min()) <= int(own.max()) < len(held):
        return True
    refs = core.cache.tree.page_refs(len(held)) + np.bincount(own, minlength=len(held))
    return not np.array_equal(refs[1:], held[1:])


def states(core: Core, t: Tables, walk: Walk) -> bool:
    """Whether a live state has not exactly one owner. O(states)."""
    live = core.cache.arena.tables()[1][1:, 0]
    more = [target for row in core.open.prefill for _, target, _ in row.targets] if core.open is not None else []
    for seat in t.seats:
        if seat.slots:
            more += seat.slots.values()
        extra = seat.extra
        if extra.latest is not None:
            more.append(extra.latest)
        if extra.pending is not None:
            more.append(extra.pending)
    owned = np.concatenate((walk.state[walk.state >= 0], t.word[:, STATE], np.array(more, np.int64)))
    return not np.array_equal(np.sort(owned), live)
