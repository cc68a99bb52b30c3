"""Tokens in C: a prompt's copy, and what two prompts have in common."""

from __future__ import annotations

import random

import numpy as np
import pytest

from k3mem.native import ffi, lib
from k3mem.sched.follow import common_prefix
from k3mem.types import Int32

INTS = ffi.typeof("int32_t[]")


def copy(tokens: Int32, vocab: int) -> tuple[int, Int32]:
    """What `k3_tokens_copy` says, and what it wrote."""
    out = np.full(len(tokens), -7, np.int32)
    return lib.k3_tokens_copy(ffi.from_buffer(INTS, tokens), len(tokens), vocab, ffi.from_buffer(INTS, out)), out


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_says_which_token_is_none(seed: int) -> None:
    rng = random.Random(seed)
    vocab = rng.choice((2, 97, 2**31 - 1))
    tokens = np.array([rng.randrange(vocab) for _ in range(rng.randint(1, 200))], np.int32)
    bad, out = copy(tokens, vocab)
    assert bad == -1 and (out == tokens).all()
    wrong = sorted(rng.sample(range(len(tokens)), min(len(tokens), 2)))
    tokens[wrong] = [rng.choice((-1, -(2**31), 2**31 - 1, vocab)) for _ in wrong]
    assert copy(tokens, vocab)[0] == wrong[0]


@pytest.mark.parametrize("seed", range(60))
def test_a_common_prefix_ends_where_the_first_token_differs(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(0, 100)
    one = np.array([rng.randrange(3) for _ in range(n)], np.int32)
    two = one.copy()
    at = rng.randint(0, n)
    if at < n:
        two[at] += 1
        two[at + 1 :] = 9
    assert common_prefix(one, two) == common_prefix(two, one) == at
