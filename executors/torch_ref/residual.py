"""The residual stream: plain sums, or attention residuals.

Attention residuals: every `block` layers the running sum p becomes row v_j of a bank and starts anew. Whoever reads
sees the rows and p mixed by a softmax, with one learned vector w (norm times projection) a reading place:

    s_j = w . v_j / sqrt(mean(v_j^2) + eps);   r = sum_j softmax(s)_j v_j      (p is the last row)

A row of the bank no longer changes, so its scores at all places are one product, made when it is written.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.ops import Linear, inverse_rms
from k3mem.executors.torch_ref.weights import Checkpoint


class Stream(Protocol):
    """One step's activations on their way through the layers. Place 2 i is read before layer i's attention, 2 i + 1
    before its feed-forward part, 2 layers before the head."""

    def read(self, place: int) -> Tensor: ...

    def add(self, y: Tensor) -> None: ...


class Plain:
    """x = x + y."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def read(self, place: int) -> Tensor:
        return self.x

    def add(self, y: Tensor) -> None:
        self.x = self.x + y


class Places:
    """Learned vectors of all reading places."""

    def __init__(self, config: Config, weights: Checkpoint) -> None:
        """Raises BadCheckpoint."""
        names = [f"layers.{i}.{part}" for i in range(config.layers) for part in ("self_attention_res", "mlp_res")]
        rows = []
        for name in (*names, "output_attn_res"):
            projection = weights.take(f"{name}_proj.weight", 1, config.hidden, also=[(config.hidden,)])
            rows.append(projection[0] * weights.take(f"{name}_norm.weight", config.hidden))
        self.vectors = torch.stack(rows)
        self.scores = Linear(self.vectors)
        assert config.res_block is not None
        self.block, self.eps, self.last = config.res_block, config.eps, 2 * config.layers
        self.rows = -(-config.layers // self.block)


class Mixed:
    """Attention residuals."""

    def __init__(self, x: Tensor, places: Places) -> None:
        self.places = places
        self.bank = x.new_empty(len(x), places.rows + 1, x.shape[1])
        self.scores = x.new_empty(len(x), places.rows + 1, places.last + 1)
        self.count = 0
        self.empty = False
        """p holds nothing since the bank took it."""
        self.bank[:, 0] = x

    def read(self, place: int) -> Tensor:
        places, count = self.places, self.count
        p = self.bank[:, count]
        if count == 0:
            out = p.clone()
        else:
            norm = inverse_rms(p, places.eps)
            own = (p * places.vectors[place]).sum(-1, keepdim=True).mul_(norm)
            share = torch.cat((self.scores[:, :count, place], own), 1).softmax(-1)
            out = (self.bank[:, : count + 1] * share.unsqueeze(-1)).sum(1)
        if place < places.last and place % (2 * places.block) == 0:
            self._keep(p)
        return out

    def _keep(self, p: Tensor) -> None:
        self.scores[:, self.count] = self.places.scores(p).mul_(inverse_rms(p, self.places.eps))
        self.count += 1
        self.empty = True

    def add(self, y: Tensor) -> None:
        if self.empty:
            self.bank[:, self.count] = y
            self.empty = False
        else:
            self.bank[:, self.count].add_(y)
