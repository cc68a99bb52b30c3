"""Depths of checkpoints on a shared document: exact against every choice tried; and what the tree knows of forks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3mem.radix import Kind, Lru, Tree
from k3mem.radix.depths import best_depths
from k3mem.types import StateId


def to_compute(chosen: Sequence[int], depths: Sequence[int], weights: Sequence[int], base: int = 0) -> int:
    """Tokens that readers compute who leave at these depths and resume at the deepest of `chosen` below, or at `base`;
    who leaves at or above `base` computes nothing."""
    return sum(weight * max(0, depth - max((place for place in chosen if place <= depth), default=base))
               for depth, weight in zip(depths, weights, strict=True))


def least_of_all(depths: list[int], weights: list[int], most: int, grid: int, base: int) -> int:
    """By trying every choice of multiples of the grid."""
    places = range((base // grid + 1) * grid, max(depths, default=0) + 1, grid)
    return min(to_compute(chosen, depths, weights, base)
               for count in range(min(most, len(places)) + 1) for chosen in combinations(places, count))


@given(st.lists(st.tuples(st.integers(0, 24), st.integers(0, 9)), max_size=9), st.integers(0, 4),
       st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_no_choice_leaves_less_to_compute(readers: list[tuple[int, int]], most: int, grid: int, base: int) -> None:
    depths, weights = [depth for depth, _ in readers], [weight for _, weight in readers]
    chosen = best_depths(depths, weights, most, grid, base)
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen)) and all(depth > base and depth % grid == 0 for depth in chosen)
    assert to_compute(chosen, depths, weights, base) == least_of_all(depths, weights, most, grid, base)


def test_more_depths_leave_no_more_and_none_is_for_nothing() -> None:
    rng = np.random.default_rng(0)
    depths, weights = rng.integers(1, 100_000, 300), rng.integers(1, 50, 300)
    left = [to_compute(best_depths(depths, weights, most, 64), depths, weights) for most in range(40)]
    assert all(more < fewer for fewer, more in zip(left, left[1:], strict=False))
    everywhere = best_depths(depths, weights, 10**6, 64)
    assert everywhere == sorted({depth // 64 * 64 for depth in depths.tolist()} - {0})


def test_the_common_depths_come_first() -> None:
    assert best_depths([100, 200, 300], [1, 9, 1], 1) == [200]
    assert best_depths([100, 200, 300], [9, 1, 1], 1) == [100]
    assert best_depths([100, 200, 300], [1, 1, 1], 0) == []
    assert best_depths([100, 200, 300], [1, 1, 1], 5, base=200) == [300]
    assert best_depths([100], [0], 5) == []


@pytest.mark.parametrize(("options", "reason"), [
    ({"weights": [-1]}, "a weight must be >= 0, got -1 at depth 5"), ({"grid": 0}, "grid must be >= 1"),
    ({"weights": [1, 2]}, "zip"),
])
def test_wrong_histograms_are_refused(options: dict[str, object], reason: str) -> None:
    given: dict[str, object] = {"depths": [5], "weights": [1], "most": 1, "grid": 1} | options
    with pytest.raises(ValueError, match=reason):
        best_depths(**given)  # type: ignore[arg-type]


PAGE = 4


def tree_of(prompts: list[list[int]], ghosts: bool) -> Tree:
    """A tree that has seen these prompts, with KV or without."""
    tree = Tree(PAGE, PAGE, Lru())
    root = tree.root(tree.new_scope())
    for i, prompt in enumerate(prompts):
        end = len(prompt) // PAGE * PAGE
        if ghosts:
            tree.remember(root, prompt, end)
        else:
            tree.publish(root, prompt, end, list(range(1000 * i, 1000 * i + end // PAGE)), StateId(i),
                         Kind(i % len(Kind)), i)
    return tree


@pytest.mark.parametrize("ghosts", [False, True])
def test_forks_of_a_path_are_those_of_all_prompts_seen(ghosts: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        prompts = [rng.integers(0, 2, 4 * PAGE).tolist() for _ in range(12)]
        tree = tree_of(prompts, ghosts)
        path = prompts[int(rng.integers(len(prompts)))]
        branches: dict[int, set[tuple[int, ...]]] = {}
        for other in prompts:
            same = next((i for i, (a, b) in enumerate(zip(path, other, strict=True)) if a != b), None)
            if same is not None:  # one branch for all that leave by the same page
                page = same // PAGE * PAGE
                branches.setdefault(page, set()).add(tuple(other[page : page + PAGE]))
        depth, count = tree.forks(tree.new_scope() * 0, path)  # type: ignore[arg-type]
        assert dict(zip(depth.tolist(), count.tolist(), strict=True)) == {p: len(b) for p, b in branches.items()}
        assert depth.tolist() == sorted(depth.tolist())


def test_forks_end_where_the_path_is_not_known() -> None:
    shared = list(range(3 * PAGE))
    tree = tree_of([[*shared, *[50] * PAGE], [*shared, *[60] * PAGE], [*shared[:PAGE], *[70] * 3 * PAGE]], False)
    scope = tree.new_scope()
    depth, count = tree.forks(0, [*shared, *[80] * PAGE])  # type: ignore[arg-type]
    assert (depth.tolist(), count.tolist()) == ([PAGE, 3 * PAGE], [1, 2])
    assert tree.forks(0, shared[: PAGE + 2])[0].tolist() == [PAGE], "inside a page"  # type: ignore[arg-type]
    assert tree.forks(0, [99] * 9)[0].tolist() == [0], "all others left at once"  # type: ignore[arg-type]
    assert len(tree.forks(scope, shared)[0]) == 0
    assert len(tree.forks(scope, [])[0]) == 0
    with pytest.raises(ValueError, match="no scope 7"):
        tree.forks(7, shared)  # type: ignore[arg-type]


def test_a_tail_on_the_path_has_not_left_it() -> None:
    tree = tree_of([list(range(2 * PAGE))], False)
    tree.publish(tree.root(0), [*range(PAGE), 4, 5], PAGE + 2, [900, 901], StateId(77))  # type: ignore[arg-type]
    tree.publish(tree.root(0), [*range(PAGE), 4, 9], PAGE + 2, [902, 903], StateId(78))  # type: ignore[arg-type]
    tree.check()
    depth, count = tree.forks(0, list(range(2 * PAGE)))  # type: ignore[arg-type]
    assert (depth.tolist(), count.tolist()) == ([PAGE], [1]), "the one that ends in 9 left, the other is on the path"


def test_checkpoints_are_counted_by_kind() -> None:
    prompts = [[i] * PAGE for i in range(20)]
    tree = tree_of(prompts, False)
    assert tree.kinds() == [sum(i % len(Kind) == kind for i in range(20)) for kind in range(len(Kind))]
    assert sum(tree.kinds()) == tree.counters().checkpoints
    victim = tree.evict()
    assert victim is not None
    assert sum(tree.kinds()) == 19 and tree.kinds()[victim.kind] == 2
