"""The planted bugs of the C core, by name. They exist only in the build with `K3_MUTANTS` (``K3MEM_MUTANTS=1``), as
hooks `K3_MUTANT(id)` in the same sources; a release build has none. `native/k3.h` and `native/arena.h` number them.

Each says where it stands and which invariant it breaks (the words of the design's section on invariants). A *silent*
one never gives a wrong token: it costs memory or hits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from k3mem.native import lib


@dataclass(frozen=True, slots=True)
class NativeMutant:
    """One planted bug of the C core."""

    id: int
    """Number in the C sources; `k3_mutant` takes it."""
    name: str
    """`tree.` or `arena.` and the enum's name in small letters."""
    where: str
    """`file: function` of the hook that matters most."""
    breaks: str
    """The invariant that forbids it."""
    silent: bool = False
    """Costs memory or hits, never a wrong token."""


_SPLIT = "On a split the lower half keeps the node's identity, state, lock and recency"
_LOCK = "A lock is one count on the deepest node used; ancestors are protected by having a locked descendant"
_VISIBLE = "A checkpoint may be restored from by plans after the one that writes it (stamp < own step)"
_ONE_TOKEN = "Resume depth == depth of the state it starts from, and at least one token is computed"
_DEPTH = "checkpoint depth == node end depth"
_CHILDREN = "Children of one node are keyed by their first page and may share up to page_tokens - 1 tokens"
_TAILS = "A match looks at all children of that page, tails included, and takes the deepest usable"
_TAIL_PAGE = "A tail references rows below its end; its page is freed when neither owner remains"
_PASS = "Pages pass from the writer to the node at the node's launch; no id has two owners"
_READ = "Match is a pure read; touch, split and lock happen at admission"
_COMPARE = "Lookups compare tokens"
_SCOPES = "Scopes share nothing, on any route"
_LIFE = "Life of a checkpoint: target -> launched -> committed -> evictable -> ghost"
_SUPERSEDED = "Superseded (a chunk-end or prompt-end checkpoint, no fork, a deeper one below): first to be evicted"
_VALUE = "The victim has the least value: that of its class and age, times the recompute it saves for its bytes"
_OVER = "An ended session's checkpoints go first"
_DONATED = "A donated target belongs to the tree"
_DAMAGE = "Checkpoints and KV extents damaged or stamped >= N go, with everything deeper"
_BYTES = "fixed + live + holes + pending + gap + pad = capacity, to the byte"
_OWNER = "No id has two owners; a physical place has at most one id"
_ENDS = "Pages grow up, states grow down; the gap is one interval that either kind can take"
_FRONTIER = "Freeing the frontier shrinks it"
_HOLES = "Freeing in the middle leaves a hole that the same kind reuses first; the frontier-most entry moves into it"
_MOVES = "Moves carry explicit physical source and destination"
_DISJOINT = "Within one batch sources and destinations are pairwise disjoint byte ranges"
_BOUNDED = "Moves are bounded in bytes per step"
_LEASE = "A leased entry neither moves nor is reused"
_JOINT = "Capacity is joint: this whole demand fits, after these evictions and moves, never a count per kind"
_NOTHING = "Reserve all that a request's next phase needs, or nothing; every exit gives everything back"
_PENDING = "pending: freed, not yet reusable by all"
_TABLES = "A table maps an id to its place; tables travel as deltas"

TREE = (
    NativeMutant(1, "tree.evict_recent", "tree_nodes.c: heap_key", _LIFE, silent=True),
    NativeMutant(2, "tree.evict_locked", "tree_nodes.c: belongs_in_heap", _LOCK),
    NativeMutant(3, "tree.limit", "tree_match.c: consider", _ONE_TOKEN),
    NativeMutant(4, "tree.stamp", "tree_match.c: consider", _VISIBLE),
    NativeMutant(5, "tree.protect", "tree.c: k3_tree_evict", _NOTHING),
    NativeMutant(6, "tree.tails", "tree_match.c: look_in_page", _TAILS, silent=True),
    NativeMutant(7, "tree.drop_deeper", "tree.c: spread_damage", _DAMAGE),
    NativeMutant(8, "tree.attach_split", "tree_nodes.c: split", _DEPTH),
    NativeMutant(9, "tree.split_recency", "tree_nodes.c: split", _SPLIT, silent=True),
    NativeMutant(10, "tree.split_lock", "tree_nodes.c: split", _SPLIT),
    NativeMutant(11, "tree.split_stamp", "tree_nodes.c: split", _DAMAGE),
    NativeMutant(12, "tree.tombstone", "tree_match.c: consider", _LIFE),
    NativeMutant(13, "tree.first_page", "tree_match.c: match_below", _COMPARE),
    NativeMutant(14, "tree.scope", "tree_match.c: k3_tree_match", _SCOPES),
    NativeMutant(15, "tree.match_touches", "tree_match.c: k3_tree_match", _READ, silent=True),
    NativeMutant(16, "tree.treap_order", "tree_nodes.c: sibling_order", _CHILDREN),
    NativeMutant(17, "tree.treap_priority", "tree_nodes.c: unlink_child", _CHILDREN, silent=True),
    NativeMutant(18, "tree.tail_page", "tree.c: k3_tree_publish", _TAIL_PAGE),
    NativeMutant(19, "tree.adopted", "tree.c: k3_tree_publish", _PASS),
    NativeMutant(20, "tree.replaced", "tree.c: step_on", _PASS),
    NativeMutant(21, "tree.taken", "tree.c: k3_tree_publish", _DONATED),
    NativeMutant(22, "tree.revived_pages", "tree.c: step_on", _PASS),
    NativeMutant(23, "tree.lock_flag", "tree.c: k3_tree_lock", _LOCK),
    NativeMutant(24, "tree.touch_path", "tree.c: k3_tree_touch", _LIFE, silent=True),
    NativeMutant(25, "tree.superseded_fork", "tree_nodes.c: settle", _SUPERSEDED, silent=True),
    NativeMutant(26, "tree.superseded_kind", "tree.c: supersede_above", _SUPERSEDED, silent=True),
    NativeMutant(27, "tree.superseded_last", "tree_nodes.c: heap_key", _SUPERSEDED, silent=True),
    NativeMutant(28, "tree.heap_order", "tree_nodes.c: sink", _LIFE, silent=True),
    NativeMutant(29, "tree.cap_fork", "tree.c: k3_tree_cap", _SUPERSEDED, silent=True),
    NativeMutant(30, "tree.cap_locked", "tree.c: k3_tree_cap", _LOCK),
    NativeMutant(31, "tree.evict_shared", "tree.c: retire", _LOCK),
    NativeMutant(32, "tree.evict_leaf", "tree.c: retire", _LIFE, silent=True),
    NativeMutant(33, "tree.evict_tail_page", "tree_nodes.c: lose_kv", _TAIL_PAGE, silent=True),
    NativeMutant(34, "tree.ghost_limit", "tree_nodes.c: trim_ghosts", _LIFE, silent=True),
    NativeMutant(35, "tree.flush_locked", "tree.c: k3_tree_flush", _LOCK),
    NativeMutant(36, "tree.drop_stamp", "tree.c: kv_damaged", _DAMAGE),
    NativeMutant(37, "tree.drop_row", "tree.c: kv_damaged", _DAMAGE),
    NativeMutant(38, "tree.drop_state", "tree.c: k3_tree_drop", _DAMAGE),
    NativeMutant(39, "tree.value_order", "tree_nodes.c: heap_key", _VALUE, silent=True),
    NativeMutant(40, "tree.over_stays", "tree_nodes.c: heap_key", _OVER, silent=True),
    NativeMutant(41, "tree.age_stops", "tree_price.c: reach_now", _VALUE, silent=True),
    NativeMutant(42, "tree.weight_stale", "tree_price.c: reweigh", _VALUE, silent=True),
    NativeMutant(43, "tree.tail_fork", "tree.c: follow_tail", _SUPERSEDED, silent=True),
)

ARENA = (
    NativeMutant(101, "arena.lost_hole", "arena.c: vacate", _BYTES, silent=True),
    NativeMutant(102, "arena.moves_leased", "arena.c: frontier_low", _LEASE),
    NativeMutant(103, "arena.free_shared", "arena.c: k3_arena_free", _OWNER),
    NativeMutant(104, "arena.pending", "arena.c: k3_arena_free", _PENDING),
    NativeMutant(105, "arena.settle_early", "arena.c: k3_arena_settle", _PENDING),
    NativeMutant(106, "arena.settle_back", "arena.c: k3_arena_settle", _PENDING, silent=True),
    NativeMutant(107, "arena.frontier", "arena.c: vacate", _FRONTIER, silent=True),
    NativeMutant(108, "arena.hole_highest", "arena.c: take", _HOLES, silent=True),
    NativeMutant(109, "arena.dirty", "arena.c: relocate", _TABLES),
    NativeMutant(110, "arena.undo_place", "arena.c: k3_arena_undo", _MOVES),
    NativeMutant(111, "arena.optimistic", "arena.c: k3_arena_fits", _ENDS),
    NativeMutant(112, "arena.pessimistic", "arena.c: frontier_now", _HOLES, silent=True),
    NativeMutant(113, "arena.per_kind", "arena.c: excess", _JOINT),
    NativeMutant(114, "arena.room", "arena.c: k3_arena_room", _LEASE, silent=True),
    NativeMutant(115, "arena.id_reused", "arena.c: take", _OWNER),
    NativeMutant(116, "arena.split_limit", "arena.c: excess", _ENDS, silent=True),
    NativeMutant(117, "arena.lease_flag", "arena.c: k3_arena_lease", _LEASE),
    NativeMutant(118, "arena.frees_leased", "arena.c: k3_arena_free", _LEASE),
    NativeMutant(119, "arena.chain", "arena.c: lower", _DISJOINT),
    NativeMutant(120, "arena.budget", "arena.c: within", _BOUNDED, silent=True),
    NativeMutant(121, "arena.free_partial", "arena.c: k3_arena_free", _NOTHING),
)

MUTANTS = TREE + ARENA


@contextmanager
def planted(mutant: NativeMutant | int) -> Iterator[None]:
    """The C core has this bug inside the block. Raises RuntimeError in a process without the build that has them
    (``K3MEM_NATIVE=mutants`` in the environment before k3mem is imported). Not for threads: one switch a process."""
    if not hasattr(lib, "k3_mutant"):
        raise RuntimeError("this C core has no planted bugs: build with K3MEM_MUTANTS=1, run with K3MEM_NATIVE=mutants")
    before = lib.k3_mutant
    lib.k3_mutant = mutant if isinstance(mutant, int) else mutant.id
    try:
        yield
    finally:
        lib.k3_mutant = before


__all__ = ["ARENA", "MUTANTS", "TREE", "NativeMutant", "planted"]
