"""The arena: pages and states of one byte range, by virtual id.

    0                                                                        state_top          capacity
    |  page 0  |  page 1  | .. | page Fp-1 |  gap  | state Fs-1 | .. | state 1 | state 0 | pad | scratch |
       (sink)                                                            (sink)

The tables live in C (`native/arena.h`, which states the invariants); this is their face. Nothing here touches the
arena's bytes: `make_room` and `compact` return moves for an executor to carry out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from math import ceil, floor
from typing import Any

import numpy as np
import numpy.typing as npt

from k3mem.errors import Corrupted, InvalidShape
from k3mem.native import ffi, lib
from k3mem.types import Int32, PageId, StateId

PAGE, STATE = 0, 1
"""Kinds of entries, as they stand in `k3mem.plan.Plan.moves`."""

Ids = Int32 | Sequence[PageId] | Sequence[StateId] | Sequence[int]

_KINDS = ("page", "state")
_INTS, _VIEW = ffi.typeof("int32_t[]"), ffi.from_buffer
NOW = int(lib.K3_FIT_NOW)
_MAX_IDS = 2**31 - 1
_MAX_CAPACITY = 2**61
_MAX_DEMAND = 2**40
_SETS = ("holes", "stuck")
_TABLES = {
    "place": "n_ids", "refs": "n_ids", "leases": "n_ids", "dirty_at": "n_ids", "free_ids": "n_free",
    "dirty": "n_dirty", "owner": "frontier", "pending_place": "n_pending", "pending_after": "n_pending",
}  # fmt: skip


class Fit(IntEnum):
    """Whether a joint demand fits."""

    NO = 0
    """Not without freeing something, ending a lease or settling a step."""
    MOVES = 1
    """After moves: see `Arena.make_room`."""
    NOW = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of the arena by what they are; fixed + live + holes + pending + gap + pad = capacity. Counts of entries
    are without sinks; frontiers are in places and include the sink."""

    fixed: int
    """Both sinks and the scratch."""
    live: int
    holes: int
    pending: int
    """Freed, but a step in flight may still use it."""
    gap: int
    """Between the two frontiers (with a fixed split: both kinds' own gaps)."""
    pad: int
    """Lost to alignment."""
    live_pages: int
    live_states: int
    hole_pages: int
    hole_states: int
    frontier_pages: int
    frontier_states: int


EMPTY, NO_ROWS = np.zeros(0, np.int32), np.zeros((0, 2), np.int32)
_FITS = (Fit.NO, Fit.MOVES, Fit.NOW)
"""By their numbers."""
_FEW = 16
"""Entries that are looked at one by one sooner than as an array."""


def least_capacity(page_bytes: int, state_bytes: int, scratch_bytes: int, align: int, split: float | None) -> int:
    """Fewest capacity_bytes of an `Arena`: both sinks, one page and one state fit, with a split each kind in its own
    share, and the scratch."""
    top = 2 * (page_bytes + state_bytes)
    if split is not None:
        share = Fraction(str(split))
        # The least top with floor(share * top) >= 2 states and top - floor(share * top) >= 2 pages.
        top = max(ceil(2 * state_bytes / share), floor((2 * page_bytes - 1) / (1 - share)) + 1)
    return -(-top // align) * align + scratch_bytes


class Arena:
    """Pages and states in one byte range, in virtual ids that stay while their places move.

    capacity_bytes: all bytes, up to 2^61 (tables grow with the entries, not with the capacity). page_bytes,
    state_bytes: one entry. scratch_bytes: kept free at the top. align: of the byte from which states grow down.
    split: None, or the share (0..1) of the bytes below `state_top` that states may use, pages having the rest.
    Raises InvalidShape if the sinks, one page and one state do not fit; it names the least size.

    Id 0 of each kind is a sink at place 0; it is never allocated, moved or freed. Arrays of ids or places are int32
    and the caller's own. Pressure is a return value (None, `Fit`, an empty array); Corrupted means that the caller
    named an id it does not own, and that nothing changed.

    >>> arena = Arena(capacity_bytes=1000, page_bytes=10, state_bytes=100, align=1)
    >>> pages, states = arena.alloc(2, 1)
    >>> pages.tolist(), arena.state_places(states).tolist()
    ([1, 2], [1])
    """

    def __init__(
        self,
        *,
        capacity_bytes: int,
        page_bytes: int,
        state_bytes: int,
        scratch_bytes: int = 0,
        align: int = 128,
        split: float | None = None,
    ) -> None:
        if page_bytes < 1 or state_bytes < 1 or align < 1 or scratch_bytes < 0:
            raise InvalidShape("page_bytes, state_bytes and align must be positive, scratch_bytes not negative")
        if capacity_bytes > _MAX_CAPACITY:
            raise InvalidShape(f"capacity_bytes must be at most 2^61, got {capacity_bytes}")
        if split is not None and not 0 < split < 1:
            raise InvalidShape(f"split must lie between 0 and 1, got {split}")
        top = (capacity_bytes - scratch_bytes) // align * align
        states_limit = top if split is None else int(Fraction(str(split)) * top)  # as written: 0.99 of 100 is 99
        pages_limit = top if split is None else top - states_limit
        least = least_capacity(page_bytes, state_bytes, scratch_bytes, align, split)
        if capacity_bytes < least:
            raise InvalidShape(
                f"capacity_bytes {capacity_bytes} is too small: give at least {least} for a page of {page_bytes} and a "
                f"state of {state_bytes} bytes, each with its sink" + ("" if split is None else f", at split {split}")
            )
        self.capacity_bytes = capacity_bytes
        self.page_bytes = page_bytes
        self.state_bytes = state_bytes
        self.scratch_bytes = scratch_bytes
        self.state_top = top
        """States grow down from this byte."""
        self._max_pages = min(pages_limit // page_bytes, _MAX_IDS)
        self._max_states = min(states_limit // state_bytes, _MAX_IDS)
        a = lib.k3_arena_new(page_bytes, state_bytes, top, self._max_pages, self._max_states)
        if a == ffi.NULL:
            raise MemoryError("no memory for the arena's tables")
        self._a = ffi.gc(a, lib.k3_arena_delete)
        self._kinds = (self._a.kind[PAGE], self._a.kind[STATE])
        self._count = ffi.new("int64_t *")
        self._one = ffi.new("int32_t[2]")

    @property
    def raw(self) -> Any:
        """The C arena, for whoever looks at its tables in C."""
        return self._a

    # -- geometry

    @property
    def page_ids(self) -> int:
        """Page ids and places are below this."""
        return min(self.state_top // self.page_bytes, _MAX_IDS)

    @property
    def state_ids(self) -> int:
        """State ids and places are below this."""
        return min(self.state_top // self.state_bytes, _MAX_IDS)

    def capacity_for(self, pages: int, states: int) -> bool:
        """Whether a demand would fit if nothing but the sinks lived here. O(1)."""
        _demand(pages, states)
        pages, states = pages + 1, states + 1
        return (
            pages <= self._max_pages
            and states <= self._max_states
            and pages * self.page_bytes + states * self.state_bytes <= self.state_top
        )

    # -- what fits

    def fits(self, pages: int, states: int) -> Fit:
        """Whether this whole demand fits. O(1).

        NOW: own holes first, the rest in the gap. MOVES: once unleased frontier entries have moved into holes; the
        frontier of a kind falls at best to its occupied places, and not below a leased or pending place.
        """
        if not (0 <= pages <= _MAX_DEMAND and 0 <= states <= _MAX_DEMAND):
            pages, states = _demand(pages, states)
        return _FITS[lib.k3_arena_fits(self._a, pages, states)]

    def room_pages(self, moves: bool = False) -> int:
        """How many pages alone could be had: now, or with `moves` after closing the states' holes. O(1)."""
        return int(lib.k3_arena_room(self._a, PAGE, moves))

    def room_states(self, moves: bool = False) -> int:
        """How many states alone could be had: now, or with `moves` after closing the pages' holes. O(1)."""
        return int(lib.k3_arena_room(self._a, STATE, moves))

    # -- ownership

    def alloc(self, pages: int, states: int) -> tuple[Int32, Int32] | None:
        """All or nothing: ids of `pages` pages and `states` states, one reference each; None unless `fits` says NOW.
        Lowest places first. O(n). Raises MemoryError (nothing changed) when the host's tables cannot grow."""
        n_pages, n_states = _demand(pages, states)
        if lib.k3_arena_fits(self._a, n_pages, n_states) != NOW:  # a demand beyond reason must not be made room for
            return None
        page_ids = np.empty(n_pages, np.int32) if n_pages else EMPTY
        state_ids = np.empty(n_states, np.int32) if n_states else EMPTY
        status = lib.k3_arena_alloc(self._a, n_pages, n_states, _VIEW(_INTS, page_ids), _VIEW(_INTS, state_ids))
        if status < 0:
            self._ok(status, "alloc")
        return page_ids, state_ids

    def alloc_state(self) -> StateId | None:
        """`alloc(0, 1)`. O(1)."""
        one = self._one
        if lib.k3_arena_fits(self._a, 0, 1) != NOW:
            return None
        status = lib.k3_arena_alloc(self._a, 0, 1, one, one)
        if status < 0:
            self._ok(status, "alloc")
        return StateId(one[0])

    def free_pages(self, ids: Ids, after: int = 0) -> Int32:
        """Drop one reference of each; returns the ids that were their last. Their places are pending while `after`
        is above the last settled step. An id may stand as often as it has references. Raises Corrupted on an id that
        is not live, on the sink, and on the last reference to a leased page. O(n) amortised."""
        return self._free(PAGE, ids, after)

    def free_states(self, ids: Ids, after: int = 0) -> Int32:
        """`free_pages` for states, which have one reference each."""
        return self._free(STATE, ids, after)

    def free_state(self, id: StateId | int) -> None:
        """`free_states` of one, at once. O(1) amortised."""
        one = self._one
        one[0] = id
        status = lib.k3_arena_free(self._a, STATE, one, 1, 0, one + 1, self._count)
        if status < 0:
            self._ok(status, "free")

    def settle(self, step: int) -> None:
        """All steps up to `step` have committed: places pending on them are free. Earlier steps are ignored.
        O(pending)."""
        lib.k3_arena_settle(self._a, step)

    def ref(self, page: PageId | int) -> None:
        """One more reference to a live page. O(1)."""
        self._ok(lib.k3_arena_ref(self._a, PAGE, page), "ref")

    def refs(self, page: PageId | int) -> int:
        """References to a page; 0: not live. O(1)."""
        kind = self._kinds[PAGE]
        return int(kind.refs[page]) if 0 <= page < kind.n_ids else 0

    def lease(self, kind: int, id: PageId | StateId | int) -> None:
        """Something asynchronous uses this entry: it stays where it is until as many `unlease`. O(1)."""
        self._ok(lib.k3_arena_lease(self._a, _kind(kind), id, 1), "lease")

    def unlease(self, kind: int, id: PageId | StateId | int) -> None:
        """End one lease. Raises Corrupted if there is none. O(1)."""
        self._ok(lib.k3_arena_lease(self._a, _kind(kind), id, -1), "unlease")

    # -- moves

    def make_room(self, pages: int, states: int, budget_bytes: int) -> Int32:
        """Moves towards a demand for which `fits` says MOVES; empty for NOW and NO.

        Returns [n, 4] (batch, kind, source place, destination place), one batch 0, byte ranges pairwise disjoint;
        n * bytes <= budget_bytes, but n >= 1. The frontier-most entry goes to the lowest hole; only the kind whose
        frontier must fall moves, and no further than needed. The tables hold the new places at once: the moves must
        run before anything else uses them, or be undone. Repeat until `fits` says NOW. O(n).
        """
        n_pages, n_states = _demand(pages, states)
        moves = self._moves(budget_bytes)
        n = lib.k3_arena_make_room(self._a, n_pages, n_states, max(0, budget_bytes), _ptr(moves))
        return moves[: self._ok(n, "make_room")].copy()

    def compact(self, budget_bytes: int) -> Int32:
        """Moves that lower both frontiers as far as leased and pending places allow; pages first. As `make_room`."""
        moves = self._moves(budget_bytes)
        n = lib.k3_arena_compact(self._a, max(0, budget_bytes), _ptr(moves))
        return moves[: self._ok(n, "compact")].copy()

    def undo(self, moves: Int32) -> None:
        """Take back moves of a cancelled plan, last first, as if they had never been made. First free (with after=0)
        what the plan allocated: it may lie where the entries came from. Raises Corrupted, with all mappings as they
        were, if an entry is gone or leased, or its source place is taken or pending. O(n)."""
        rows = np.ascontiguousarray(moves, np.int32).reshape(-1, 4)
        self._ok(lib.k3_arena_undo(self._a, _ptr(rows), len(rows)), "undo")

    @property
    def moves_count(self) -> int:
        """Moves made and not undone."""
        return int(self._a.moves_count)

    @property
    def moved_bytes(self) -> int:
        """Bytes moved and not undone."""
        return int(self._a.moved_bytes)

    # -- tables

    def page_places(self, ids: Ids) -> Int32:
        """int32[n]: where these pages lie. Raises Corrupted on an id that is not live. O(n)."""
        return self._places(PAGE, ids)

    def state_places(self, ids: Ids) -> Int32:
        """int32[n]: where these states lie. Raises Corrupted on an id that is not live. O(n)."""
        return self._places(STATE, ids)

    def drain(self) -> tuple[Int32, Int32]:
        """(page table, state table), [n, 2] (id, place) of every live id whose place is new since the last drain,
        each once. The sinks never change, so they are not in it. O(changed)."""
        return self._drain(PAGE), self._drain(STATE)

    def redirty(self, pages: Ids, states: Ids) -> None:
        """Let the next `drain` name these again (a cancelled plan's table); ids freed meanwhile are skipped. O(n)."""
        for kind, given in enumerate((pages, states)):
            ids = _ids(given)
            self._ok(lib.k3_arena_redirty(self._a, kind, _ptr(ids), len(ids)), "redirty")

    def tables(self) -> tuple[Int32, Int32]:
        """(page table, state table), [n, 2] (id, place) of every live id, sinks included, by id. O(ids)."""
        out = tuple(np.empty((kind.n_ids - kind.n_free, 2), np.int32) for kind in self._kinds)
        for kind, table in enumerate(out):
            lib.k3_arena_table(self._a, kind, _ptr(table))
        return out[PAGE], out[STATE]

    def ids_at(self, kind: int, places: Ids) -> Int32:
        """int32[n]: who lies at these places; -1 where nobody does. O(n)."""
        table, at = self._kinds[_kind(kind)], _ids(places)
        owner, end = table.owner, table.frontier
        if len(at) < _FEW:
            return np.array([max(owner[i], -1) if 0 <= i < end else -1 for i in at.tolist()], np.int32)
        owners = np.frombuffer(ffi.buffer(owner, 4 * end), np.int32)
        inside = (at >= 0) & (at < end)
        out = np.full(len(at), -1, np.int32)
        out[inside] = np.maximum(owners[at[inside]], -1)
        return out

    @property
    def page_id_end(self) -> int:
        """Every page id ever handed out is below this."""
        return int(self._kinds[PAGE].n_ids)

    @property
    def state_id_end(self) -> int:
        """Every state id ever handed out is below this."""
        return int(self._kinds[STATE].n_ids)

    def page_refs(self) -> Int32:
        """int32[page_id_end]: references by page id, 0 where not live. O(ids)."""
        return self._table("page_refs").copy()

    @property
    def leases(self) -> int:
        """Leases held, over both kinds. O(ids)."""
        return sum(int(self._table(f"{kind}_leases").sum()) for kind in _KINDS)

    # -- accounting

    def usage(self) -> Usage:
        """Where the bytes are, to the byte. O(1)."""
        pages, states = self._kinds
        n = [(k.n_ids - k.n_free - 1, k.holes.count, k.n_pending, k.frontier) for k in self._kinds]
        live, holes, pending, frontier = (p * pages.bytes + s * states.bytes for p, s in zip(*n, strict=True))
        return Usage(
            fixed=pages.bytes + states.bytes + self.scratch_bytes,
            live=live,
            holes=holes,
            pending=pending,
            gap=self.state_top - frontier,
            pad=self.capacity_bytes - self.scratch_bytes - self.state_top,
            live_pages=n[PAGE][0],
            live_states=n[STATE][0],
            hole_pages=n[PAGE][1],
            hole_states=n[STATE][1],
            frontier_pages=n[PAGE][3],
            frontier_states=n[STATE][3],
        )

    def check(self) -> None:
        """Walk every invariant of every table. Raises Corrupted naming table, index and value. O(ids + places)."""
        self._ok(lib.k3_arena_check(self._a), "check")
        u = self.usage()
        total = u.fixed + u.live + u.holes + u.pending + u.gap + u.pad
        if total != self.capacity_bytes or min(u.gap, u.pad) < 0:
            raise Corrupted(f"arena check: {u} sums to {total} of {self.capacity_bytes} bytes")

    # -- inside

    def _drain(self, kind: int) -> Int32:
        n = self._kinds[kind].n_dirty
        if not n:
            return NO_ROWS
        table = np.empty((n, 2), np.int32)
        lib.k3_arena_drain(self._a, kind, _VIEW(_INTS, table))
        return table

    def _free(self, kind: int, ids: Ids, after: int) -> Int32:
        given = _ids(ids)
        freed, n = np.empty(len(given), np.int32), self._count
        status = lib.k3_arena_free(self._a, kind, _VIEW(_INTS, given), len(given), after, _VIEW(_INTS, freed), n)
        if status < 0:
            self._ok(status, "free")
        return freed[: n[0]]

    def _places(self, kind: int, ids: Ids) -> Int32:
        given = _ids(ids)
        out = np.empty(len(given), np.int32)
        self._ok(lib.k3_arena_places(self._a, kind, _ptr(given), len(given), _ptr(out)), "places")
        return out

    def _moves(self, budget_bytes: int) -> Int32:
        return np.empty((lib.k3_arena_moves_bound(self._a, max(0, budget_bytes)), 4), np.int32)

    def _ok(self, status: int, what: str) -> int:
        if status >= 0:
            return status
        if status == lib.K3_E_MEMORY:
            raise MemoryError(f"arena {what}: no memory for the tables")
        f = self._a.fault
        kind = _KINDS[f.kind]

        def word(table: Any, index: int, value: int) -> str:
            name = f"{kind}_{ffi.string(table).decode()}"
            return f"{name}[{index}] = {value}" if index >= 0 else f"{name} = {value} in all"

        raise Corrupted(
            f"arena {what}: {word(f.table, f.index, f.value)} does not agree with "
            f"{word(f.other, f.other_index, f.other_value)}"
        )

    def _table_names(self) -> list[str]:
        sets = [f"{name}{level}" for name in _SETS for level in range(6)]
        return [f"{kind}_{table}" for kind in _KINDS for table in [*_TABLES, *sets]]

    def _table(self, name: str) -> npt.NDArray[Any]:
        """A writable view of a C table's used part, for tests; valid until the next allocation."""
        kind_name, table = name.split("_", 1)
        kind = self._kinds[_KINDS.index(kind_name)]
        level = re.fullmatch(r"(holes|stuck)([0-5])", table)
        if level:
            bits, l = getattr(kind, level[1]), int(level[2])
            return np.frombuffer(ffi.buffer(bits.level[l], 8 * bits.words[l]), np.uint64)
        dtype = np.int64 if table == "pending_after" else np.int32
        size = getattr(kind, _TABLES[table]) * np.dtype(dtype).itemsize
        return np.frombuffer(ffi.buffer(getattr(kind, table), size), dtype)


def _ptr(array: Int32) -> Any:
    return ffi.from_buffer(_INTS, array)


def _ids(ids: Ids) -> Int32:
    if isinstance(ids, np.ndarray) and ids.dtype == np.int32 and ids.flags.c_contiguous:
        return ids
    given = np.asarray(ids)
    out = np.ascontiguousarray(given, np.int32)
    if given.dtype != np.int32 and not np.array_equal(given, out):
        raise Corrupted(f"arena: no int32 ids: {given}")
    return out


def _kind(kind: int) -> int:
    if kind not in (PAGE, STATE):
        raise ValueError(f"kind must be PAGE or STATE, got {kind}")
    return kind


def _demand(pages: int, states: int) -> tuple[int, int]:
    if 0 <= pages <= _MAX_DEMAND and 0 <= states <= _MAX_DEMAND:
        return int(pages), int(states)
    if pages < 0 or states < 0:
        raise ValueError(f"a demand must not be negative, got {pages} pages and {states} states")
    return min(int(pages), _MAX_DEMAND), min(int(states), _MAX_DEMAND)
