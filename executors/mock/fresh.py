"""What a sequence must look like with no cache at all: the oracle. Pure; shares only the hashes with the executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from k3mem.executors.mock import model
from k3mem.executors.mock.model import Matrix, Rows, Window
from k3mem.native import ffi, lib
from k3mem.plan import Sampling
from k3mem.types import Int32

MAX_VOCAB = 2**31 - 1


class FreshState(NamedTuple):
    """A state's content at one depth."""

    matrix: Matrix
    window: Window
    label: int
    """Chain hash of (scope, tokens); 0 for the zero state."""


class Walk:
    """A sequence computed token by token, with every depth kept. Memory and time O(tokens)."""

    def __init__(self, scope: bytes, recurrent_groups: int = 2, kv_groups: int = 2) -> None:
        self.seed = model.seed_of(scope)
        self.groups = recurrent_groups
        self.tokens: list[int] = []
        self.states = [FreshState(model.zero_matrix(recurrent_groups), model.zero_window(recurrent_groups), 0)]
        """[depth] the state that contains `depth` tokens."""
        self.rows: list[Rows] = []
        """[position] the KV rows of the token at `position`."""
        self.outputs: list[int] = []
        self.contexts: list[Rows] = [(0,) * kv_groups]

    def push(self, token: int) -> int:
        """Absorb one token; returns the output after it. O(1)."""
        position = len(self.tokens)
        matrix, window, label = self.states[-1]
        context = self.contexts[-1]
        rows = model.kv_rows(matrix, window, token, position, context)
        matrix, window = model.absorb(matrix, window, model.inputs(self.seed, self.groups, token, position), token)
        self.tokens.append(token)
        self.states.append(FreshState(matrix, window, model.chain(label or self.seed, token)))
        self.rows.append(rows)
        self.contexts.append(
            tuple([(c * model.BASE + r) % model.PRIME for c, r in zip(context, rows, strict=True)])
        )
        self.outputs.append(model.output_of(rows, matrix, window, token, position))
        return self.outputs[-1]

    def become(self, tokens: Sequence[int]) -> None:
        """Stand at exactly `tokens`, keeping the common prefix with what stands here. O(tokens), hashes O(new)."""
        same = 0
        for old, new in zip(self.tokens, tokens, strict=False):
            if old != new:
                break
            same += 1
        del self.tokens[same:], self.rows[same:], self.outputs[same:]
        del self.states[same + 1 :], self.contexts[same + 1 :]
        for token in tokens[same:]:
            self.push(token)


def walk(scope: bytes, tokens: Iterable[int], recurrent_groups: int = 2, kv_groups: int = 2) -> Walk:
    """The walk over `tokens`. O(tokens)."""
    out = Walk(scope, recurrent_groups, kv_groups)
    for token in tokens:
        out.push(int(token))
    return out


def fresh_state(scope: bytes, tokens: Iterable[int], recurrent_groups: int = 2, kv_groups: int = 2) -> FreshState:
    """The state that contains exactly `tokens`. O(tokens)."""
    return walk(scope, tokens, recurrent_groups, kv_groups).states[-1]


def fresh_rows(scope: bytes, tokens: Iterable[int], recurrent_groups: int = 2, kv_groups: int = 2) -> list[Rows]:
    """[tokens][kv groups] the KV rows of `tokens`. O(tokens)."""
    return walk(scope, tokens, recurrent_groups, kv_groups).rows


def fresh_output(
    scope: bytes,
    prompt: Iterable[int] | Int32,
    sampling: Sampling,
    max_new: int,
    *,
    vocab_size: int = MAX_VOCAB,
    recurrent_groups: int = 2,
    kv_groups: int = 2,
) -> list[int]:
    """The tokens that a request must get: at most `max_new`, a stop id being the last. O(prompt + output).

    `vocab_size` is that of the Shape which the executor was attached with. Raises ValueError for an empty prompt.
    """
    tokens = np.ascontiguousarray(prompt if isinstance(prompt, np.ndarray) else list(prompt), np.int32)
    if not len(tokens):
        raise ValueError("an empty prompt has no output")
    script, stops = model.script_of(sampling), sampling.stop_ids
    out = ffi.new("int32_t[]", max(1, max_new))
    count = lib.k3_fresh_output(
        model.seed_of(scope), recurrent_groups, kv_groups, vocab_size, ffi.from_buffer("int32_t[]", tokens),
        len(tokens), model.draw_of(sampling), ffi.new("int32_t[]", script), len(script),
        ffi.new("int64_t[]", stops), len(stops), max_new, out)
    return ffi.unpack(out, count) if count else []


def walked_output(walk: Walk, sampling: Sampling, max_new: int, *, vocab_size: int = MAX_VOCAB) -> list[int]:
    """`fresh_output` of a walk over the prompt, one token of Python at a time: what the compiled one must equal."""
    draw, script = model.draw_of(sampling), model.script_of(sampling)
    out: list[int] = []
    while len(out) < max_new:
        offset = len(out)
        if offset < len(script):
            token = script[offset]
        else:
            token = model.next_token(walk.outputs[-1], draw, offset, vocab_size)
        out.append(token)
        if token in sampling.stop_ids:
            break
        walk.push(token)
    return out
