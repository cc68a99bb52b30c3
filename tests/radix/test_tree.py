"""The tree's behaviours, one a test. Pages of 4 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from k3mem.errors import Corrupted
from k3mem.radix import Evicted, EvictionPolicy, Kind, Lru, Published, Tree

P = 4
A = np.arange(100, 164, dtype=np.int32)


class Writer:
    """A tree with one scope, and publishers that count fresh page and state ids for it."""

    def __init__(self, policy: EvictionPolicy | None = None, ghost_tokens: int | None = None) -> None:
        self.tree = Tree(P, P, policy or Lru(()), ghost_tokens)
        self.scope = self.tree.new_scope()
        self.root = self.tree.root(self.scope)
        self.pages = self.states = 0

    def fresh(self, n: int) -> list[int]:
        self.pages += n
        return list(range(self.pages - n, self.pages))

    def put(self, node: int, tokens: Any, end: int, kind: Kind = Kind.HINT, stamp: int = 1, state: int | None = None,
            pages: list[int] | None = None) -> Published:
        """Publish with fresh pages for what lies past `node`'s whole pages."""
        if pages is None:
            pages = self.tree.pages(node).tolist()[: self.tree.info(node).depth // P]
            pages += self.fresh(-(-end // P) - len(pages))
        if state is None:
            state, self.states = self.states, self.states + 1
        got = self.tree.publish(node, tokens, end, pages, state, kind, stamp)
        self.tree.check()
        return got

    def hit(self, tokens: Any, limit: int | None = None, before: int | None = None) -> int:
        return self.tree.match(self.scope, tokens, limit, before).depth

    def evict(self, protect: int = -1) -> Evicted:
        got = self.tree.evict(protect)
        self.tree.check()
        assert got is not None
        return got


def other(at: int, n: int = 64) -> Any:
    """A's first `at` tokens, then others."""
    return np.concatenate([A[:at], np.arange(900, 900 + n - at, dtype=np.int32)])


@pytest.fixture
def w() -> Writer:
    return Writer()


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


# -- eviction


def test_least_recently_touched_goes_first(w: Writer) -> None:
    a, b, c = (w.put(w.root, t, 8).node for t in (A, other(0), A[8:]))
    w.tree.touch(a)
    got = [w.evict() for _ in range(3)]
    assert [e.node for e in got] == [b, c, a]
    assert [e.unused for e in got] == [True, True, False]
    assert w.tree.evict() is None


def test_kv_that_only_the_victim_needed_goes_with_it(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16, state=-1)
    c = w.put(b.node, A, 22)
    w.tree.touch(a.node)
    got = w.evict()
    assert (got.node, got.depth, got.state, got.tokens) == (c.node, 22, 1, 14)
    assert sorted(got.pages.tolist()) == [2, 3, 4, 5]
    assert w.hit(A) == 8


def test_interior_victim_gives_its_state_only(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    w.put(a.node, A, 16)
    got = w.evict()
    assert (got.node, got.state, got.pages.tolist(), got.tokens) == (a.node, 0, [], 0)
    match = w.tree.match(w.scope, A[:12])
    assert (match.depth, match.kv, match.evicted) == (0, 12, 8)


def test_fork_keeps_shared_kv_until_the_last_child_goes(w: Writer) -> None:
    w.put(w.root, A, 8)
    w.put(w.root, other(4), 8)
    assert w.evict().tokens == 4
    assert w.evict().tokens == 8
    assert w.tree.counters().kv_pages == 0


def test_kv_without_checkpoint_goes_before_any_checkpoint(w: Writer) -> None:
    w.put(w.root, A, 8)
    b = w.put(w.root, other(0), 8, state=-1)
    got = w.evict()
    assert (got.node, got.state, got.unused, got.pages.tolist()) == (b.node, -1, False, [2, 3])


def test_lock_protects_state_here_and_kv_above_but_not_states_above(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16)
    w.tree.lock(b.node)
    assert w.evict().node == a.node
    assert w.tree.evict() is None
    w.tree.unlock(b.node)
    assert (w.evict().tokens, w.tree.counters().kv_tokens) == (16, 0)


def test_protected_path_is_passed_over(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16)
    c = w.put(a.node, other(8), 16)
    assert w.evict(protect=b.node).node == c.node
    assert w.tree.evict(b.node) is None
    assert w.hit(A) == 16


def test_ghosts_beyond_the_limit_are_forgotten_oldest_first() -> None:
    w = Writer(ghost_tokens=8)
    for tokens in (A, other(0), A[8:]):
        w.put(w.root, tokens, 8)
    for _ in range(3):
        w.evict()
    assert [w.tree.match(w.scope, t).known for t in (A, other(0), A[8:])] == [0, 0, 8]
    assert w.tree.counters().nodes == 2


def test_forget_ghosts_leaves_no_trace(w: Writer) -> None:
    w.put(w.root, A, 16)
    w.evict()
    w.tree.forget_ghosts()
    w.tree.check()
    assert (w.tree.match(w.scope, A).known, w.tree.counters().edge_tokens) == (0, 0)


# -- take, lock, cap


def test_take_leaves_a_tombstone(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    assert w.tree.take(a.node) == 0
    match = w.tree.match(w.scope, A)
    assert (match.depth, match.kv, match.evicted) == (0, 8, 8)
    with pytest.raises(Corrupted, match="no checkpoint"):
        w.tree.take(a.node)


def test_unlock_below_zero_is_corrupted(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    with pytest.raises(Corrupted, match="below"):
        w.tree.unlock(a.node)


@pytest.mark.parametrize("node", [-1, 7, 2**31 - 1])
def test_unknown_nodes_are_corrupted(w: Writer, node: int) -> None:
    for call in (w.tree.touch, w.tree.lock, w.tree.pages, w.tree.info, w.tree.take, w.tree.path_tokens):
        with pytest.raises(Corrupted, match="not in the tree"):
            call(node)  # type: ignore[operator]


def test_cap_removes_the_checkpoint_of_least_loss(w: Writer) -> None:
    node, ends = w.root, (8, 12, 24, 32, 40)
    for end in ends:
        node = w.put(node, A, end).node
    got = w.tree.cap(node, 3)
    w.tree.check()
    assert got is not None
    assert (got.depth, got.pages.tolist()) == (12, [])
    assert w.tree.cap(node, 3) is None


def test_cap_passes_over_forks_locks_and_other_kinds(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16)
    c = w.put(b.node, A, 24, kind=Kind.TURN)
    d = w.put(c.node, A, 32)
    w.put(a.node, other(8), 16)
    w.tree.lock(b.node)
    assert w.tree.cap(d.node, 1) is None
    assert w.tree.cap(d.node, 0, [Kind.HINT]) is None
    got = w.tree.cap(d.node, 0, [Kind.TURN])
    assert got is not None
    assert got.node == c.node


# -- failed steps, flush


def test_drop_takes_what_the_failed_step_wrote(w: Writer) -> None:
    a = w.put(w.root, A, 8, stamp=1)
    b = w.put(a.node, A, 16, stamp=2)
    w.put(b.node, A, 24, stamp=3)
    got = w.tree.drop(2)
    w.tree.check()
    assert (sorted(got.states), sorted(got.pages)) == ([1, 2], [2, 3, 4, 5])
    match = w.tree.match(w.scope, A)
    assert (match.depth, match.kv, match.known, match.evicted) == (8, 8, 24, 0)


def test_checkpoint_of_a_failed_step_on_older_kv_goes_alone(w: Writer) -> None:
    a = w.put(w.root, A, 8, state=-1, stamp=1)
    w.put(a.node, A, 8, stamp=2)
    got = w.tree.drop(2)
    assert (got.states.tolist(), got.pages.tolist(), w.tree.match(w.scope, A).kv) == ([0], [], 8)


def test_tail_whose_rows_were_not_damaged_survives(w: Writer) -> None:
    tail = w.put(w.root, A, 6)
    w.put(tail.node, A, 12, pages=[0, 1, 2])
    got = w.tree.drop(9, [2**31 - 1, 2, 2**31 - 1])
    w.tree.check()
    assert (got.states.tolist(), sorted(got.pages)) == ([1], [1, 2])
    assert w.hit(A) == 6
    assert w.tree.drop(9, [2**31 - 1, 1]).states.tolist() == [0]


def test_kv_damage_takes_everything_deeper_locked_or_not(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16)
    w.tree.lock(b.node)
    got = w.tree.drop(9, [0])
    w.tree.check()
    assert (len(got.states), len(got.pages)) == (2, 4)
    assert (w.tree.info(b.node).has_kv, w.tree.info(b.node).lock) == (False, 1)
    w.tree.forget_ghosts()
    w.tree.unlock(b.node)
    w.tree.check()
    assert w.tree.match(w.scope, A).known == 16


def test_damaged_state_takes_that_checkpoint_only(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    w.put(a.node, A, 16)
    got = w.tree.drop(9, damaged_states=[False, True])
    assert (got.states.tolist(), got.pages.tolist()) == ([1], [])
    match = w.tree.match(w.scope, A)
    assert (match.depth, match.kv, match.evicted) == (8, 16, 16)


def test_flush_keeps_only_what_locks_need(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    b = w.put(a.node, A, 16)
    w.put(b.node, A, 24)
    w.put(w.root, other(0), 8)
    w.tree.lock(b.node)
    got = w.tree.flush()
    w.tree.check()
    assert (sorted(got.states), sorted(got.pages)) == ([0, 2, 3], [4, 5, 6, 7])
    match = w.tree.match(w.scope, A)
    assert (match.depth, match.known, w.tree.counters().nodes) == (16, 16, 3)


def test_publishing_from_a_ghost_is_corrupted(w: Writer) -> None:
    a = w.put(w.root, A, 8)
    w.evict()
    with pytest.raises(Corrupted, match="ghost"):
        w.tree.publish(a.node, A, 12, [0, 1, 2])
    with pytest.raises(Corrupted, match="ghost"):
        w.tree.pages(a.node)


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
    assert sorted(zip(walk.depth.tolist(), walk.state.tolist(), walk.stamp.tolist(), walk.scope.tolist(), strict=True)) == [
        (8, 0, 1, 0), (14, -1, -1, 0)]


def test_walk_outlives_later_changes(w: Writer) -> None:
    w.put(w.root, A, 8)
    pages = w.evict().pages
    w.put(w.root, other(0), 32)
    w.put(w.root, A, 32)
    w.evict()
    assert pages.tolist() == [0, 1]
