"""Attention merged from ranks is attention over all keys, whatever ranks have none."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from k3mem.parallel import local_length, merge
from k3mem.parallel.decode import Array


def attend(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """([D], []) attention of one query, and its log-sum-exp; NaN and -inf without keys."""
    if not len(k):
        return np.full(v.shape[-1], np.nan), np.array(-np.inf)
    s = k @ q
    top = s.max()
    w = np.exp(s - top)
    return w @ v / w.sum(), top + np.log(w.sum())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 30), st.floats(0.1, 300.0))
def test_a_merge_is_attention_over_all_keys(seed: int, ranks: int, keys: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    q, k, v = scale * rng.normal(size=5), rng.normal(size=(keys, 5)), rng.normal(size=(keys, 3))
    parts = [attend(q, k[r::ranks], v[r::ranks]) for r in range(ranks)]

    out, lse = merge(np.stack([o for o, _ in parts]), np.stack([one for _, one in parts]))

    want, want_lse = attend(q, k, v)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-13, atol=1e-12)


def test_queries_that_no_rank_has_keys_for_are_zero_and_minus_infinity() -> None:
    outputs = np.full((3, 2, 4), np.nan)
    lse = np.full((3, 2), -np.inf)
    outputs[1, 1], lse[1, 1] = 7.0, 2.0

    with np.errstate(all="raise"):
        out, merged = merge(outputs, lse)

    assert out[0].tolist() == [0.0] * 4 and merged[0] == -np.inf
    assert out[1].tolist() == [7.0] * 4 and merged[1] == 2.0


def test_what_is_far_below_the_rest_vanishes_without_overflow() -> None:
    lse = np.array([[-1e4], [1e4]])
    with np.errstate(over="raise", invalid="raise"):
        out, merged = merge(np.array([[[1.0]], [[2.0]]]), lse)
    assert out.tolist() == [[2.0]] and merged.tolist() == [1e4]


def test_equal_shares_are_averaged_in_rank_order() -> None:
    out, lse = merge(np.array([[[1.0]], [[2.0]], [[6.0]]]), np.zeros((3, 1)))
    assert out[0, 0] == 3.0 and lse[0] == np.log(3.0)


@given(st.integers(0, 200), st.integers(1, 16))
def test_a_rank_sees_its_positions_up_to_the_query(position: int, ranks: int) -> None:
    for rank in range(ranks):
        assert local_length(position, rank, ranks) == sum(p % ranks == rank for p in range(position + 1))
