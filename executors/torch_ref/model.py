"""A K3 or Kimi-Linear language model: layers in their order, read from a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from k3mem.executors.torch_ref.batch import Batch, Span
from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.dspark import DraftConfig, DraftModel
from k3mem.executors.torch_ref.kda import Kda
from k3mem.executors.torch_ref.mla import Mla
from k3mem.executors.torch_ref.moe import Mlp, Moe
from k3mem.executors.torch_ref.ops import Linear, quiet, rms
from k3mem.executors.torch_ref.residual import Mixed, Places, Plain, Stream
from k3mem.executors.torch_ref.stores import Kv, Memory, States
from k3mem.executors.torch_ref.weights import Checkpoint
from k3mem.shape import Shape
from k3mem.types import Int32, Int64

DTYPES = (torch.float32, torch.float64)


class Model:
    """Weights and the forward pass. Use `from_pretrained`.

    Computes on the CPU in `dtype` (float32 or float64), on `threads` threads of torch (1: a step is many small
    operations, and the bits then do not depend on the machine's default).
    """

    draft: DraftModel | None = None
    """A block drafter that taps this model's layers: its KV lies behind the model's in every page."""

    def __init__(self, config: Config, weights: Checkpoint, *, threads: int = 1, dense_experts: bool | None = None
                 ) -> None:
        """`dense_experts`: run all experts for every token; None: where they are few. Raises BadCheckpoint."""
        if weights.dtype not in DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {weights.dtype}")
        self.config, self.dtype, self.threads = config, weights.dtype, threads
        with quiet(threads):
            hidden = config.hidden
            self.embedding = weights.take("embed_tokens.weight", config.vocab, hidden)
            self.attention: list[Kda | Mla] = []
            self.feed: list[Mlp | Moe] = []
            for i in range(config.layers):
                norm = weights.take(f"layers.{i}.input_layernorm.weight", hidden)
                if i in config.mla_layers:
                    self.attention.append(Mla(config, weights, i, config.mla_layers.index(i), norm))
                else:
                    self.attention.append(Kda(config, weights, i, config.kda_layers.index(i), norm))
                norm = weights.take(f"layers.{i}.post_attention_layernorm.weight", hidden)
                if i in config.moe_layers:
                    self.feed.append(Moe(config, weights, i, norm, dense_experts))
                else:
                    self.feed.append(Mlp(config, weights, i, norm))
            self.places = None if config.res_block is None else Places(config, weights)
            head = self.embedding if config.tied and not weights.has("lm_head.weight") else weights.take(
                "lm_head.weight", config.vocab, hidden)
            self.head = Linear(head * weights.take("norm.weight", hidden))

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32, *, threads: int = 1,
                        dense_experts: bool | None = None, draft: str | os.PathLike[str] | None = None) -> Model:
        """Read `config.json` and safetensors, sharded or not, tensor by tensor.

        `draft`: folder of a block drafter (`DraftModel`). Raises InvalidShape for a config that this executor does not
        run, and BadCheckpoint naming the tensor that is missing, has another shape than the config says, or is not part
        of the model.
        """
        config = Config.load(folder)
        weights = Checkpoint(folder, dtype, (config.layers, config.layers + config.extra_layers))
        model = cls(config, weights, threads=threads, dense_experts=dense_experts)
        weights.finish()
        if draft is not None:
            with quiet(threads):
                model.draft = DraftModel.load(draft, DraftConfig.load(draft, config), dtype)
        return model

    def shape(self, page_tokens: int = 64, window: int = 0) -> Shape:
        """Sizes for an engine: states, windows and KV all in the model's dtype. `window` as in `Shape.hybrid`."""
        c, item = self.config, self.dtype.itemsize
        shape = Shape.hybrid(
            c.name, state_layers=len(c.kda_layers), state_heads=c.kda_heads, state_k=c.kda_dim, state_v=c.kda_dim,
            conv_channels=3 * c.kda_width, conv_rows=c.conv - 1, kv_layers=len(c.mla_layers),
            kv_row_bytes=c.kv_row * item, state_dtype_bytes=item, conv_dtype_bytes=item, page_tokens=page_tokens,
            vocab_size=c.vocab, max_tokens=c.max_tokens, window=window, draft_layers=self.draft_layers,
        )
        record = len(c.kda_layers) * (3 * c.kda_width + 3 * c.kda_width) * item
        return dataclasses.replace(shape, record_bytes=record)

    @property
    def draft_layers(self) -> int:
        """KV layers of the drafter."""
        return 0 if self.draft is None else len(self.draft.layers)

    # -- running

    def step(self, batch: Batch, memory: Memory) -> Tensor:
        """Run one step's rows; logits [batch.wanted, vocab]. Call inside `ops.quiet`."""
        x = self.embedding.index_select(0, batch.tokens)
        stream: Stream = Plain(x) if self.places is None else Mixed(x, self.places)
        eps, draft, taps = self.config.eps, self.draft, []
        for i, (attention, feed) in enumerate(zip(self.attention, self.feed, strict=True)):
            seen = stream.read(2 * i)
            if draft is not None and i - 1 in draft.config.taps:
                taps.append(seen)
            stream.add(attention(rms(seen, eps), batch, memory))
            stream.add(feed(rms(stream.read(2 * i + 1), eps)))
        last = stream.read(2 * self.config.layers)
        if draft is not None:
            if self.config.layers - 1 in draft.config.taps:
                taps.append(last)
            draft.absorb(torch.cat(taps, 1), batch, memory.kv)
        return self.head(rms(last.index_select(0, batch.outputs), eps))[: batch.wanted]

    def propose(self, batch: Batch, kv: Kv) -> tuple[Tensor, Tensor]:
        """What the drafter says behind each row of a batch of blocks (`DraftModel.batch`): tokens [B, block] and how
        sure it is of each [B, block]. Call inside `ops.quiet`."""
        assert self.draft is not None
        return self.draft.propose(batch, kv, self.embedding, self.head)

    def forward(self, tokens: Sequence[int] | Int32 | Int64 | Tensor, *, kda_mode: str = "recurrent"
                ) -> tuple[Tensor, dict[str, Tensor]]:
        """One bare pass over a whole sequence.

        Returns logits [T, vocab] and what the layers hold at its end, by layer from 0: `state.i` [heads, K, V],
        `conv.i` [taps - 1, 3 heads K] (rows before the convolution, oldest first, q | k | v), `kv.i` [T, latent +
        rope], and the drafter's `draft.i`, likewise.
        """
        c = self.config
        ids = np.asarray(tokens, np.int64).reshape(-1)
        if not len(ids) or ids.min() < 0 or ids.max() >= c.vocab:
            raise ValueError(f"tokens must be a sequence of ids in 0..{c.vocab - 1}, and not empty")
        with quiet(self.threads):
            span = Span(0, ids, np.arange(len(ids)), len(ids), chunked=kda_mode == "chunk")
            states = States(
                [torch.zeros(1, c.kda_heads, c.kda_dim, c.kda_dim, dtype=self.dtype) for _ in c.kda_layers],
                [torch.zeros(1, c.conv - 1, 3 * c.kda_width, dtype=self.dtype) for _ in c.kda_layers])
            kv_layers = len(c.mla_layers) + self.draft_layers
            kv = Kv(torch.zeros(kv_layers * len(ids), c.kv_row, dtype=self.dtype), len(ids))
            logits = self.step(Batch.of([span], c.conv), Memory(states, kv))
            held = {}
            for n, i in enumerate(c.kda_layers):
                held[f"state.{i}"] = states.matrix[n][0].transpose(1, 2)
                held[f"conv.{i}"] = states.window[n][0]
            names = [f"kv.{i}" for i in c.mla_layers] + [f"draft.{i}" for i in range(self.draft_layers)]
            held |= zip(names, kv.rows.view(-1, len(ids), c.kv_row), strict=True)
        return logits.clone(), {name: tensor.clone() for name, tensor in held.items()}

    def logits(self, tokens: Sequence[int] | Int32 | Int64 | Tensor, *, kda_mode: str = "recurrent") -> Tensor:
        """[T, vocab] of a bare pass over a whole sequence."""
        return self.forward(tokens, kda_mode=kda_mode)[0]
