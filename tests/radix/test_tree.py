"""What the tree knows: match, publish, superseded marks, counters. Pages of 4 tokens."""

from __future__ import annotations

import numpy as np
import pytest
from tree_writer import A, Writer, other

from k3mem.radix import Kind, Lru, Tree
from k3mem.types import ScopeId, StateId

# -- match


def test_empty_tree_matches_its_root(w: Writer) -> None:
    assert w.tree.match(w.scope, A) == (w.root, 0, -1, 0, 0, 0, 0)


def test_empty_prompt_matches_the_root(w: Writer) -> None:
    w.put(w.root, A, 8)
    assert w.tree.match(w.scope, []) == (w.root, 0, -1, 0, 0, 0, 0)


def test_hit_is_the_deepest_checkpoint_and_known_is_token_exact(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16)
    assert w.tree.match(w.scope, other(15)) == (a.node, 8, 0, 15, 15, 0, 8)
    assert w.tree.match(w.scope, A) == (b.node, 16, 1, 16, 16, 0, 16)


def test_limit_keeps_the_last_token_and_full_tells_what_it_cost(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    w.put(a.node, A, 16)
    got = w.tree.match(w.scope, A[:16], 15)
    assert (got.depth, got.full, got.known) == (8, 16, 16)


@pytest.mark.parametrize("step", [2**31, 2**32 + 5, 2**39 - 1])
def test_steps_of_forty_bits_are_exact(w: Writer, step: int) -> None:
    node = w.put(w.root, A, 8, stamp=step).node
    info = w.tree.info(node)
    assert (info.stamp, info.kv_stamp) == (step, step)
    assert (w.hit(A, before=step), w.hit(A, before=step + 1)) == (0, 8)
    assert len(w.tree.drop(step + 1).pages) == 0
    assert len(w.tree.drop(step).pages) == 2
    w.tree.check()


def test_a_step_beyond_forty_bits_is_refused(w: Writer) -> None:
    with pytest.raises(ValueError, match="stamp"):
        w.put(w.root, A, 8, stamp=2**39)
    assert w.tree.counters().nodes == 1


def test_checkpoint_of_the_same_step_is_not_visible(w: Writer) -> None:
    w.put(w.root, A, 8, stamp=3)
    assert (w.hit(A, before=3), w.hit(A, before=4)) == (0, 8)


def test_match_takes_the_deepest_usable_of_all_tails_in_a_page(w: Writer) -> None:
    w.put(w.root, A, 1, stamp=1)
    w.put(w.root, A, 2, stamp=5)
    w.put(w.root, A, 3, stamp=9)
    w.put(w.root, A, 8, stamp=9)
    assert [w.hit(A, before=b) for b in (10, 9, 5, 1)] == [8, 2, 1, 0]
    assert [w.hit(A, limit=n) for n in (7, 2, 1, 0)] == [3, 2, 1, 0]
    assert w.hit(other(3)) == 3


def test_shorter_tail_behind_a_closer_neighbour_is_found(w: Writer) -> None:
    w.put(w.root, [5, 6], 2)
    w.put(w.root, [5, 6, 1], 3)
    w.put(w.root, [5, 6, 3, 2], 4)
    assert w.hit([5, 6, 2, 2, 9]) == 2


def test_tail_serves_where_the_deeper_path_has_no_checkpoint(w: Writer) -> None:
    w.put(w.root, A, 3)
    w.put(w.root, A, 16, state=-1)
    got = w.tree.match(w.scope, A)
    assert (got.depth, got.known, got.kv) == (3, 16, 16)


def test_scopes_share_nothing(w: Writer) -> None:
    w.put(w.root, A, 8)
    scope = w.tree.new_scope()
    assert w.tree.match(scope, A) == (w.tree.root(scope), 0, -1, 0, 0, 0, 0)


def test_match_is_a_pure_read(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    w.put(w.root, other(4), 8)
    before, nodes = w.tree.info(a.node), w.tree.counters()
    w.hit(other(6))
    assert (w.tree.info(a.node), w.tree.counters()) == (before, nodes)
    assert w.evict().node == a.node


# -- publish


def test_publishing_hands_pages_over(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    assert (a.taken, a.adopted_from, a.shared_page, a.replaced.tolist()) == (True, 0, -1, [])
    b = w.put(a.node, A, 16)
    assert (b.adopted_from, w.tree.pages(b.node).tolist()) == (2, [0, 1, 2, 3])
    assert w.tree.path_tokens(b.node).tolist() == A[:16].tolist()


def test_tail_references_its_last_page_and_a_deeper_node_takes_it_over(w: Writer) -> None:
    tail = w.put(w.root, A, 6)
    assert (tail.adopted_from, tail.shared_page) == (0, 1)
    deep = w.put(tail.node, A, 12, pages=[0, 1, 2])
    assert (deep.adopted_from, deep.shared_page, deep.replaced.tolist()) == (1, -1, [])
    assert w.tree.pages(tail.node).tolist() == [0, 1]
    assert w.tree.pages(deep.node).tolist() == [0, 1, 2]
    assert w.tree.info(tail.node).start == 4
    assert w.tree.info(tail.node).parent == w.tree.info(deep.node).parent


def test_tail_within_its_page_is_left_through_its_parent(w: Writer) -> None:
    a = w.put(w.root, A, 4)
    tail = w.put(a.node, A, 6)
    deep = w.put(tail.node, A, 12)
    assert w.tree.info(deep.node).parent == a.node == w.tree.info(tail.node).parent


def test_same_tail_is_reused(w: Writer) -> None:
    first = w.put(w.root, A, 6)
    again = w.put(w.root, A, 6)
    assert (again.node, again.taken, again.shared_page) == (first.node, False, -1)
    assert again.replaced.tolist() == [[0, 0]]


def test_split_leaves_identity_state_lock_and_recency_below(w: Writer) -> None:
    a = w.put(w.root, A, 12, kind=Kind.TURN)
    w.tree.lock(a.node)
    b = w.put(w.root, other(6), 12)
    upper = w.tree.info(a.node).parent
    low, up = w.tree.info(a.node), w.tree.info(upper)
    assert (low.depth, low.start, low.state, low.lock, low.kind) == (12, 4, 0, 1, Kind.TURN)
    assert (up.depth, up.state, up.lock, up.children, up.has_kv) == (4, -1, 0, 2, True)
    assert b.replaced.tolist() == [[0, 0]]
    assert b.adopted_from == 1
    assert w.tree.pages(b.node).tolist() == [0, 4, 5]


def test_publishing_inside_a_longer_edge_splits_and_attaches(w: Writer) -> None:
    w.put(w.root, A, 16)
    b = w.put(w.root, A, 8)
    assert b.taken
    assert b.replaced.tolist() == [[0, 0], [1, 1]]
    assert (w.hit(A, 15), w.hit(A)) == (8, 16)


def test_second_checkpoint_at_a_node_is_refused_and_refreshes_the_first(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(w.root, other(0), 8)
    again = w.put(w.root, A, 8)
    assert (again.node, again.taken, w.tree.info(a.node).state) == (a.node, False, 0)
    assert w.evict().node == b.node


def test_publishing_at_the_own_node_attaches_there(w: Writer) -> None:
    a = w.put(w.root, A, 8, state=-1)
    assert (a.taken, w.hit(A)) == (False, 0)
    b = w.put(a.node, A, 8)
    assert (b.node, b.taken, b.adopted_from, w.hit(A)) == (a.node, True, 2, 8)


def test_ghosts_on_the_way_are_revived_with_the_publishers_pages(w: Writer) -> None:
    w.put(w.root, A, 16)
    w.evict()
    got = w.put(w.root, other(10), 16)
    assert (got.adopted_from, got.replaced.tolist()) == (0, [])
    assert w.tree.pages(got.node).tolist() == [4, 5, 6, 7]
    match = w.tree.match(w.scope, A)
    assert (match.known, match.kv, match.evicted) == (16, 10, 16)


def test_revived_tail_reports_its_shared_page(w: Writer) -> None:
    w.put(w.root, A, 6)
    w.evict()
    assert w.put(w.root, A, 6).shared_page == 3


@pytest.mark.parametrize(
    ("end", "pages", "state", "stamp"), [(0, [], 1, 1), (4, [0, 1], 1, 1), (12, [0, 1], 1, 1), (12, [0, 1, 2], 1, -1)]
)
def test_wrong_arguments_change_nothing(w: Writer, end: int, pages: list[int], state: int, stamp: int) -> None:
    a = w.put(w.root, A, 8)
    before = w.tree.counters()
    with pytest.raises(ValueError, match="publish"):
        w.tree.publish(a.node, A, end, pages, state, Kind.HINT, stamp)
    with pytest.raises(ValueError, match="tokens"):
        w.tree.publish(a.node, A[:9], 12, [0, 1, 2], 1, Kind.HINT, 1)
    assert w.tree.counters() == before


# -- superseded


def test_nearest_chunk_end_above_is_superseded_and_goes_first() -> None:
    w = Writer(Lru())
    old = w.put(w.root, other(0), 8)
    a = w.put(w.root, A, 8, kind=Kind.CHUNK_END)
    b = w.put(a.node, A, 16, kind=Kind.CHUNK_END)
    c = w.put(b.node, A, 24, kind=Kind.PROMPT_END)
    assert [w.tree.info(n).superseded for n in (a.node, b.node, c.node)] == [True, True, False]
    assert [w.evict().node for _ in range(4)] == [a.node, b.node, old.node, c.node]


def test_plain_lru_ignores_the_mark() -> None:
    w = Writer(Lru(()))
    old = w.put(w.root, other(0), 8)
    a = w.put(w.root, A, 8, kind=Kind.CHUNK_END)
    w.put(a.node, A, 16)
    assert w.tree.info(a.node).superseded
    assert w.evict().node == old.node


def test_other_kinds_and_forks_are_not_superseded(w: Writer) -> None:
    branch = w.put(w.root, A, 8, kind=Kind.BRANCH)
    w.put(branch.node, A, 16)
    fork = w.put(w.root, other(0), 8, kind=Kind.PROMPT_END)
    w.put(fork.node, np.concatenate([other(0)[:8], A]), 16, state=-1)
    w.put(fork.node, other(0), 16)
    assert not w.tree.info(branch.node).superseded
    assert not w.tree.info(fork.node).superseded


def test_second_child_takes_the_mark_off(w: Writer) -> None:
    a = w.put(w.root, A, 8, kind=Kind.PROMPT_END)
    w.put(a.node, A, 16)
    assert w.tree.info(a.node).superseded
    w.put(a.node, other(8), 16)
    assert not w.tree.info(a.node).superseded


def test_mark_goes_with_the_last_kv_below(w: Writer) -> None:
    a = w.put(w.root, A, 8, kind=Kind.PROMPT_END)
    w.put(a.node, A, 16)
    w.tree.touch(a.node)
    w.evict()
    assert (w.tree.info(a.node).superseded, w.hit(A)) == (False, 8)


# -- construction and counting


@pytest.mark.parametrize(
    ("page", "grid", "ghosts"), [(0, 64, None), (513, 513, None), (4, 6, None), (4, 0, None), (4, 4, -1)]
)
def test_impossible_trees_are_refused(page: int, grid: int, ghosts: int | None) -> None:
    with pytest.raises(ValueError, match="must be"):
        Tree(page, grid, Lru(), ghosts)


def test_counters_and_walk_agree(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    w.put(a.node, A, 14, state=-1)
    count, walk = w.tree.counters(), w.tree.walk()
    assert (count.nodes, count.checkpoints, count.kv_pages, count.kv_tokens) == (3, 1, 4, 14)
    assert count.metadata_bytes > 4 * count.edge_tokens
    rows = zip(walk.depth.tolist(), walk.state.tolist(), walk.stamp.tolist(), walk.scope.tolist(), strict=True)
    assert sorted(rows) == [(8, 0, 1, 0), (14, -1, -1, 0)]


def test_walk_outlives_later_changes(w: Writer) -> None:
    w.put(w.root, A, 8)
    pages = w.evict().pages
    w.put(w.root, other(0), 32)
    w.put(w.root, A, 32)
    w.evict()
    assert pages.tolist() == [0, 1]


def test_what_could_not_be_kept_is_remembered_as_a_ghost() -> None:
    tree = Tree(4, 4, Lru(()), None)
    root = tree.root(tree.new_scope())
    tokens = np.arange(30, dtype=np.int32)
    kept = tree.publish(root, tokens, 8, np.array([1, 2], np.int32), StateId(3), Kind.PROMPT_END, 1)
    tree.remember(kept.node, tokens, 23)
    tree.check()
    found = tree.match(ScopeId(0), tokens)
    assert (found.depth, found.kv, found.known) == (8, 8, 20), "whole pages of it"
    before = tree.counters()
    tree.remember(root, tokens, 20)
    assert tree.counters() == before, "known already"
    fork = np.concatenate([tokens[:14], np.full(10, 99, np.int32)])
    tree.remember(root, fork, 24)
    tree.check()
    assert tree.match(ScopeId(0), fork).known == 24
    assert tree.match(ScopeId(0), tokens).known == 20
    tree.publish(kept.node, tokens, 20, np.arange(1, 6, dtype=np.int32), StateId(4), Kind.PROMPT_END, 2)
    tree.check()
    assert tree.match(ScopeId(0), tokens).kv == 20


def test_remembered_ghosts_obey_the_limit() -> None:
    tree = Tree(4, 4, Lru(()), 16)
    root = tree.root(tree.new_scope())
    for i in range(10):
        tree.remember(root, np.full(12, i, np.int32), 12)
        tree.check()
        assert tree.counters().ghost_tokens <= 16
