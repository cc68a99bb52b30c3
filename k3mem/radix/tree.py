"""The token tree: which prefixes are known, where their pages and checkpoints are, what may be evicted.

    root --[0,128)--> a --[128,192)--> b --[192,230)--> tail       page_tokens = 64
                        \\--[128,256)--> c

Edges start at page multiples; only a tail ends inside a page, and it has no children. A checkpoint stands at its
node's end. A node is KV (it has pages) or a ghost (its tokens are remembered, its bytes are gone); ancestors of a KV
node are KV. The tree counts no references: it reports which page and state ids it took, kept and let go.

Token and page arrays are int32; other integer arrays are converted. Costs use n nodes, c children of a node,
P page_tokens. Every method may raise Corrupted when a node is not in the tree, and MemoryError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from k3mem.errors import Corrupted
from k3mem.native import ffi, lib
from k3mem.radix.found import Counters, Dropped, Evicted, Info, Match, Picker, Published, Walk
from k3mem.radix.kinds import Kind
from k3mem.radix.policy import EvictionPolicy
from k3mem.types import NO_NODE, NO_STATE, Float64, Int32, NodeId, ScopeId, StateId

Ints = Sequence[int] | npt.NDArray[Any]

_MAX_STEP = 2**63 - 1
AGES = 32
"""Buckets of age in the tables of a tree that learns."""
_KINDS = tuple(Kind)
_NEW = ffi.new
_VIEW = ffi.from_buffer
_INTS = ffi.typeof("int32_t[]")
_UNPACK = ffi.unpack
"""A struct of int32 words as one list, in the order of `tree.h`: a third of the time of its fields one by one."""


_NO_PAIRS = np.zeros((0, 2), np.int32)
_EMPTY = np.empty
_TUPLE = tuple.__new__
_EVICT = lib.k3_tree_evict


def _i32(values: Ints) -> Int32:
    return np.ascontiguousarray(values, np.int32)


class Tree:
    """Token tree over pages of `page_tokens` tokens, many scopes in one. Driven by one thread.

    `grid` (tokens) must be a multiple of `page_tokens`; it is kept for callers. `ghost_tokens` bounds the tokens kept
    in ghosts (None: no bound); beyond it the least recently touched ghost leaves are forgotten.
    """

    def __init__(
        self, page_tokens: int, grid: int, policy: EvictionPolicy, ghost_tokens: int | None = None
    ) -> None:
        if not 1 <= page_tokens <= 512:
            raise ValueError(f"page_tokens must be 1..512, got {page_tokens}")
        if grid < 1 or grid % page_tokens:
            raise ValueError(f"grid must be a positive multiple of page_tokens {page_tokens}, got {grid}")
        if ghost_tokens is not None and ghost_tokens < 0:
            raise ValueError(f"ghost_tokens must be >= 0 or None, got {ghost_tokens}")
        classes = np.ascontiguousarray(policy.classes(), np.uint8)
        if classes.shape != (len(Kind), 2) or classes.max() > 254:
            raise ValueError("a policy's classes are [kinds, 2], each 0..254")
        self.page_tokens = page_tokens
        self.grid = grid
        self.policy = policy
        limit = -1 if ghost_tokens is None else ghost_tokens
        raw = lib.k3_tree_new(page_tokens, _VIEW("uint8_t[]", classes), len(Kind), limit)
        if raw == ffi.NULL:
            raise MemoryError("no memory for a tree")
        self._t: Any = ffi.gc(raw, lib.k3_tree_free)
        self._classes = 0
        self.evictions = 0
        """Entries that `evict` let go."""
        self.picker: Picker | None = None
        """Chooses victims in the place of the heap, once nothing of rank 0 is left."""
        self._match: Any = _NEW("k3_match *")
        self._match_words = ffi.cast("int32_t *", self._match)
        self._published: Any = _NEW("k3_published *")
        self._evicted: Any = _NEW("k3_evicted *")
        self._evicted_words = ffi.cast("int32_t *", self._evicted)
        self._info: Any = _NEW("k3_node_info *")
        self._count: Any = _NEW("k3_tree_counters *")
        self._sizes: Any = _NEW("int32_t[2]")

    @property
    def raw(self) -> Any:
        """The C tree, for whoever checks other tables against it in C."""
        return self._t

    # -- scopes

    def new_scope(self) -> ScopeId:
        """A root of its own; scopes are 0, 1, ... O(1) amortised."""
        return ScopeId(self._checked(lib.k3_tree_new_scope(self._t)))

    def root(self, scope: ScopeId) -> NodeId:
        """Root of a scope: depth 0, never evicted. O(1). Raises ValueError."""
        return NodeId(self._checked(lib.k3_tree_root(self._t, scope), f"no scope {scope}"))

    # -- reads

    def match(
        self, scope: ScopeId, tokens: Ints, limit: int | None = None, before_step: int | None = None
    ) -> Match:
        """Longest known prefix of `tokens` and the deepest checkpoint on it with depth <= limit, stamp < before_step.

        A pure read. O(tokens matched + nodes on the path x P log c). Raises ValueError on an unknown scope.
        """
        out, array = self._match, _i32(tokens)
        rc = lib.k3_tree_match(
            self._t, scope, _VIEW(_INTS, array), len(array),
            len(array) if limit is None else limit, _MAX_STEP if before_step is None else before_step, out,
        )
        if rc < 0:
            self._fail(rc, f"no scope {scope}")
        return Match(*_UNPACK(self._match_words, 7))

    def pages(self, node: NodeId) -> Int32:
        """Page ids of [0, depth), root first; a tail's partial last page included. O(pages). Corrupted on a ghost."""
        depth = self._checked(lib.k3_tree_depth(self._t, node))
        out = np.empty(-(-depth // self.page_tokens), np.int32)
        self._checked(lib.k3_tree_pages(self._t, node, _VIEW("int32_t[]", out)))
        return out

    def path_tokens(self, node: NodeId) -> Int32:
        """Tokens of [0, depth). O(depth)."""
        out = np.empty(self._checked(lib.k3_tree_depth(self._t, node)), np.int32)
        self._checked(lib.k3_tree_path_tokens(self._t, node, _VIEW("int32_t[]", out)))
        return out

    def info(self, node: NodeId) -> Info:
        """One node. O(1)."""
        self._checked(lib.k3_tree_info(self._t, node, self._info))
        i = self._info
        return Info(
            i.depth, i.start, i.parent, i.state, _KINDS[i.kind], i.stamp, i.lock, bool(i.has_kv), i.children,
            bool(i.superseded), bool(i.is_tail), bool(i.had_state), i.kv_stamp, i.scope,
            bool(i.unused), i.note, i.turn, i.value,
        )

    def state(self, node: NodeId) -> StateId:
        """State of a node's checkpoint, -1 without one. O(1)."""
        found = lib.k3_tree_state(self._t, node)
        if found < NO_STATE:
            self._fail(found, f"state of node {node}")
        return StateId(found)

    def stamp(self, node: NodeId) -> int:
        """Step that wrote a node's checkpoint; -1 without one, or without such a node. O(1)."""
        if lib.k3_tree_info(self._t, node, self._info) < 0:
            return -1
        return int(self._info.stamp)

    def counters(self) -> Counters:
        """Sizes of the tree. O(1)."""
        c = self._count
        lib.k3_tree_count(self._t, c)
        return Counters(
            c.nodes, c.checkpoints, c.kv_pages, c.kv_tokens, c.ghost_tokens, c.locks, c.edge_tokens, c.metadata_bytes
        )

    def kinds(self) -> list[int]:
        """[kinds] checkpoints of each kind. O(n)."""
        out = _NEW(f"int64_t[{len(Kind)}]")
        lib.k3_tree_kinds(self._t, out)
        return list(out)

    def forks(self, scope: ScopeId, tokens: Ints) -> tuple[Int32, Int32]:
        """Where others left the known path of `tokens`, ghosts included: depths, rounded down to pages, ascending; and
        how many branches left in each page. A branch that ends on the path has not left it. Raises ValueError on an
        unknown scope. O(tokens known + branches x P)."""
        array = _i32(tokens)
        depth, count = (np.empty(-(-len(array) // self.page_tokens), np.int32) for _ in range(2))
        n = self._checked(lib.k3_tree_forks(self._t, scope, _VIEW("int32_t[]", array), len(array), len(depth),
                                            _VIEW("int32_t[]", depth), _VIEW("int32_t[]", count)), f"no scope {scope}")
        return depth[:n], count[:n]

    def walk(self) -> Walk:
        """All nodes with KV, for audits. O(n)."""
        size = self.counters().nodes
        node, depth, state, scope = (np.empty(size, np.int32) for _ in range(4))
        stamp = np.empty(size, np.int64)
        n = lib.k3_tree_walk(
            self._t, *(_VIEW("int32_t[]", a) for a in (node, depth, state)), _VIEW("int64_t[]", stamp),
            _VIEW("int32_t[]", scope),
        )
        return Walk(node[:n], depth[:n], state[:n], stamp[:n], scope[:n])

    def page_refs(self, count: int) -> Int32:
        """int32[count]: how many nodes hold each page id below `count`. O(pages)."""
        out = np.empty(count, np.int32)
        lib.k3_tree_page_refs(self._t, _VIEW("int32_t[]", out), count)
        return out

    def next_class(self) -> int | None:
        """Class of the entry that `evict()` would remove (0: KV without a checkpoint, or what the policy puts
        first); None if there is none. O(1)."""
        found = int(lib.k3_tree_next_class(self._t, NO_NODE))
        return None if found < 0 else found

    # -- use

    def touch(self, node: NodeId) -> None:
        """Mark as used now, and its checkpoint as consumed. O(log n)."""
        self._checked(lib.k3_tree_touch(self._t, node))
        if self.picker is not None:
            self.picker.used(node)

    def note(self, node: NodeId, note: int) -> None:
        """What is known now of the next use of a node's checkpoint (`Note`); OVER counts for those above it too, up to
        a fork. Nothing happens where there is no checkpoint. O(log n), OVER: for each. Raises ValueError."""
        self._checked(lib.k3_tree_note(self._t, node, note), f"no note {note}")
        if self.picker is not None:
            self.picker.changed(node)

    def time(self, seconds: float) -> None:
        """The caller's clock. It never runs back here; without it, each use counts as a microsecond. O(log n) for each
        checkpoint that came into another bucket of age."""
        lib.k3_tree_time(self._t, round(1e6 * seconds))

    def learn(self, classes: npt.NDArray[np.uint16], count: int, edges: Sequence[float], state_tokens: float) -> None:
        """Give checkpoints classes and learn when they are used again; once, while the tree has none.

        classes: [3 structures, 32 notes, 256 turns], below `count`. edges: AGES increasing ages in seconds at which
        buckets begin, the first 0. state_tokens: a state's bytes in tokens of KV. Raises ValueError. O(1).
        """
        table = np.ascontiguousarray(classes, np.uint16)
        micros = np.append(np.round(np.asarray(edges, np.float64) * 1e6).astype(np.int64), np.int64(2**62))
        if table.shape != (3, 32, 256) or micros.shape != (AGES + 1,):
            raise ValueError(f"learn: classes must be [3, 32, 256] and edges {AGES} ages")
        rc = lib.k3_tree_learn(self._t, count, _VIEW("uint16_t[]", table), _VIEW("int64_t[]", micros), state_tokens)
        self._checked(rc, "learn: classes, edges or state_tokens out of range, or a tree that is in use")
        self._classes = count

    def values(self, values: npt.NDArray[np.float32] | None) -> None:
        """Order victims by values[class, age] x tokens saved for each token's worth of bytes, within the rank that the
        policy's `classes` gave; None: by last touch. O(n). Raises ValueError."""
        if values is None:
            self._checked(lib.k3_tree_values(self._t, ffi.NULL))
            return
        table = np.ascontiguousarray(values, np.float32)
        if table.shape != (self._classes, AGES):
            raise ValueError(f"values must be [{self._classes}, {AGES}], got {table.shape}")
        self._checked(lib.k3_tree_values(self._t, _VIEW("float[]", table)), "values must be numbers >= 0")

    def learned(self) -> tuple[Float64, Float64]:
        """[classes, AGES] returns, and seconds spent waiting, by age: the tree's own tables, writable. O(1)."""
        ptr = _NEW("double *[2]")
        lib.k3_tree_learned(self._t, ptr, ptr + 1)
        size = self._classes * AGES
        out = [np.frombuffer(ffi.buffer(p, 8 * size), np.float64).reshape(-1, AGES) for p in ptr] if size else []
        return (out[0], out[1]) if out else (np.zeros((0, AGES)), np.zeros((0, AGES)))

    def waiting(self) -> Float64:
        """[classes, AGES] seconds spent in their present bucket of age by all that still wait; `learned` has them only
        when they leave it. O(checkpoints, and tombstones not yet asked for again)."""
        out = np.zeros((self._classes, AGES))
        lib.k3_tree_waiting(self._t, _VIEW("double[]", out))
        return out

    def lock(self, node: NodeId) -> None:
        """One lock more: keeps the node's checkpoint, and its KV with that of all ancestors. O(log n)."""
        self._checked(lib.k3_tree_lock(self._t, node))

    def unlock(self, node: NodeId) -> None:
        """One lock less. O(log n). Corrupted below 0."""
        self._checked(lib.k3_tree_unlock(self._t, node))

    # -- changes

    def publish(
        self, node: NodeId, tokens: Ints, end: int, pages: Ints, state: StateId = NO_STATE,
        kind: Kind = Kind.CHUNK_END, stamp: int = 0,
    ) -> Published:
        """Add tokens[depth(node):end] with their KV below `node`, and attach `state` (-1: KV only) at `end`.

        `tokens` and `pages` are the publisher's whole arrays: pages[i] covers [i P, (i + 1) P). `node` is its own last
        node; nothing above is compared again, and of a tail nothing below its last page multiple's start. KV nodes on
        the way keep their pages, ghosts take the publisher's, the rest becomes a new node. An `end` inside a page makes
        a tail, which references its last page. A checkpoint that stands at `end` already stays and is refreshed.
        With a checkpoint, the nearest one above becomes superseded, if its kind passes (`PASSED`) and no fork lies
        between; so does a tail that `node` is, unless another lineage went on from it before.
        O(end - depth(node) + P) and the edges split. Raises ValueError on arrays that are too short.
        """
        array, ids, out = _i32(tokens), _i32(pages), self._published
        if len(array) < end:
            raise ValueError(f"publish: {len(array)} tokens for end {end}")
        rc = lib.k3_tree_publish(
            self._t, node, _VIEW(_INTS, array), end, _VIEW(_INTS, ids), len(ids), state, kind, stamp, out
        )
        if rc < 0:
            self._fail(rc, f"publish at node {node}: end {end}, {len(ids)} pages, state {state}, stamp {stamp}")
        replaced = self._pages_out(2 * out.n_replaced).reshape(-1, 2) if out.n_replaced else _NO_PAIRS
        if self.picker is not None and state != NO_STATE:
            self.picker.used(out.node)
        return Published(out.node, bool(out.taken), out.adopted_from, replaced, out.shared_page)

    def remember(self, node: NodeId, tokens: Ints, end: int) -> None:
        """Note tokens[depth(node):end] below `node` as seen, whole pages of it: what is not known there becomes a
        ghost. For prompts whose bytes could not be kept. O(end - depth(node) + P) and the edges split. Raises
        ValueError on tokens that are too short."""
        array = _i32(tokens)
        if len(array) < end:
            raise ValueError(f"remember: {len(array)} tokens for end {end}")
        self._checked(lib.k3_tree_remember(self._t, node, _VIEW("int32_t[]", array), end))

    def take(self, node: NodeId) -> StateId:
        """Detach the checkpoint; the node becomes a tombstone. O(log n). Corrupted where there is none."""
        return StateId(self._checked(lib.k3_tree_take(self._t, node)))

    def evict(self, protect: NodeId = NO_NODE) -> Evicted | None:
        """Remove the entry with the smallest (class, touch) that is not locked and not on the path root .. protect.

        An entry is a checkpoint, or KV with no KV below and no checkpoint. With a checkpoint goes the KV that only it
        needed, up to the next checkpoint, fork, lock or protected node. None when nothing is evictable.
        O(log n) amortised, plus the path to `protect` and the protected entries older than the victim.
        """
        if self.picker is not None and lib.k3_tree_next_class(self._t, protect) > 0:
            victim = self.picker.pick(protect)
            self.evictions += victim is not None
            return victim
        found = _EVICT(self._t, protect, self._evicted)
        if found <= 0:
            self._checked(found)
            return None
        self.evictions += 1
        return self._victim()

    def remove(self, node: NodeId, protect: NodeId = NO_NODE) -> Evicted | None:
        """`evict`, but this entry; None where it is none, is locked, or lies on the path to `protect`. O(log n) and the
        path."""
        found = self._checked(lib.k3_tree_remove(self._t, node, protect, self._evicted))
        return self._victim() if found else None

    def cap(self, node: NodeId, limit: int, kinds: Iterable[Kind] | None = None) -> Evicted | None:
        """If more than `limit` capped checkpoints lie above `node` on its path, remove the one of least loss.

        Loss is the number of tokens from the next shallower checkpoint on the path (or 0) to it; of equals the
        shallowest goes. Forks, locked ones, and kinds outside `kinds` (None: all) are neither counted nor removed.
        O(nodes on the path).
        """
        mask = 0xFFFFFFFF if kinds is None else sum(1 << kind for kind in set(kinds))
        found = self._checked(lib.k3_tree_cap(self._t, node, limit, mask, self._evicted))
        return self._victim() if found else None

    def drop(self, stamp: int, damaged_rows: Ints = (), damaged_states: Ints = ()) -> Dropped:
        """After a failed step: everything written by steps >= `stamp` and everything damaged leaves the tree.

        damaged_rows[page id] is the first damaged row of a page (2**31 - 1: none); a page is hit where the rows that a
        node uses of it reach beyond. damaged_states[state id] is nonzero for a damaged state. Ids past an array's end
        are undamaged. KV damage takes the node's KV and checkpoint and everything deeper, locked or not (locks stay
        counted); state damage takes that checkpoint only. O(n + pages).
        """
        rows, states = _i32(damaged_rows), np.ascontiguousarray(np.asarray(damaged_states) != 0, np.uint8)
        gone, views = self._room()
        self._checked(lib.k3_tree_drop(
            self._t, stamp, _VIEW("int32_t[]", rows), len(rows), _VIEW("uint8_t[]", states), len(states), *views,
            self._sizes,
        ))
        return self._dropped(gone)

    def flush(self) -> Dropped:
        """Drop every unlocked checkpoint and all KV that no locked node stands on; forget ghosts. O(n log n)."""
        gone, views = self._room()
        self._checked(lib.k3_tree_flush(self._t, *views, self._sizes))
        return self._dropped(gone)

    def forget_ghosts(self) -> None:
        """Forget every ghost without a locked ghost below. O(ghosts log n)."""
        self._checked(lib.k3_tree_forget_ghosts(self._t))

    # -- audits

    def check(self) -> None:
        """Walk every invariant; Corrupted names the table, the node and the value. O(n log n + tokens + pages)."""
        self._checked(lib.k3_tree_check(self._t))

    def _table(self, name: str, node: NodeId = NO_NODE) -> npt.NDArray[Any]:
        """Writable view of a table (see tree.h), valid until the next change. Raises ValueError on another name."""
        ptr = _NEW("void **")
        sizes = _NEW("int32_t[3]")
        self._checked(
            lib.k3_tree_table(self._t, name.encode(), node, ptr, sizes, sizes + 1, sizes + 2), f"no table {name!r}"
        )
        count, width, stride = sizes
        if not count:
            return np.empty(0, np.int32)
        buffer = ffi.buffer(ptr[0], (count - 1) * stride + width)
        dtype = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.int64}[width]
        return np.ndarray((count,), dtype, buffer, 0, (stride,))

    # -- inside

    def _checked(self, rc: int, what: str = "argument out of range") -> int:
        if rc < 0:
            self._fail(rc, what)
        return rc

    def _fail(self, rc: int, what: str) -> NoReturn:
        if rc == lib.K3_E_MEMORY:
            raise MemoryError("token tree: no memory")
        if rc == lib.K3_E_ARG:
            raise ValueError(what)
        raise Corrupted(ffi.string(lib.k3_tree_error(self._t)).decode())

    def _pages_out(self, n: int) -> Int32:
        if not n:
            return _NO_PAIRS[:, 0]
        out = np.empty(n, np.int32)
        ffi.memmove(out, lib.k3_tree_out_pages(self._t), 4 * n)
        return out

    def _victim(self) -> Evicted:
        node, kind, state, depth, n_pages, tokens, unused, page = _UNPACK(self._evicted_words, 8)
        if n_pages == 1:
            pages: Int32 = _EMPTY(1, np.int32)
            pages[0] = page
        else:
            pages = self._pages_out(n_pages)
        return _TUPLE(Evicted, (node, _KINDS[kind], state, pages, tokens, unused != 0, depth))

    def _room(self) -> tuple[Dropped, list[Any]]:
        """Arrays for all that could go at once, and C's view of them."""
        count = self.counters()
        room = Dropped(np.empty(count.checkpoints, np.int32), np.empty(count.kv_pages, np.int32))
        return room, [_VIEW("int32_t[]", array) for array in room]

    def _dropped(self, room: Dropped) -> Dropped:
        n_states, n_pages = self._sizes
        return Dropped(room.states[:n_states].copy(), room.pages[:n_pages].copy())
