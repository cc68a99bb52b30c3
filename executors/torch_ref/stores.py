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
    """[any, width]; row 0 of each KV layer is finite, since it stands in for what lies beyond a row's last token."""
    stride: int
    """From a token's row in one KV layer to its row in the next one."""

    def put(self, layer: int, where: Tensor, rows: Tensor) -> None:
        """Write tokens' rows; `where` [n] names those of the first KV layer."""
        self.rows.index_copy_(0, where + layer * self.stride if layer else where, rows)

    def get(self, layer: int, where: Tensor) -> Tensor:
        """[n, width] rows; `where` as above."""
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

    def window(self, before: Tensor, numbers: Tensor) -> Tensor:
        """[layers, taps - 1, channels] the window behind these records; `before` is that ahead of them."""
        fresh = self.row.index_select(0, numbers).transpose(0, 1)
        return torch.cat((before, fresh), 1)[:, len(numbers) :]


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


def fold(matrix: Tensor, records: Records, numbers: Tensor, counts: Sequence[int],
         landed: Callable[[int], None]) -> None:
    """Replay records into states: matrix [B, layers, heads, V, K] in place.

    Row b takes the counts[b] records numbers[b, 0], numbers[b, 1], ...; counts descend. `landed(t)` is told when every
    row that has t records has taken so many. A token costs S <- S a; S <- S + u k^T, the very operations of the forward
    pass and nothing that sums, so the bits are those of decoding. O(sum(counts) layers heads V K).
    """
    for t in range(counts[0]):
        alive = sum(count > t for count in counts)
        at, part = numbers[:alive, t], matrix[:alive]
        part.mul_(records.decay.index_select(0, at).unsqueeze(3))
        part.add_(records.u.index_select(0, at).unsqueeze(4) * records.key.index_select(0, at).unsqueeze(3))
        landed(t + 1)
