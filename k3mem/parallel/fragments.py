"""Prefill of one prompt on many ranks: a span of tokens is an affine map of the recurrent state.

    S_t = (I - beta_t k_t k_t^T) Diag(e^{g_t}) S_{t-1} + beta_t k_t v_t^T          one token, S is [K, V]
    S   -> M S + B                                                                  a span of them: a *fragment*

Each rank computes its span's fragment without the state before it; a scan over ranks gives each the state it begins
with. A cached prefix enters as the scan's initial state. Nothing grows: |k| <= 1, 0 <= beta <= 1 and g <= 0 make every
M a contraction, and exponents are differences that are <= 0 before they are taken.

Equal to the token-by-token recurrence up to rounding, not to the last bit. Where that matters, pass the state from rank
to rank instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


class Fragment(NamedTuple):
    """The map S -> m @ S + b."""

    m: Array
    """[..., K, K]; leading axes are heads, or anything."""
    b: Array
    """[..., K, V]"""

    def apply(self, state: Array) -> Array:
        """The state after the span, of the one before it. [..., K, V] both. O(K^2 V)."""
        return self.m @ state + self.b


def identity(like: Fragment) -> Fragment:
    """The fragment of no tokens, of the shape and element type of another."""
    m = np.broadcast_to(np.eye(like.m.shape[-1], dtype=like.m.dtype), like.m.shape).copy()
    return Fragment(m, np.zeros_like(like.b))


def compose(later: Fragment, earlier: Fragment) -> Fragment:
    """One after the other: associative, with `identity` neutral. O(K^3 + K^2 V)."""
    return Fragment(later.m @ earlier.m, later.m @ earlier.b + later.b)


def fragment(k: Array, v: Array, g: Array, beta: Array, chunk: int = 64) -> Fragment:
    """A span's fragment, chunk by chunk: the chunk form of the state, run on the columns [M | B] from [I | 0].

    k, g: [..., T, K] keys and log decays (<= 0); v: [..., T, V]; beta: [..., T]; T may be 0. Raises ValueError for a
    chunk below 1. O(T (chunk K + K^2 + K V)) time, O(chunk^2 K) memory a head.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be >= 1, got {chunk}")
    width, tokens = k.shape[-1], k.shape[-2]
    x = np.zeros((*k.shape[:-2], width, width + v.shape[-1]), np.result_type(k, v, g, beta))
    x[..., :width] = np.eye(width)
    wide = np.zeros((*v.shape[:-1], width + v.shape[-1]), x.dtype)
    wide[..., width:] = v
    for first in range(0, tokens, chunk):
        at = slice(first, first + chunk)
        x = _chunk(x, k[..., at, :], wide[..., at, :], g[..., at, :], beta[..., at])
    return Fragment(x[..., :width], x[..., width:])


def _chunk(x: Array, k: Array, v: Array, g: Array, beta: Array) -> Array:
    """The state's columns x [..., K, N] after a chunk of C tokens with values v [..., C, N]."""
    decay = np.cumsum(g, axis=-2)
    count = k.shape[-2]
    # before[i, j] = e^{G_i - G_j} per channel for j < i: a difference <= 0; elsewhere it is not taken
    later = np.arange(count)[:, None] > np.arange(count)
    gap = np.where(later[..., None], decay[..., :, None, :] - decay[..., None, :, :], -np.inf)
    a = beta[..., :, None] * np.einsum("...id,...jd,...ijd->...ij", k, k, np.exp(gap))
    seen = np.exp(decay) * k
    right = beta[..., :, None] * (v - seen @ x)
    values = np.linalg.solve(np.eye(count, dtype=x.dtype) + a, right)
    rest = np.exp(decay[..., -1:, :] - decay) * k
    out: Array = np.exp(decay[..., -1, :])[..., None] * x + np.swapaxes(rest, -1, -2) @ values
    return out


def scan_serial(fragments: Sequence[Fragment], initial: Array) -> tuple[list[Array], Array]:
    """(the state that each rank begins with, the state after the last): each fragment applied in turn, as after one
    gather. O(R K^2 V); rounds as the serial code does."""
    entries, state = [], initial
    for one in fragments:
        entries.append(state)
        state = one.apply(state)
    return entries, state


def scan_tree(fragments: Sequence[Fragment], initial: Array) -> tuple[list[Array], Array]:
    """The same by doubling: log2 R rounds, in each of which rank r composes with rank r - 2^i. O(R log R K^3)."""
    upto = list(fragments)
    reach = 1
    while reach < len(upto):
        upto = [compose(one, upto[r - reach]) if r >= reach else one for r, one in enumerate(upto)]
        reach *= 2
    states = [one.apply(initial) for one in upto]
    return [initial, *states[:-1]][: len(upto)], states[-1] if states else initial
