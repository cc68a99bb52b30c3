"""The rows of one step as index tensors, the same for all layers.

Tokens stand time-major: first every row's first token, then the second ones, and so on; rows are ordered by length, the
longest first. So the recurrence advances all rows that have a t-th token by one slice, and a step of decodes is one
slice in all.

    rows A (3 tokens), B (2), C (1):   | A0 B0 C0 | A1 B1 | A2 | padding to a multiple of 16 |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from k3mem.executors.torch_ref.ops import padded
from k3mem.types import Int32, Int64

KEYS = 64
"""Keys of one attention tile; tiles lie at absolute positions."""
SCORES = 1 << 20
"""Most (token, key) pairs that attention holds at a time."""


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one row."""

    start: int
    """Position of the first one."""
    tokens: Int32 | Int64
    kv: Int64
    """[start + tokens] KV row of every position up to the last one, in the first KV layer."""
    outputs: int
    """Logits are wanted for so many of its last tokens."""
    chunked: bool = False
    """The recurrence runs by chunks of 64 tokens (see `chunk`)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive tokens that attend together."""

    first: int
    counts: tuple[int, ...]
    """Rows at each of its times; the tokens of a time are rows 0 .. count - 1."""
    tiles: int
    """Key tiles that the deepest of its tokens reaches."""
    hidden: Tensor
    """[tokens, tiles, 1, 64] true where a key lies behind the token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Index tensors of a step; see the module. B rows, N tokens, `padded` to whole tiles."""

    spans: tuple[Span, ...]
    count: int
    """N."""
    counts: tuple[int, ...]
    """Rows that have a t-th token, for t = 0, 1, ..."""
    first: Int64
    """[times] number of each time's first token."""
    tokens: Tensor
    """[padded] int64."""
    taps: Tensor
    """[padded * taps] what each token's convolution takes, oldest first: among (windows of all rows | tokens)."""
    ends: Tensor
    """[B * (taps - 1)] the window behind each row's last token, among the same."""
    position: Int64
    """[N] of each token."""
    write: Tensor
    """[N] KV row of each token in the first KV layer."""
    read: Tensor
    """[B * tiles * 64] KV row of each position; 0 beyond a row's last token."""
    blocks: tuple[Block, ...]
    outputs: Tensor
    """Tokens whose logits are wanted, by row, then by time; padded with token 0 to whole tiles."""
    wanted: int
    """Of them, without padding."""

    @classmethod
    def of(cls, spans: Sequence[Span], taps: int, *, causal: bool = True) -> Batch:
        """Of rows ordered by length, the longest first, none empty. Not `causal`: a token sees all of its row.
        O(tokens + positions)."""
        lengths = np.array([len(span.tokens) for span in spans])
        counts = (lengths[:, None] > np.arange(lengths[0])).sum(0)
        first = np.cumsum(counts) - counts
        time = np.repeat(np.arange(lengths[0]), counts)
        row = np.arange(len(time)) - first[time]
        n = len(time)
        total = padded(n)
        starts = np.array([span.start for span in spans])
        position = starts[row] + time
        seen = position if causal else (starts + lengths - 1)[row]
        tokens = np.zeros(total, np.int64)
        joined = np.concatenate([span.tokens for span in spans])
        offset = np.cumsum(lengths) - lengths
        tokens[:n] = joined[offset[row] + time]
        tiles = -(-int((starts + lengths).max()) // KEYS)
        read = np.zeros((len(spans), tiles * KEYS), np.int64)
        for at, span in zip(read, spans, strict=True):
            at[: len(span.kv)] = span.kv
        out = np.concatenate([first[length - s.outputs : length] + i
                              for i, (s, length) in enumerate(zip(spans, lengths, strict=True))])
        outputs = np.zeros(padded(len(out)), np.int64)
        outputs[: len(out)] = out
        near = np.zeros((total, taps), np.int64)
        near[:n] = _before(row, time + 1, taps, len(spans), first)
        ends = _before(np.arange(len(spans)), lengths, taps - 1, len(spans), first, taps - 1)
        return cls(
            spans=tuple(spans), count=n, counts=tuple(counts.tolist()), first=first, tokens=torch.from_numpy(tokens),
            taps=torch.from_numpy(near.reshape(-1)), ends=torch.from_numpy(ends.reshape(-1)), position=position,
            write=torch.from_numpy(read[row, position]), read=torch.from_numpy(read.reshape(-1)),
            blocks=_blocks(counts, first, seen), outputs=torch.from_numpy(outputs), wanted=len(out),
        )

    @property
    def padding(self) -> int:
        """Tokens beyond the last real one."""
        return len(self.tokens) - self.count

    def window_at(self, row: int, tokens: int, taps: int) -> Tensor:
        """[taps - 1] the window behind a row's first `tokens` tokens, among (window rows | tokens)."""
        near = _before(np.array([row]), np.array([tokens]), taps - 1, len(self.spans), self.first, taps - 1)
        return torch.from_numpy(near[0])


def _before(row: Int64, tokens: Int64, taps: int, rows: int, first: Int64, window: int | None = None) -> Int64:
    """[n, taps] where the last `taps` rows before the convolution lie once a row has absorbed `tokens` tokens: window
    row `window` * row + k of what stood there before, or `window` * rows + token."""
    window = taps - 1 if window is None else window
    time = tokens[:, None] - taps + np.arange(taps)
    inside = time >= 0
    token = first[np.where(inside, time, 0)] + row[:, None]
    return np.where(inside, window * rows + token, window * row[:, None] + window + time)


def _blocks(counts: Int64, first: Int64, position: Int64) -> tuple[Block, ...]:
    """`position`: the last that each token sees."""
    out = []
    begin = 0
    while begin < len(counts):
        end, tiles = begin, 0
        while end < len(counts):
            deepest = int(position[first[end] : first[end] + counts[end]].max()) // KEYS + 1
            more = max(tiles, deepest) * KEYS * (int(first[end] - first[begin]) + int(counts[end]))
            if end > begin and more > SCORES:
                break
            tiles, end = max(tiles, deepest), end + 1
        low, high = int(first[begin]), int(first[end - 1] + counts[end - 1])
        keys = torch.arange(tiles * KEYS).view(1, tiles, 1, KEYS)
        at = torch.from_numpy(position[low:high]).view(-1, 1, 1, 1)
        out.append(Block(low, tuple(counts[begin:end].tolist()), tiles, keys > at))
        begin = end
    return tuple(out)
