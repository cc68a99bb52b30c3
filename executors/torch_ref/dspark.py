"""A block drafter in the manner of DSpark: one pass without a causal mask says a block of tokens at once.

It taps layers of the target: of layer t it takes what the layer behind it reads. Every token that the target computes
leaves one KV row in each layer of the drafter, behind the target's own in the same pages:

    x = RMS(W_fc [taps]);  row_i = [RMS(c) | rope(k_r)] of W_kv,i x

So these rows are shared, moved, copied and overwritten after a rejection with the target's. A block behind the newest
token (which no row absorbed yet) is that token and masks; its tokens see all rows below it and each other:

    h = layers([embedding of the token, of masks ...]);  logits_j = head(RMS(h_j)) + W_2 W_1[token before]
    token_j = the likeliest, left to right;  confidence_j = sigmoid(w . [h_j, W_1[token before]] / temperature)

Embedding, norm before the head and head are the target's. Positions are absolute, by rotation of the shared key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from k3mem.errors import InvalidShape
from k3mem.executors.torch_ref.batch import KEYS, Batch, Span
from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.mla import Mla
from k3mem.executors.torch_ref.moe import Mlp
from k3mem.executors.torch_ref.ops import TILE, Linear, rms, sigmoid_neg_
from k3mem.executors.torch_ref.stores import Kv
from k3mem.executors.torch_ref.weights import Checkpoint
from k3mem.shape import read_config
from k3mem.types import Float64, Int64

TURN = 1024
"""Positions whose angles are computed together: at any time the same ones, since a cosine's bits may depend on where
its argument stands in an array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Sizes of a drafter of one target."""

    inner: Config
    """Of its layers, in the words of the target's: widths, heads, norms."""
    layers: int
    taps: tuple[int, ...]
    """Layers of the target, ascending."""
    block: int
    """Tokens that one pass says."""
    mask: int
    """Token whose embedding stands for what is not known yet."""
    markov: int
    """Rank of W_2 W_1."""
    theta: float
    temperature: float

    @classmethod
    def load(cls, folder: str | os.PathLike[str], target: Config) -> DraftConfig:
        """Of a folder's config.json. Raises InvalidShape naming the file and the key that is missing or wrong."""
        raw, origin = read_config(Path(folder) / "config.json")
        return cls.read(raw, target, origin)

    @classmethod
    def read(cls, raw: Any, target: Config, origin: str = "config") -> DraftConfig:
        """Of a config's contents. Raises InvalidShape: a key is missing or not of its kind, or the KV row, the hidden
        size or a tapped layer is none of the target's."""
        def whole(key: str, least: int = 1) -> int:
            value = raw.get(key) if isinstance(raw, dict) else None
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidShape(f"{origin}: {key} must be an integer >= {least}, got {value!r}")
            return value

        inner = dataclasses.replace(
            target, hidden=whole("hidden_size"), layers=whole("num_hidden_layers"), dense=whole("intermediate_size"),
            heads=whole("num_attention_heads"), latent=whole("kv_lora_rank"),
            nope=whole("qk_nope_head_dim"), rope=whole("qk_rope_head_dim", 2), v_dim=whole("v_head_dim"),
            q_rank=None if raw.get("q_lora_rank") is None else whole("q_lora_rank"), output_gate=False, res_block=None,
            moe_layers=(), situ=None)
        if (inner.hidden, inner.kv_row) != (target.hidden, target.kv_row) or inner.rope % 2:
            raise InvalidShape(f"{origin}: hidden size {inner.hidden} and KV row {inner.kv_row} must be the target's, "
                               f"{target.hidden} and {target.kv_row}, and qk_rope_head_dim even")
        taps = raw.get("target_layer_ids")
        if not isinstance(taps, list) or not taps or taps != sorted(set(taps) & set(range(target.layers))):
            raise InvalidShape(f"{origin}: target_layer_ids must be ascending layers of the target, 0 to "
                               f"{target.layers - 1}, got {taps!r}")
        mask = whole("mask_token_id", 0)
        if mask >= target.vocab:
            raise InvalidShape(f"{origin}: mask_token_id {mask} is outside the target's vocabulary of {target.vocab}")
        theta, temperature = (float(raw.get(key, value)) for key, value in (("rope_theta", 5e4),
                                                                            ("confidence_temperature", 1.0)))
        if theta <= 1 or temperature <= 0:
            raise InvalidShape(f"{origin}: rope_theta must be > 1 and confidence_temperature > 0")
        return cls(inner=inner, layers=inner.layers, taps=tuple(taps), block=whole("block_size"), mask=mask,
                   markov=whole("markov_rank"), theta=theta, temperature=temperature)


class DraftLayer:
    """Latent attention over the context's rows and the block's own, and a dense layer."""

    def __init__(self, config: Config, weights: Checkpoint, layer: int) -> None:
        """Raises BadCheckpoint."""
        hidden = config.hidden
        norm = weights.take(f"layers.{layer}.input_layernorm.weight", hidden)
        self.attention = Mla(config, weights, layer, layer, norm)
        self.context = Linear(weights.take(f"layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", config.kv_row,
                                           hidden))
        self.feed = Mlp(config, weights, layer, weights.take(f"layers.{layer}.post_attention_layernorm.weight",
                                                             hidden))


class DraftModel:
    """The drafter's weights and its two passes. Use `load`."""

    def __init__(self, config: DraftConfig, weights: Checkpoint, first: int, version: str) -> None:
        """first: KV layers of the target. version: differs where weights do. Raises BadCheckpoint."""
        c = config.inner
        self.config, self.first, self.version = config, first, version
        self.fc = Linear(weights.take("fc.weight", c.hidden, len(config.taps) * c.hidden))
        self.fc_norm = weights.take("fc_norm.weight", c.hidden)
        self.layers = [DraftLayer(c, weights, i) for i in range(config.layers)]
        self.before = weights.take("markov_head.markov_w1.weight", c.vocab, config.markov)
        self.markov = Linear(weights.take("markov_head.markov_w2.weight", c.vocab, config.markov))
        sure = weights.take("confidence_head.proj.weight", 1, c.hidden + config.markov)
        bias = weights.take("confidence_head.proj.bias", 1)
        self.sure = Linear(-sure / config.temperature, -bias / config.temperature)
        half = c.rope // 2
        self._turns: Float64 = config.theta ** -(np.arange(half) / half)

        @cache
        def angles(turn: int) -> tuple[Tensor, Tensor]:
            turned = torch.from_numpy(np.arange(TURN * turn, TURN * (turn + 1))[:, None] * self._turns)
            return turned.cos().to(weights.dtype), turned.sin().to(weights.dtype)

        self._angles = angles

    @classmethod
    def load(cls, folder: str | os.PathLike[str], config: DraftConfig, dtype: torch.dtype) -> DraftModel:
        """Read safetensors. Raises BadCheckpoint."""
        weights = Checkpoint(folder, dtype)
        digest = hashlib.sha256(f"{dtype} {config}".encode())
        for path in sorted(Path(folder).glob("*.safetensors")):
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
        model = cls(config, weights, len(config.inner.mla_layers), digest.hexdigest())
        weights.finish()
        return model

    # -- context

    def absorb(self, taps: Tensor, batch: Batch, kv: Kv) -> None:
        """Write the rows of a step's tokens. taps [padded, taps x hidden]. O(tokens x hidden^2 x taps)."""
        c = self.config.inner
        x = rms(self.fc(taps), c.eps).mul_(self.fc_norm)
        for i, layer in enumerate(self.layers):
            row = layer.attention.normed(layer.context(x))[: batch.count]
            kv.put(self.first + i, batch.write, self._turned(row, batch.position))

    def _turned(self, row: Tensor, position: Int64) -> Tensor:
        """[n, row] with the shared key rotated to its position. In place."""
        half = self.config.inner.rope // 2
        cos, sin = self._at(position)
        a, b = row[:, -2 * half : -half].clone(), row[:, -half:].clone()
        row[:, -2 * half : -half] = a * cos - b * sin
        row[:, -half:] = b * cos + a * sin
        return row

    def _at(self, position: Int64) -> tuple[Tensor, Tensor]:
        turn, place = np.divmod(position, TURN)
        low, high = int(turn.min()), int(turn.max())
        parts = [self._angles(t) for t in range(low, high + 1)]
        at = torch.from_numpy(position - low * TURN)
        cos, sin = (torch.cat([part[i] for part in parts]).index_select(0, at) for i in range(2))
        return cos, sin

    # -- blocks

    def batch(self, rows: Sequence[tuple[int, int, Int64]]) -> Batch:
        """Of (absorbed depth, newest token, [depth] KV row of every position in the first KV layer) of each lane."""
        masks = [self.config.mask] * (self.config.block - 1)
        spans = [Span(depth, np.array([token, *masks], np.int64), kv, self.config.block) for depth, token, kv in rows]
        return Batch.of(spans, 2, causal=False)

    def propose(self, batch: Batch, kv: Kv, embedding: Tensor, head: Linear) -> tuple[Tensor, Tensor]:
        """(tokens [B, block], how sure of each [B, block]). O(B block (hidden^2 + vocab x hidden + context))."""
        c, rows, block = self.config.inner, len(batch.spans), self.config.block
        h = embedding.index_select(0, batch.tokens)
        reach = len(batch.read) // rows
        at = torch.from_numpy(np.tile(np.arange(rows), block) * reach + batch.position)
        for i, layer in enumerate(self.layers):
            query, row, gate = layer.attention.project(rms(h, c.eps))
            keys = kv.get(self.first + i, batch.read)
            keys.index_copy_(0, at, self._turned(row[: batch.count], batch.position))
            h = h + layer.attention.attend(self._turned_query(query, batch), keys, gate, batch)
            h = h + layer.feed(rms(h, c.eps))
        assert reach % KEYS == 0
        said = head(rms(h, c.eps))
        tokens, sure = [], []
        before = batch.tokens[:rows]
        for j in range(block):
            mine = torch.arange(j * rows, (j + 1) * rows)
            near = _padded(self.before.index_select(0, before))
            logits = said.index_select(0, mine) + self.markov(near)[:rows]
            sure.append(sigmoid_neg_(self.sure(torch.cat((_padded(h.index_select(0, mine)), near), 1))[:rows, 0]))
            before = logits.argmax(-1)
            tokens.append(before)
        return torch.stack(tokens, 1), torch.stack(sure, 1)

    def _turned_query(self, query: Tensor, batch: Batch) -> Tensor:
        """[N, heads, wide] with the part that meets the shared key rotated. In place."""
        c = self.config.inner
        half, n = c.rope // 2, batch.count
        cos, sin = (x.unsqueeze(1) for x in self._at(batch.position))
        a = query[:n, :, c.latent : c.latent + half].clone()
        b = query[:n, :, c.latent + half : c.kv_row].clone()
        query[:n, :, c.latent : c.latent + half] = a * cos - b * sin
        query[:n, :, c.latent + half : c.kv_row] = b * cos + a * sin
        return query


def _padded(x: Tensor) -> Tensor:
    """Rows of whole tiles."""
    return torch.nn.functional.pad(x, (0, 0, 0, -len(x) % TILE))
