"""Balanced expert parallelism: which rank computes how many of an expert's tokens.

Expert e lives on rank e // (E / R), its *home*. Where experts are unevenly liked, a rank that has little to do takes
tokens of another's experts, whose weights it fetches into a *redundant slot*. Every rank makes the same plan from the
same counts; ties go to the lowest number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from k3mem.types import Int32, Int64


class Balance(NamedTuple):
    """Who computes what."""

    alloc: Int64
    """[experts, ranks] tokens of an expert on a rank; a row sums to the expert's tokens."""
    exact: bool
    """Every rank has the same number of tokens."""

    @property
    def foreign(self) -> Int64:
        """[ranks] redundant slots that each rank fills."""
        experts, ranks = self.alloc.shape
        away = self.alloc > 0
        away[np.arange(experts), np.arange(experts) // (experts // ranks)] = False
        out: Int64 = away.sum(axis=0, dtype=np.int64)
        return out


class Routes(NamedTuple):
    """Where each token goes."""

    rank: Int32
    """[n] the rank that computes it."""
    position: Int32
    """[n] its place there: tokens of a rank lie expert after expert, within one in the order of their sources."""
    group: Int64
    """[ranks, experts + 1] where each expert's tokens begin on a rank; the last entry is the rank's count."""


def balance(counts: Int64, ranks: int) -> Balance:
    """Every rank computes exactly sum(counts) / ranks tokens, and fills at most experts / ranks redundant slots.

    counts: [experts] tokens of each expert over all ranks. The rank with most to do gives the one with least exactly
    what that lacks, until none lacks any: whoever was given to is full and never touched again, so it takes from one
    home only; who gives still holds more than its share, and no lack is larger than a share. Then each home serves its
    largest gift from its expert with most tokens left. At most ranks - 1 gifts. O(ranks^2 + experts ranks).

    Raises ValueError where ranks do not divide experts and tokens.
    """
    counts, share = _checked(counts, ranks)
    home = counts.reshape(ranks, -1)
    surplus = home.sum(axis=1) - share
    gifts: list[list[list[int]]] = [[] for _ in range(ranks)]
    while surplus.min() < 0:
        giver, taker = int(surplus.argmax()), int(surplus.argmin())
        amount = int(-surplus[taker])
        gifts[giver].append([amount, taker])
        surplus[giver] -= amount
        surplus[taker] = 0
    alloc = np.zeros((len(counts), ranks), np.int64)
    for giver, owed in enumerate(gifts):
        left = home[giver].copy()
        first = giver * len(left)
        while owed:
            gift = max(owed, key=lambda g: (g[0], -g[1]))
            expert = int(left.argmax())
            amount = min(gift[0], int(left[expert]))
            alloc[first + expert, gift[1]] += amount
            left[expert] -= amount
            gift[0] -= amount
            if not gift[0]:
                owed.remove(gift)
        alloc[first : first + len(left), giver] += left
    return Balance(alloc, True)


def balance_capped(counts: Int64, ranks: int, slots: int) -> Balance:
    """The same with at most `slots` redundant slots a rank. Where the exact plan needs no more it is that. Else ranks
    stay uneven: one expert after another goes from the rank with most to do to that with least and a slot free, as much
    as brings neither past its share. No rank ends with more than the larger of its share and what it had at home.
    O(ranks slots (ranks + experts / ranks)).

    Raises ValueError as `balance` does, and for slots below 0.
    """
    counts, share = _checked(counts, ranks)
    if slots < 0:
        raise ValueError(f"slots must be >= 0, got {slots}")
    exact = balance(counts, ranks)
    if (exact.foreign <= slots).all():
        return exact
    size = len(counts) // ranks
    alloc = np.zeros((len(counts), ranks), np.int64)
    alloc[np.arange(len(counts)), np.arange(len(counts)) // size] = counts
    surplus, free = counts.reshape(ranks, size).sum(axis=1) - share, np.full(ranks, slots)
    while True:
        lacks = np.where(free > 0, surplus, 0)
        giver, taker = int(surplus.argmax()), int(lacks.argmin())
        if surplus[giver] <= 0 or lacks[taker] >= 0:
            return Balance(alloc, bool((surplus == 0).all()))
        own = slice(giver * size, (giver + 1) * size)
        expert = giver * size + int(alloc[own, giver].argmax())
        amount = min(int(surplus[giver]), int(-surplus[taker]), int(alloc[expert, giver]))
        free[taker] -= alloc[expert, taker] == 0
        alloc[expert, giver] -= amount
        alloc[expert, taker] += amount
        surplus[giver] -= amount
        surplus[taker] += amount


def route(experts: Int32, alloc: Int64) -> Routes:
    """Where each of n (token, expert) pairs goes, given in the order of their sources: rank 0's first. The i-th pair of
    expert e goes to the first rank d with alloc[e, 0] + ... + alloc[e, d] > i. O(n log n).

    Raises ValueError unless alloc has just as many tokens of each expert.
    """
    count, ranks = alloc.shape
    have = np.bincount(experts, minlength=count)
    if len(have) != count or (have != alloc.sum(axis=1)).any():
        raise ValueError("alloc has not the tokens of these pairs: plan and route from the same counts")
    order = np.argsort(experts, kind="stable")
    # in that order expert after expert, and within one the n-th pair; ranks take runs of them
    rank_of = np.repeat(np.tile(np.arange(ranks, dtype=np.int32), count), alloc.ravel())
    group = np.zeros((ranks, count + 1), np.int64)
    np.cumsum(alloc.T, axis=1, out=group[:, 1:])
    run = alloc.ravel()
    within = np.arange(len(experts)) - np.repeat(np.cumsum(run) - run, run)
    begin = np.repeat(group[:, :-1].T.ravel(), run)
    rank, position = np.empty(len(experts), np.int32), np.empty(len(experts), np.int32)
    rank[order], position[order] = rank_of, begin + within
    return Routes(rank, position, group)


def _checked(counts: Int64, ranks: int) -> tuple[Int64, int]:
    """(the counts, a rank's share of them)."""
    counts = np.asarray(counts, np.int64)
    if ranks < 1 or counts.ndim != 1 or len(counts) % ranks or not len(counts):
        raise ValueError(f"{ranks} ranks do not divide {counts.shape} experts")
    if (counts < 0).any() or int(counts.sum()) % ranks:
        raise ValueError(f"{int(counts.sum())} tokens cannot be shared evenly by {ranks} ranks")
    return counts, int(counts.sum()) // ranks
