"""Kimi delta attention: short convolution, per-channel decay, delta rule, gated norm.

One token x, one head, S of shape [V, K] (V first); `*` is elementwise:

    q, k, v = L2(silu(conv(W_q x))) / sqrt(K), L2(silu(conv(W_k x))), silu(conv(W_v x))
    a = e^g,  g = bound * sigmoid(e^A (W_f x + dt))   or   -e^A softplus(W_f x + dt)
    S <- S * a;  u = beta (v - S k);  S <- S + u k^T;  o = S q;  beta = sigmoid(W_b x)
    y = W_o (RMS(o) w * sigmoid(W_g x))

Weights that only scale (the norm before the layer, the gated norm, e^A, signs of what sigmoid takes) are folded into
their neighbours at load: fewer operations, none of them rounded twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3mem.executors.torch_ref.batch import Batch
from k3mem.executors.torch_ref.chunk import chunk_scan
from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.ops import Linear, rms, sigmoid_neg_, silu, softplus
from k3mem.executors.torch_ref.stores import Memory
from k3mem.executors.torch_ref.weights import Checkpoint

L2_EPS = 1e-6


class Kda:
    """One KDA layer. `index` counts KDA layers."""

    def __init__(self, config: Config, weights: Checkpoint, layer: int, index: int, norm: Tensor) -> None:
        """`norm` [hidden]: weight of the norm before the layer. Raises BadCheckpoint."""
        self.index, self.eps = index, config.eps
        self.heads, self.dim, self.width = config.kda_heads, config.kda_dim, config.kda_width
        self.bound = config.lower_bound
        name, hidden, width, heads = f"layers.{layer}.self_attn", config.hidden, self.width, self.heads

        def take(part: str, rows: int, columns: int) -> Tensor:
            return weights.take(f"{name}.{part}.weight", rows, columns)

        inputs = [take(f"{part}_proj", width, hidden) for part in "qkv"]
        inputs += [take("f_a_proj", self.dim, hidden), -take("b_proj", heads, hidden)]
        self.gate: Linear | None = None
        if config.full_rank_gate:
            inputs.append(-take("g_proj", width, hidden))
        else:
            inputs.append(take("g_a_proj", self.dim, hidden))
            self.gate = Linear(-take("g_b_proj", width, self.dim))
        self.sizes = [3 * width, self.dim, heads, len(inputs[-1])]
        self.input = Linear(torch.cat(inputs) * norm)
        taps = [weights.take(f"{name}.{part}_conv1d.weight", width, 1, config.conv, also=[(width, config.conv)])
                for part in "qkv"]
        self.taps = torch.cat(taps).view(3 * width, config.conv).t().contiguous()
        scale = weights.heads(f"{name}.A_log", heads).exp().repeat_interleave(self.dim)
        decay = take("f_b_proj", width, self.dim)
        shift = weights.take(f"{name}.dt_bias", width, also=[(heads, self.dim)])
        if self.bound is not None:
            decay, shift = -decay * scale.unsqueeze(1), -shift * scale
        self.decay, self.minus_scale = Linear(decay, shift), -scale
        norm_out = weights.take(f"{name}.o_norm.weight", self.dim).repeat(heads)
        self.output = Linear(take("o_proj", hidden, width) * norm_out)

    def __call__(self, x: Tensor, batch: Batch, memory: Memory) -> Tensor:
        """[N, hidden] normed without its weight -> [N, hidden]. States and windows advance in place."""
        row, low, beta, gate = self.input(x).split_with_sizes(self.sizes, 1)
        beta = sigmoid_neg_(beta.contiguous())
        gate = gate.contiguous() if self.gate is None else self.gate(gate)
        q, k, v = self._convolved(row, batch, memory)
        g = self._decay(low)
        decay = g.exp()
        u, o = torch.zeros_like(v), torch.zeros_like(v)
        if any(span.chunked for span in batch.spans):
            chunk_scan(memory, self.index, batch, q, k, v, g, beta, u, o)
            for i, span in enumerate(batch.spans):
                if span.chunked:
                    continue
                at = torch.from_numpy(batch.first[: len(span.tokens)]) + i
                own = [x.index_select(0, at) for x in (q, k, v, decay, beta)]
                added, out = torch.empty_like(own[2]), torch.empty_like(own[2])
                scan(memory, self.index, batch, own[0], own[1], own[2], own[3], own[4], added, out, i)
                u.index_copy_(0, at, added)
                o.index_copy_(0, at, out)
        else:
            scan(memory, self.index, batch, q, k, v, decay, beta, u, o)
        if memory.records is not None:
            memory.records.put(self.index, u, k, decay, row)
        return self.output(rms(o, self.eps).flatten(1).mul_(sigmoid_neg_(gate)))

    def _convolved(self, row: Tensor, batch: Batch, memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [N, heads, dim] after convolution, SiLU and norms; windows move on."""
        window = memory.states.window[self.index]
        taps = len(self.taps)
        every = torch.cat((window.flatten(0, 1), row))
        near = every.index_select(0, batch.taps).view(row.shape[0], taps, -1).mul_(self.taps)
        y = near[:, 0]
        for tap in range(1, taps):
            y = y + near[:, tap]
        for snapshot in memory.snapshots:
            at = batch.window_at(snapshot.row, snapshot.tokens, taps)
            snapshot.window(self.index).copy_(every.index_select(0, at))
        window.copy_(every.index_select(0, batch.ends).view(window.shape))
        q, k, v = silu(y).view(-1, 3, self.heads, self.dim).unbind(1)
        return l2(q).mul_(self.dim**-0.5), l2(k), v

    def _decay(self, low: Tensor) -> Tensor:
        """[N, heads, K] g, the logarithm of the decay."""
        x = self.decay(low)
        g = sigmoid_neg_(x).mul_(self.bound) if self.bound is not None else softplus(x).mul_(self.minus_scale)
        return g.view(-1, self.heads, self.dim)


def l2(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    return x / (x * x).sum(-1, keepdim=True).add_(L2_EPS).sqrt_()


def scan(memory: Memory, layer: int, batch: Batch, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor,
         u: Tensor, o: Tensor, only: int | None = None) -> None:
    """The recurrence token by token: fills u and o [N, heads, V], advances the states. With `only`, all tensors are of
    that row alone. O(tokens heads V K)."""
    state, counts = memory.states.matrix[layer], batch.counts
    low = 0
    if only is not None:
        low, counts = only, (1,) * len(q)
        state = state[only : only + 1]
    tokens = sum(counts)
    parts = [x[:tokens].split_with_sizes(counts)
             for x in (decay.unsqueeze(2), k.unsqueeze(2), q.unsqueeze(2), v, beta.unsqueeze(2), u, o)]
    for t, (alive, a, key, query, value, b, add, out) in enumerate(zip(counts, *parts, strict=True)):
        s = state[:alive]
        s.mul_(a)
        torch.sub(value, (s * key).sum(-1), out=add).mul_(b)
        s.add_(add.unsqueeze(3) * key)
        torch.sum(s * query, -1, out=out)
        for snapshot in memory.at.get(t + 1, ()):
            if low <= snapshot.row < low + alive:
                snapshot.matrix(layer).copy_(s[snapshot.row - low])
