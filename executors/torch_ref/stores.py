"""Where a step finds states and KV, and where it leaves them: what the layers see of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Kv:
    """KV rows of all KV layers, in one tensor."""

    rows: Tensor
    """[any, width]; row 0 is zero."""
    stride: int
    """From a token's row in one KV layer to its row in the next one."""

    def put(self, layer: int, where: Tensor, rows: Tensor) -> None:
        """Write tokens' rows; `where` [n] names those of the first KV layer."""
        self.rows.index_copy_(0, where + layer * self.stride if layer else where, rows)

    def get(self, layer: int, where: Tensor) -> Tensor:
        """[n, width] rows; `where` as above. Layer 0's row 0 stands in for all beyond a row's end: in other layers it
        becomes row `layer * stride`, which is zero as well."""
        return self.rows.index_select(0, where + layer * self.stride if layer else where)


@dataclass(slots=True)
class States:
    """Working copies of the rows' recurrent states, [B, ...] in the batch's order. Layers update them in place."""

    matrix: Sequence[Tensor]
    """[KDA layer] [B, heads, V, K]: V first."""
    window: Sequence[Tensor]
    """[KDA layer] [B, taps - 1, channels], oldest first, q | k | v."""


@dataclass(slots=True)
class Records:
    """What a fold needs of each token of VERIFY rows, [token, ...] by KDA layer. See `fold`."""

    tokens: Tensor
    """[n] which of the batch's tokens."""
    u: Tensor
    """[n, layers, heads, V] what the token adds along its key."""
    key: Tensor
    """[n, layers, heads, K] normed key."""
    decay: Tensor
    """[n, layers, heads, K]"""
    row: Tensor
    """[n, layers, channels] before the convolution."""

    def put(self, layer: int, u: Tensor, key: Tensor, decay: Tensor, row: Tensor) -> None:
        """Keep one layer's, given for all tokens of the batch."""
        for mine, all_of in ((self.u, u), (self.key, key), (self.decay, decay), (self.row, row)):
            mine[:, layer] = all_of.index_select(0, self.tokens)


@dataclass(slots=True)
class Snapshot:
    """A copy of one row's state to be taken inside the step."""

    row: int
    tokens: int
    """After so many of the row's tokens."""
    matrix: Callable[[int], Tensor]
    """Layer -> [heads, V, K] to fill."""
    window: Callable[[int], Tensor]
    """Layer -> [taps - 1, channels] to fill."""


@dataclass(slots=True)
class Memory:
    """All that a step reads and writes beside its activations."""

    states: States
    kv: Kv
    snapshots: Sequence[Snapshot] = ()
    records: Records | None = None
    at: dict[int, list[Snapshot]] = field(default_factory=dict)
    """Snapshots by how many of their row's tokens they follow."""

    def __post_init__(self) -> None:
        for snapshot in self.snapshots:
            self.at.setdefault(snapshot.tokens, []).append(snapshot)


def fold(matrix: Tensor, window: Tensor, records: Records, rows: Tensor, counts: Sequence[int],
         landed: Callable[[int], None]) -> Tensor:
    """Replay records into states: matrix [B, layers, heads, V, K] in place. Returns the windows after it.

    Row b takes counts[b] records, which stand at rows[b, 0], rows[b, 1], ...; counts descend. window [B, layers, taps -
    1, channels] is that before the first record. `landed(t)` is told when t records of every row that has so many are
    in. Each token costs S <- a S; S <- S + k u^T, the very operations of the forward pass and nothing that sums, so
    the bits are those of decoding.
    """
    alive = 0
    for t in range(counts[0]):
        alive = sum(count > t for count in counts)
        at = rows[:alive, t]
        part = matrix[:alive]
        part.mul_(records.decay.index_select(0, at).unsqueeze(3))
        part.add_(records.u.index_select(0, at).unsqueeze(4) * records.key.index_select(0, at).unsqueeze(3))
        landed(t + 1)
    return torch.stack([fold_window(window[b], records, rows[b], count) for b, count in enumerate(counts)])


def fold_window(window: Tensor, records: Records, rows: Tensor, count: int) -> Tensor:
    """[layers, taps - 1, channels] a row's window after its first `count` records."""
    width = window.shape[1]
    fresh = records.row.index_select(0, rows[:count]).transpose(0, 1)
    return torch.cat((window, fresh), 1)[:, -width:] if width else window
