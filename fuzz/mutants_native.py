"""The planted bugs of the C core, by name. They exist only in the build with `K3_MUTANTS` (``K3MEM_MUTANTS=1``), as
hooks `K3_MUTANT(id)` in the same sources; a release build has none. `native/k3.h`, `native/arena.h` and
`native/lanes.h` number them.

Each says where it stands and which rule it breaks. A *silent* one never gives a wrong token: it costs memory or hits.
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
    """`tree.`, `arena.` or `step.` and the enum's name in small letters."""
    where: str
    """`file: function` of the hook that matters most."""
    breaks: str
    """Key of the rule that forbids it, see `k3mem.fuzz.rules`."""
    silent: bool = False
    """Costs memory or hits, never a wrong token."""


TREE = (
    NativeMutant(1, "tree.evict_recent", "tree_nodes.c: heap_key", "tree.life", silent=True),
    NativeMutant(2, "tree.evict_locked", "tree_nodes.c: belongs_in_heap", "tree.lock"),
    NativeMutant(3, "tree.limit", "tree_match.c: consider", "sched.one_token"),
    NativeMutant(4, "tree.stamp", "tree_match.c: consider", "plan.visible"),
    NativeMutant(5, "tree.protect", "tree.c: k3_tree_evict", "arena.all_or_nothing"),
    NativeMutant(6, "tree.tails", "tree_match.c: look_in_page", "tree.tails", silent=True),
    NativeMutant(7, "tree.drop_deeper", "tree.c: spread_damage", "plan.damage"),
    NativeMutant(8, "tree.attach_split", "tree_nodes.c: split", "tree.depth"),
    NativeMutant(9, "tree.split_recency", "tree_nodes.c: split", "tree.split", silent=True),
    NativeMutant(10, "tree.split_lock", "tree_nodes.c: split", "tree.split"),
    NativeMutant(11, "tree.split_stamp", "tree_nodes.c: split", "plan.damage"),
    NativeMutant(12, "tree.tombstone", "tree_match.c: consider", "tree.life"),
    NativeMutant(13, "tree.first_page", "tree_match.c: match_below", "tree.tokens"),
    NativeMutant(14, "tree.scope", "tree_match.c: k3_tree_match", "tree.apart"),
    NativeMutant(15, "tree.match_touches", "tree_match.c: k3_tree_match", "tree.pure", silent=True),
    NativeMutant(16, "tree.treap_order", "tree_nodes.c: sibling_order", "tree.children"),
    NativeMutant(17, "tree.treap_priority", "tree_nodes.c: unlink_child", "tree.own_node", silent=True),
    NativeMutant(18, "tree.tail_page", "tree.c: k3_tree_publish", "tree.takes_over"),
    NativeMutant(19, "tree.adopted", "tree.c: k3_tree_publish", "arena.pass"),
    NativeMutant(20, "tree.replaced", "tree.c: step_on", "arena.pass"),
    NativeMutant(21, "tree.taken", "tree.c: k3_tree_publish", "sched.donated"),
    NativeMutant(22, "tree.revived_pages", "tree.c: step_on", "arena.pass"),
    NativeMutant(23, "tree.lock_flag", "tree.c: k3_tree_lock", "tree.lock"),
    NativeMutant(24, "tree.touch_path", "tree.c: k3_tree_touch", "tree.life", silent=True),
    NativeMutant(25, "tree.superseded_fork", "tree_nodes.c: settle", "sched.superseded", silent=True),
    NativeMutant(26, "tree.superseded_kind", "tree.c: supersede_above", "sched.superseded", silent=True),
    NativeMutant(27, "tree.superseded_last", "tree_nodes.c: heap_key", "sched.superseded", silent=True),
    NativeMutant(28, "tree.heap_order", "tree_nodes.c: sink", "tree.life", silent=True),
    NativeMutant(29, "tree.cap_fork", "tree.c: k3_tree_cap", "better.cap", silent=True),
    NativeMutant(30, "tree.cap_locked", "tree.c: k3_tree_cap", "better.cap"),
    NativeMutant(31, "tree.evict_shared", "tree.c: retire", "tree.lock"),
    NativeMutant(32, "tree.evict_leaf", "tree.c: retire", "tree.life", silent=True),
    NativeMutant(33, "tree.evict_tail_page", "tree_nodes.c: lose_kv", "tree.takes_over", silent=True),
    NativeMutant(34, "tree.ghost_limit", "tree_nodes.c: trim_ghosts", "tree.life", silent=True),
    NativeMutant(35, "tree.flush_locked", "tree.c: k3_tree_flush", "tree.lock"),
    NativeMutant(36, "tree.drop_stamp", "tree.c: kv_damaged", "plan.damage"),
    NativeMutant(37, "tree.drop_row", "tree.c: kv_damaged", "plan.damage"),
    NativeMutant(38, "tree.drop_state", "tree.c: k3_tree_drop", "plan.damage"),
    NativeMutant(39, "tree.value_order", "tree_nodes.c: heap_key", "evict.value", silent=True),
    NativeMutant(40, "tree.over_stays", "tree_nodes.c: heap_key", "evict.over", silent=True),
    NativeMutant(41, "tree.age_stops", "tree_price.c: reach_now", "evict.age", silent=True),
    NativeMutant(42, "tree.weight_stale", "tree_price.c: reweigh", "evict.weight", silent=True),
    NativeMutant(43, "tree.tail_fork", "tree.c: follow_tail", "evict.tail", silent=True),
    NativeMutant(44, "tree.ghost_fork", "tree.c: supersede_above", "sched.superseded", silent=True),
)

ARENA = (
    NativeMutant(101, "arena.lost_hole", "arena.c: vacate", "arena.account", silent=True),
    NativeMutant(102, "arena.moves_leased", "arena.c: frontier_low", "arena.lease"),
    NativeMutant(103, "arena.free_shared", "arena.c: k3_arena_free", "arena.owner"),
    NativeMutant(104, "arena.pending", "arena.c: k3_arena_free", "arena.pending"),
    NativeMutant(105, "arena.settle_early", "arena.c: k3_arena_settle", "arena.pending"),
    NativeMutant(106, "arena.settle_back", "arena.c: k3_arena_settle", "arena.pending", silent=True),
    NativeMutant(107, "arena.frontier", "arena.c: vacate", "arena.frontier", silent=True),
    NativeMutant(108, "arena.hole_highest", "arena.c: take", "arena.holes", silent=True),
    NativeMutant(109, "arena.dirty", "arena.c: relocate", "arena.tables"),
    NativeMutant(110, "arena.undo_place", "arena.c: k3_arena_undo", "arena.moves"),
    NativeMutant(111, "arena.optimistic", "arena.c: k3_arena_fits", "arena.ends"),
    NativeMutant(112, "arena.pessimistic", "arena.c: frontier_now", "arena.holes", silent=True),
    NativeMutant(113, "arena.per_kind", "arena.c: excess", "arena.joint"),
    NativeMutant(114, "arena.room", "arena.c: k3_arena_room", "arena.lease", silent=True),
    NativeMutant(115, "arena.id_reused", "arena.c: take", "arena.owner"),
    NativeMutant(116, "arena.split_limit", "arena.c: excess", "arena.ends", silent=True),
    NativeMutant(117, "arena.lease_flag", "arena.c: k3_arena_lease", "arena.lease"),
    NativeMutant(118, "arena.frees_leased", "arena.c: k3_arena_free", "arena.lease"),
    NativeMutant(119, "arena.chain", "arena.c: lower", "arena.disjoint"),
    NativeMutant(120, "arena.budget", "arena.c: within", "arena.bounded", silent=True),
    NativeMutant(121, "arena.free_partial", "arena.c: k3_arena_free", "arena.all_or_nothing"),
)

STEP = (
    NativeMutant(70, "step.covered", "lanes.c: k3_lanes_ready", "arena.clean"),
    NativeMutant(71, "step.still_new", "moves.c: k3_written_set", "arena.moves"),
    NativeMutant(72, "step.all_dead", "moves.c: k3_moves_alive", "arena.moves"),
)
"""Of the passes over a step's lanes and moves: seen in worlds, and by the tests of those passes."""

MUTANTS = TREE + ARENA + STEP


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


__all__ = ["ARENA", "MUTANTS", "STEP", "TREE", "NativeMutant", "planted"]
