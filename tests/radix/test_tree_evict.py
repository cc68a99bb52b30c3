"""What leaves the tree: eviction, take, cap, failed steps, flush. Pages of 4 tokens."""

from __future__ import annotations

import pytest
from tree_writer import A, Writer, other

from k3mem.errors import Corrupted
from k3mem.radix import Kind

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
