"""Decode context parallelism: rank r of N holds positions p with p mod N == r; each rank attends to its own keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def local_length(position: int, rank: int, ranks: int) -> int:
    """Keys that a query at `position` (from 0, itself included) sees on a rank: those p <= position with p mod ranks ==
    rank. Also under speculation, per row of a window. O(1)."""
    return max(0, -(-(position + 1 - rank) // ranks))


def merge(outputs: Array, lse: Array) -> tuple[Array, Array]:
    """Attention over all keys from each rank's attention over its own.

    outputs: [ranks, ..., D]; lse: [ranks, ...] log of the sum of exponentials (natural base; -inf: the rank has no key
    for that query, and its output is anything, also NaN). Returns ([..., D], [...]); zeros and -inf where no rank has a
    key. Summed in rank order, so that every rank rounds alike. O(size).
    """
    top = lse.max(axis=0)
    top = np.where(np.isneginf(top), 0.0, top)
    total = np.zeros_like(lse[0])
    out = np.zeros_like(outputs[0])
    for one, own in zip(outputs, lse, strict=True):
        weight = np.exp(own - top)
        total = total + weight
        # selected before the product: NaN times 0 is NaN
        out = out + weight[..., None] * np.where(weight[..., None] > 0, one, 0.0)
    some = total > 0
    safe = np.where(some, total, 1.0)
    return out / safe[..., None], np.where(some, top + np.log(safe), -np.inf)
