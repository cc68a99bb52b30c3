"""Combinations of axes so that any two values of two axes meet at least once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Cell = dict[str, Any]


def crossing(axes: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def pairwise(axes: Mapping[str, Sequence[Any]]) -> list[Cell]:
    """Few combinations that hold every pair of values of two axes. Greedy, without randomness: each combination starts
    from a missing pair and takes, axis by axis, the value that meets most missing ones. O(combinations x pairs)."""
    missing = {frozenset(pair): None for pair in _all_pairs(axes)}  # a dict keeps the order of insertion
    chosen: list[Cell] = []
    while missing:
        cell: Cell = dict(next(iter(missing)))
        for axis, values in axes.items():
            if axis not in cell:
                cell[axis] = max(values, key=lambda v: sum(
                    frozenset([(axis, v), item]) in missing for item in cell.items()))  # noqa: B023 - used at once
        for pair in combinations(cell.items(), 2):
            missing.pop(frozenset(pair), None)
        chosen.append({axis: cell[axis] for axis in axes})
    return chosen


def _all_pairs(axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    for one, other in combinations(axes, 2):
        for a, b in product(axes[one], axes[other]):
            yield (one, a), (other, b)
