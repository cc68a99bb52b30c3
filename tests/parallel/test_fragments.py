"""Fragments of a prompt compose to what its tokens do one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3mem.parallel import Fragment, compose, fragment, identity, scan_serial, scan_tree
from k3mem.parallel.fragments import Array

Tokens = tuple[Array, Array, Array, Array]


def tokens(seed: int, count: int, heads: int = 2, width: int = 6, values: int = 4, harsh: bool = False) -> Tokens:
    """(k, v, g, beta) of normed keys, decays of up to e^-5 a token, and gates."""
    rng = np.random.default_rng(seed)
    k = rng.normal(size=(heads, count, width))
    k /= np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    g = -5 * rng.random((heads, count, width)) ** (1 if harsh else 4)
    return k, rng.normal(size=(heads, count, values)), g, rng.random((heads, count))


def token_by_token(state: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    """The recurrence as it is written down."""
    for t in range(k.shape[-2]):
        faded = np.exp(g[..., t, :])[..., None] * state
        known = np.einsum("...kv,...k->...v", faded, k[..., t, :])
        u = beta[..., t, None] * (v[..., t, :] - known)
        state = faded + k[..., t, :, None] * u[..., None, :]
    return state


def cut(all_of: Tokens, at: list[int]) -> list[Tokens]:
    k, v, g, beta = all_of
    ends = [*at, k.shape[-2]]
    return [(k[:, a:b], v[:, a:b], g[:, a:b], beta[:, a:b]) for a, b in zip([0, *at], ends, strict=True)]


def near(a: Array, b: Array) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 80), st.integers(1, 40), st.booleans())
def test_a_fragment_is_what_its_tokens_do_to_any_state(seed: int, count: int, chunk: int, harsh: bool) -> None:
    span = tokens(seed, count, harsh=harsh)
    state = np.random.default_rng(seed + 1).normal(size=(2, 6, 4))

    found = fragment(*span, chunk=chunk)

    near(found.apply(state), token_by_token(state, *span))
    assert np.linalg.norm(found.m, 2, axis=(-2, -1)).max() <= 1 + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 60), max_size=9))
def test_ranks_begin_and_end_where_the_serial_prefill_would(seed: int, cuts: list[int]) -> None:
    whole, at = tokens(seed, 60), sorted(cuts)
    parts = cut(whole, at)
    initial = np.random.default_rng(seed + 1).normal(size=(2, 6, 4))  # a cached prefix
    fragments = [fragment(*part, chunk=16) for part in parts]

    for scan in (scan_serial, scan_tree):
        entries, final = scan(fragments, initial)

        near(final, token_by_token(initial, *whole))
        assert len(entries) == len(parts)
        state = initial
        for entry, part in zip(entries, parts, strict=True):
            near(entry, state)
            state = token_by_token(state, *part)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_composition_is_associative_with_a_neutral_fragment(seed: int) -> None:
    a, b, c = (fragment(*tokens(seed + i, 5 + i)) for i in range(3))
    left, right = compose(compose(c, b), a), compose(c, compose(b, a))
    near(left.m, right.m)
    near(left.b, right.b)
    none = identity(a)
    for same in (compose(a, none), compose(none, a)):
        near(same.m, a.m)
        near(same.b, a.b)


def test_composition_is_in_order() -> None:
    a, b = (fragment(*tokens(seed, 8)) for seed in (1, 2))
    assert np.abs(compose(a, b).b - compose(b, a).b).max() > 1e-3


def test_no_ranks_leave_the_state_as_it_is() -> None:
    initial = np.ones((1, 3, 2))
    for scan in (scan_serial, scan_tree):
        entries, final = scan([], initial)
        assert not entries and final is initial


def test_single_precision_stays_single_and_near() -> None:
    span = tokens(7, 200, width=16, values=16)
    small = fragment(*(part.astype(np.float32) for part in span))
    assert small.m.dtype == small.b.dtype == np.float32
    exact = fragment(*span)
    np.testing.assert_allclose(small.b, exact.b, atol=2e-5)


def test_a_chunk_has_tokens() -> None:
    with pytest.raises(ValueError, match="chunk must be"):
        fragment(*tokens(0, 4), chunk=0)
    assert isinstance(fragment(*tokens(0, 0)), Fragment)
