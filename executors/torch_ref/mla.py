"""Latent attention without positions, absorbed, over paged rows.

A token leaves one row [c | k_r] in a KV layer, shared by all heads. With W_UK and W_UV the halves of kv_b_proj,

    q~_h = [W_UK,h^T q_n,h | q_r,h] / sqrt(nope + rope)
    p = softmax_j(q~_h . [c_j | k_r,j]);  o_h = W_UV,h sum_j p_j c_j

and y = W_o (o * sigmoid(W_g x)). W_UK is multiplied into the query projection at load. Keys are taken in tiles of 64
at absolute positions; a token's tiles are added up in their order, after the maximum over all of them is known. So its
bits depend on its keys alone: a tile more, behind what it may see, adds exact zeros. Rows and latents are taken
as wide as the next multiple of 16, since products of other sizes depend on their neighbours in a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from k3mem.executors.torch_ref.batch import KEYS, Batch, Block
from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.ops import Linear, padded, rms, sigmoid_neg_, tiles
from k3mem.executors.torch_ref.stores import Memory
from k3mem.executors.torch_ref.weights import Checkpoint


class Mla:
    """One MLA layer. `index` counts MLA layers."""

    def __init__(self, config: Config, weights: Checkpoint, layer: int, index: int, norm: Tensor) -> None:
        """`norm` [hidden]: weight of the norm before the layer. Raises BadCheckpoint."""
        self.index, self.eps = index, config.eps
        self.heads, self.latent, self.row = config.heads, config.latent, config.kv_row
        name, hidden, heads = f"layers.{layer}.self_attn", config.hidden, config.heads
        nope, rope, v_dim = config.nope, config.rope, config.v_dim

        def take(part: str, *shape: int) -> Tensor:
            return weights.take(f"{name}.{part}.weight", *shape)

        up = take("kv_b_proj", heads * (nope + v_dim), self.latent).view(heads, nope + v_dim, self.latent)
        self.wide, self.values = padded(self.row), padded(self.latent)
        self.up_v = pad(up[:, nope:], (0, self.values - self.latent)).contiguous().transpose(1, 2)
        rank = hidden if config.q_rank is None else config.q_rank
        query = take("q_proj" if config.q_rank is None else "q_b_proj", heads * (nope + rope), rank)
        query = query.view(heads, nope + rope, rank)
        absorbed = torch.cat((up[:, :nope].transpose(1, 2) @ query[:, :nope], query[:, nope:]), 1)
        absorbed = pad(absorbed, (0, 0, 0, self.wide - self.row)).flatten(0, 1) * (nope + rope) ** -0.5
        self.query: Linear | None = None
        first = absorbed
        if config.q_rank is not None:
            self.query = Linear(absorbed * take("q_a_layernorm", rank))
            first = take("q_a_proj", rank, hidden)
        self.norm = take("kv_a_layernorm", self.latent)
        inputs = [first, take("kv_a_proj_with_mqa", self.row, hidden)]
        self.gated = config.output_gate
        if self.gated:
            inputs.append(-take("g_proj", heads * v_dim, hidden))
        self.sizes = [len(part) for part in inputs]
        self.input = Linear(torch.cat(inputs) * norm)
        self.output = Linear(take("o_proj", hidden, heads * v_dim))

    def __call__(self, x: Tensor, batch: Batch, memory: Memory) -> Tensor:
        """[N, hidden] normed without its weight -> [N, hidden]. Writes the tokens' KV rows, then reads all below."""
        query, row, gate = self.project(x)
        memory.kv.put(self.index, batch.write, row[: batch.count])
        return self.attend(query, memory.kv.get(self.index, batch.read), gate, batch)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """[N, hidden] -> (queries [N, heads, wide], KV rows [N, row], what gates the output or nothing)."""
        query, row, *gate = self.input(x).split_with_sizes(self.sizes, 1)
        if self.query is not None:
            query = self.query(rms(query, self.eps))
        return query.contiguous().view(-1, self.heads, self.wide), self.normed(row), gate

    def normed(self, row: Tensor) -> Tensor:
        """[N, row] projected -> [N, row] as it is kept."""
        latent, shared = row[:, : self.latent], row[:, self.latent :]
        return torch.cat((rms(latent, self.eps).mul_(self.norm), shared), 1)

    def attend(self, query: Tensor, keys: Tensor, gate: list[Tensor], batch: Batch) -> Tensor:
        """[N, hidden]; `keys` are the KV rows of `batch.read`."""
        keys = keys.view(len(batch.spans), -1, KEYS, self.row)
        if self.wide > self.row:
            keys = pad(keys, (0, self.wide - self.row))
        mixed = self._attend(query, keys, batch)
        o = torch.cat([torch.bmm(part.transpose(0, 1), self.up_v).transpose(0, 1) for part in tiles(mixed)]).flatten(1)
        return self.output(o.mul_(sigmoid_neg_(gate[0].contiguous())) if self.gated else o)

    def _attend(self, query: Tensor, keys: Tensor, batch: Batch) -> Tensor:
        """[N, heads, values] mixed latents; query [N, heads, wide], keys [B, tiles, 64, wide]. What stands beyond the
        latent is of no use."""
        out = query.new_zeros(query.shape[0], self.heads, self.values)
        for block in batch.blocks:
            tokens = block.hidden.shape[0]
            self._attend_block(query[block.first : block.first + tokens], keys[:, : block.tiles], block,
                               out[block.first : block.first + tokens])
        return out

    def _attend_block(self, query: Tensor, keys: Tensor, block: Block, out: Tensor) -> None:
        tokens, tiles, heads = query.shape[0], block.tiles, self.heads
        values = keys[..., : self.values]
        scores = query.new_empty(tokens, tiles, heads, KEYS)
        parts = query.unsqueeze(1).expand(tokens, tiles, heads, self.wide).split_with_sizes(block.counts)
        for one, into in zip(parts, scores.split_with_sizes(block.counts), strict=True):
            alive = one.shape[0]
            torch.bmm(one.reshape(-1, heads, self.wide), keys[:alive].reshape(-1, KEYS, self.wide).transpose(1, 2),
                      out=into.view(-1, heads, KEYS))
        scores.masked_fill_(block.hidden, -torch.inf)
        scores.sub_(scores.amax((1, 3), keepdim=True)).exp_()
        total = _in_order(scores.sum(-1))
        mixed = query.new_empty(tokens, tiles, heads, self.values)
        parts = scores.split_with_sizes(block.counts)
        for one, into in zip(parts, mixed.split_with_sizes(block.counts), strict=True):
            alive = one.shape[0]
            torch.bmm(one.view(-1, heads, KEYS), values[:alive].reshape(-1, KEYS, self.values),
                      out=into.view(-1, heads, self.values))
        torch.div(_in_order(mixed), total.unsqueeze(2), out=out)


def _in_order(x: Tensor) -> Tensor:
    """Sum over axis 1, first to last."""
    first, *others = x.unbind(1)
    if others:
        first = first.clone()
        for other in others:
            first.add_(other)
    return first
