"""Where on a shared document checkpoints are worth most: from the depths at which readers left it. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from k3mem.types import Int32


def best_depths(depths: Sequence[int] | Int32, weights: Sequence[int] | Int32, most: int, grid: int = 1,
                base: int = 0) -> list[int]:
    """At most `most` multiples of `grid` above `base`, ascending, that leave least to compute for readers who come
    again as before: weights[i] of them leave at depths[i] (any order), each resumes at the deepest of the chosen depths
    at or below that, or at `base`, and computes the rest. Of equally good choices one with fewest depths.

    Exact. O(n log n + most x n) for n depths. Raises ValueError for a negative weight and for grid < 1.

    Only places where somebody leaves, rounded down to the grid, need looking at: a choice between two of them serves
    the same readers as the deeper of the two would, and worse. With places f_0 < f_1 < .., and P_j the weight of those
    who leave before f_j,

        saved(j, m) = max over i < j of saved(i, m - 1) + (f_i - base) (P_j - P_i)

    where [i, j) are the readers that resume at f_i. In P_j these are lines of growing slope: the upper envelope is
    built from the left, and asked at growing P_j, so each line is pushed and dropped once.
    """
    if grid < 1:
        raise ValueError(f"grid must be >= 1, got {grid}")
    at: dict[int, int] = {}
    for depth, weight in zip(map(int, depths), map(int, weights), strict=True):
        if weight < 0:
            raise ValueError(f"a weight must be >= 0, got {weight} at depth {depth}")
        place = depth // grid * grid
        if weight and place > base:
            at[place] = at.get(place, 0) + weight
    places = sorted(at)
    before = [0]
    for place in places:
        before.append(before[-1] + at[place])
    saved, choices = [0] * len(before), list[list[int]]()
    for _ in range(min(most, len(places))):
        better, chosen = _layer(saved, [place - base for place in places], before)
        if better[-1] == saved[-1]:
            break
        choices.append(chosen)
        saved = better
    out, j = list[int](), len(places)
    for chosen in reversed(choices):
        i = chosen[j]
        if i < 0:
            continue
        out.append(places[i])
        j = i
    return out[::-1]


def _layer(saved: list[int], gains: list[int], before: list[int]) -> tuple[list[int], list[int]]:
    """One more depth: (saved by it, index of the last depth chosen or -1), for each number of places served. O(n)."""
    better, chosen = [0], [-1]
    slopes, starts, owners, head = list[int](), list[int](), list[int](), 0
    for j in range(1, len(before)):
        i = j - 1
        slope, start = gains[i], saved[i] - gains[i] * before[i]
        # The line before this one is never the highest if this one overtakes its predecessor first.
        while len(slopes) - head >= 2 and ((start - starts[-2]) * (slopes[-1] - slopes[-2])
                                           >= (starts[-1] - starts[-2]) * (slope - slopes[-2])):
            for of_lines in (slopes, starts, owners):
                of_lines.pop()
        for of_lines, value in ((slopes, slope), (starts, start), (owners, i)):
            of_lines.append(value)
        x = before[j]
        while head + 1 < len(slopes) and slopes[head + 1] * x + starts[head + 1] >= slopes[head] * x + starts[head]:
            head += 1
        found = slopes[head] * x + starts[head]
        better.append(max(found, saved[j]))
        chosen.append(owners[head] if found > saved[j] else -1)
    return better, chosen
