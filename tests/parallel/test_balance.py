"""Balanced experts: every rank its exact share, few redundant slots, each token in one place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3mem.parallel import balance, balance_capped, route
from k3mem.types import Int64


@st.composite
def loads(draw: st.DrawFn) -> tuple[Int64, int]:
    """([experts] counts that ranks divide, ranks): even ones, and ones that like few experts."""
    ranks, size = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    experts = ranks * size
    counts = np.array(draw(st.lists(st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 4000)),
                                    min_size=experts, max_size=experts)), np.int64)
    counts[draw(st.integers(0, experts - 1))] += -int(counts.sum()) % ranks
    return counts, ranks


@settings(max_examples=300, deadline=None)
@given(loads())
def test_every_rank_gets_its_exact_share_from_one_other_home(drawn: tuple[Int64, int]) -> None:
    counts, ranks = drawn
    size = len(counts) // ranks

    found = balance(counts, ranks)

    assert found.exact and (found.alloc >= 0).all()
    assert (found.alloc.sum(axis=1) == counts).all()
    assert (found.alloc.sum(axis=0) == counts.sum() // ranks).all()
    assert (found.foreign <= size).all()
    for rank in range(ranks):
        homes = {int(e) // size for e in np.flatnonzero(found.alloc[:, rank])} - {rank}
        assert len(homes) <= 1


@settings(max_examples=300, deadline=None)
@given(loads(), st.integers(0, 8))
def test_with_few_slots_no_rank_is_worse_off_and_the_cap_holds(drawn: tuple[Int64, int], slots: int) -> None:
    counts, ranks = drawn
    size, share = len(counts) // ranks, int(counts.sum()) // ranks
    home = counts.reshape(ranks, size).sum(axis=1)

    found = balance_capped(counts, ranks, slots)

    assert (found.alloc >= 0).all() and (found.alloc.sum(axis=1) == counts).all()
    assert (found.foreign <= slots).all()
    load = found.alloc.sum(axis=0)
    assert (load <= np.maximum(home, share)).all()
    assert found.exact == bool((load == share).all())
    if slots >= size:
        assert found.exact
    # who could still be given to is full, or there is nobody to give
    if not found.exact:
        idle = (load < share) & (found.foreign < slots)
        assert not idle.any() or (load <= share).all()


def test_slots_buy_balance() -> None:
    counts = np.array([900, 10, 10, 10, 10, 20, 20, 20, 20, 20, 20, 20], np.int64)  # one expert is loved
    counts[0] += -int(counts.sum()) % 4
    worst = [int(balance_capped(counts, 4, slots).alloc.sum(axis=0).max()) for slots in (0, 1, 2, 3)]
    assert worst == sorted(worst, reverse=True) and worst[0] > 2 * worst[-1] == 2 * int(counts.sum()) // 4


@settings(max_examples=150, deadline=None)
@given(loads(), st.integers(0, 10**6), st.integers(0, 8))
def test_each_token_has_one_place_and_groups_are_in_order(
        drawn: tuple[Int64, int], seed: int, slots: int) -> None:
    counts, ranks = drawn
    experts = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    np.random.default_rng(seed).shuffle(experts)
    for alloc in (balance(counts, ranks).alloc, balance_capped(counts, ranks, slots).alloc):
        routes = route(experts, alloc)

        for rank in range(ranks):
            here = np.flatnonzero(routes.rank == rank)
            assert sorted(routes.position[here].tolist()) == list(range(int(alloc[:, rank].sum())))
            by_place = here[np.argsort(routes.position[here])]
            told = [(int(experts[i]), int(i)) for i in by_place]
            assert told == sorted(told)  # expert after expert, within one in the order of sources
            for expert in set(experts[here].tolist()):
                first, end = routes.group[rank, expert], routes.group[rank, expert + 1]
                assert end - first == alloc[expert, rank] == (experts[here] == expert).sum()
        # the n-th of an expert goes to the first rank whose running sum is above n
        for expert in set(experts[:50].tolist()):
            edges = np.cumsum(alloc[expert])
            nth = routes.rank[experts == expert]
            assert nth.tolist() == np.searchsorted(edges, np.arange(len(nth)), side="right").tolist()


@pytest.mark.parametrize(("counts", "ranks"), [([1, 2, 3], 2), ([1, 2], 2), ([-1, 1], 1), ([], 1), ([[1, 1]], 1),
                                               ([2, 2], 0)])
def test_what_cannot_be_shared_is_refused(counts: list[int], ranks: int) -> None:
    with pytest.raises(ValueError, match="ranks"):
        balance(np.array(counts, np.int64), ranks)


def test_a_plan_for_other_counts_is_refused() -> None:
    alloc = balance(np.array([3, 1], np.int64), 2).alloc
    with pytest.raises(ValueError, match="same counts"):
        route(np.array([0, 0, 1, 1], np.int32), alloc)
    with pytest.raises(ValueError, match="same counts"):
        route(np.array([0, 0, 0, 2], np.int32), alloc)
    with pytest.raises(ValueError, match="slots"):
        balance_capped(np.array([3, 1], np.int64), 2, -1)
