"""Bytes and grids of a model: all that memory and scheduling need to know of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from k3mem.errors import InvalidShape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """Geometry of one model on one rank. Sizes in bytes; depths and pages in tokens.

    Raises InvalidShape when no arena could hold it.
    """

    name: str
    state_bytes: int
    """One sequence's recurrent state over all recurrent layers, convolution windows included."""
    token_bytes: int
    """KV of one token over all KV layers (and draft layers where speculation may be on)."""
    kv_layers: int = 1
    state_layers: int = 1
    page_tokens: int = 64
    """Tokens a KV page holds, 1 .. 512."""
    state_chunk: int = 64
    """Chunk of the recurrent prefill kernel: depths at which a prefill capture is bit-stable."""
    vocab_size: int = 2**31 - 1
    max_tokens: int = 2**31 - 1
    """Longest sequence the model takes (prompt + output)."""
    record_bytes: int = 0
    """Scratch of one row of a VERIFY window: inputs of one token's state update over all recurrent layers."""
    dcp: int = 1
    """Ranks over which positions are dealt; a page covers dcp * page_tokens positions."""
    align: int = 128

    def __post_init__(self) -> None:
        def need(ok: bool, what: str) -> None:
            if not ok:
                raise InvalidShape(f"shape {self.name!r}: {what}")

        need(self.state_bytes > 0, f"state_bytes must be positive, got {self.state_bytes}")
        need(self.token_bytes > 0, f"token_bytes must be positive, got {self.token_bytes}")
        need(1 <= self.page_tokens <= 512, f"page_tokens must be 1..512, got {self.page_tokens}")
        need(self.state_chunk >= 1, f"state_chunk must be >= 1, got {self.state_chunk}")
        need(self.dcp >= 1, f"dcp must be >= 1, got {self.dcp}")
        need(self.align >= 1, f"align must be >= 1, got {self.align}")
        need(self.kv_layers >= 1, f"kv_layers must be >= 1, got {self.kv_layers}")
        need(self.state_layers >= 1, f"state_layers must be >= 1, got {self.state_layers}")
        need(self.token_bytes % self.kv_layers == 0,
             f"token_bytes {self.token_bytes} is no multiple of kv_layers {self.kv_layers}")
        need(2 <= self.vocab_size <= 2**31 - 1, f"vocab_size must be 2..2**31-1, got {self.vocab_size}")
        need(1 <= self.max_tokens <= 2**31 - 1, f"max_tokens must be 1..2**31-1, got {self.max_tokens}")
        need(self.record_bytes >= 0, f"record_bytes must be >= 0, got {self.record_bytes}")

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page."""
        return self.page_tokens * self.token_bytes

    @property
    def page_span(self) -> int:
        """Positions one page covers (page_tokens x DCP ranks)."""
        return self.page_tokens * self.dcp

    @property
    def grid(self) -> int:
        """Depths at which a prefill capture is bit-stable and a page ends: lcm(state_chunk, page_span)."""
        return math.lcm(self.state_chunk, self.page_span)

    @classmethod
    def hybrid(
        cls,
        name: str,
        *,
        state_layers: int,
        state_heads: int,
        state_k: int,
        state_v: int,
        conv_channels: int,
        kv_layers: int,
        kv_row_bytes: int,
        kv_heads: int = 0,
        conv_rows: int = 3,
        decay_channels: int | None = None,
        tp: int = 1,
        state_dtype_bytes: int = 4,
        conv_dtype_bytes: int = 2,
        page_tokens: int = 64,
        state_chunk: int = 64,
        vocab_size: int = 2**31 - 1,
        max_tokens: int = 2**31 - 1,
        dcp: int = 1,
        window: int = 0,
        draft_layers: int = 0,
        draft_row_bytes: int | None = None,
    ) -> Shape:
        """Any hybrid of recurrent layers (a state_heads x state_k x state_v matrix and the last `conv_rows` rows
        before the convolution) and KV layers. Counts are of the whole model; the result is one of `tp` ranks.

        Heads and convolution channels are split over tp. `kv_row_bytes` is one token in one KV layer of the whole
        model: with `kv_heads` = 0 every rank holds it whole (a latent shared by all heads); else it is split by
        heads, a rank holding at least one. `record_bytes` follows what a fold needs to replay a token without any
        reduction: u (state_v), the normed key (state_k) and the decay (`decay_channels`: state_k by default, 1 for a
        scalar gate), fp32 per head, and the row before the convolution. `window` (1 + drafts, 0: no speculation) is
        only checked: a VERIFY row may cross one grid depth, so it must not exceed the grid. A drafter with KV of its
        own adds `draft_layers` layers of `draft_row_bytes` a token on each rank (default: a row of the model's): they
        lie in the same pages, so a row must be a whole number of the model's rows on a rank.

        Raises InvalidShape: tp does not divide what it splits, a size is not positive, window > grid, draft rows that
        fill no whole rows.
        """
        sizes = {"tp": tp, "state_layers": state_layers, "state_heads": state_heads, "state_k": state_k,
                 "state_v": state_v, "conv_channels": conv_channels, "kv_layers": kv_layers,
                 "kv_row_bytes": kv_row_bytes, "state_dtype_bytes": state_dtype_bytes,
                 "conv_dtype_bytes": conv_dtype_bytes}
        for key, value in sizes.items():
            if value < 1:
                raise InvalidShape(f"shape {name!r}: {key} must be >= 1, got {value}")
        if conv_rows < 0 or kv_heads < 0 or window < 0 or draft_layers < 0:
            raise InvalidShape(f"shape {name!r}: conv_rows, kv_heads, window and draft_layers must be >= 0")
        heads = _split(name, "state heads", state_heads, tp)
        channels = _split(name, "convolution channels", conv_channels, tp)
        row_bytes = kv_row_bytes
        if kv_heads:
            per_head, rest = divmod(kv_row_bytes, kv_heads)
            if rest:
                raise InvalidShape(f"shape {name!r}: kv_row_bytes {kv_row_bytes} is no multiple of kv_heads {kv_heads}")
            row_bytes = per_head * _split(name, "KV heads", kv_heads, tp, replicate=True)
        draft_rows = _draft_rows(name, draft_layers, row_bytes, draft_row_bytes)
        decay = state_k if decay_channels is None else decay_channels
        matrix = heads * state_k * state_v * state_dtype_bytes
        conv_row = channels * conv_dtype_bytes
        shape = cls(
            name=name if tp == 1 else f"{name}-tp{tp}",
            state_bytes=state_layers * (matrix + conv_rows * conv_row),
            token_bytes=(kv_layers + draft_rows) * row_bytes,
            kv_layers=kv_layers + draft_rows,
            state_layers=state_layers,
            page_tokens=page_tokens,
            state_chunk=state_chunk,
            vocab_size=vocab_size,
            max_tokens=max_tokens,
            record_bytes=state_layers * (heads * (state_v + state_k + decay) * 4 + conv_row),
            dcp=dcp,
        )
        if window > shape.grid:
            raise InvalidShape(f"shape {name!r}: window {window} exceeds the grid of {shape.grid} tokens; draft fewer "
                               "tokens or use larger pages")
        return shape

    @classmethod
    def kimi_k3(
        cls, tp: int = 1, *, page_tokens: int = 64, state_dtype_bytes: int = 4, kv_dtype_bytes: int = 2, dcp: int = 1,
        window: int = 0, draft_layers: int = 0,
    ) -> Shape:
        """Kimi K3: 69 KDA layers of 96 heads x 128 x 128, 24 MLA layers of 576 values a token, the same on every rank.

        At tp 8: 56,171,520 bytes a state and 27,648 bytes a token; 5,760 more with the 5 `draft_layers` of an MLA
        drafter of the same row. Raises InvalidShape if tp does not divide 96.
        """
        return cls.hybrid(
            "kimi-k3", state_layers=69, state_heads=96, state_k=128, state_v=128, conv_channels=3 * 96 * 128,
            kv_layers=24, kv_row_bytes=(512 + 64) * kv_dtype_bytes, tp=tp, state_dtype_bytes=state_dtype_bytes,
            page_tokens=page_tokens, vocab_size=163840, max_tokens=1048576, dcp=dcp, window=window,
            draft_layers=draft_layers,
        )

    @classmethod
    def kimi_linear_48b(
        cls, tp: int = 1, *, page_tokens: int = 64, state_dtype_bytes: int = 4, kv_dtype_bytes: int = 2, dcp: int = 1,
        window: int = 0,
    ) -> Shape:
        """Kimi-Linear-48B-A3B: 20 KDA layers of 32 heads x 128 x 128, 7 MLA layers of 576 values a token.

        At tp 1: 43,417,600 bytes a state and 8,064 bytes a token. Raises InvalidShape if tp does not divide 32.
        """
        return cls.hybrid(
            "kimi-linear-48b", state_layers=20, state_heads=32, state_k=128, state_v=128, conv_channels=3 * 32 * 128,
            kv_layers=7, kv_row_bytes=(512 + 64) * kv_dtype_bytes, tp=tp, state_dtype_bytes=state_dtype_bytes,
            page_tokens=page_tokens, vocab_size=163840, max_tokens=1048576, dcp=dcp, window=window,
        )

    @classmethod
    def preset(cls, name: str, tp: int = 1, **options: int) -> Shape:
        """A model by name: kimi-k3, kimi-linear-48b, qwen3-next-80b or nemotron-h-8b. `options` are those of
        `kimi_k3`. Raises InvalidShape naming the known ones."""
        if name == "kimi-k3":
            return cls.kimi_k3(tp, **options)
        if name == "kimi-linear-48b":
            return cls.kimi_linear_48b(tp, **options)
        if name in _PRESET_CONFIGS:
            return cls.from_config({**_PRESET_CONFIGS[name], "_name_or_path": name}, tp, **options)
        raise InvalidShape(f"unknown shape {name!r}; known: {', '.join(PRESETS)} (or give the model's config.json)")

    @classmethod
    def from_config(
        cls, config: str | os.PathLike[str] | Mapping[str, Any], tp: int = 1, *, page_tokens: int = 64,
        state_dtype_bytes: int | None = None, kv_dtype_bytes: int = 2, dcp: int = 1, window: int = 0,
    ) -> Shape:
        """The shape of a Hugging Face `config.json` (its path, its folder, or its contents): model types kimi_k3,
        kimi_linear, qwen3_next and nemotron_h, plain or inside a wrapper's `text_config`.

        The state's element size is the config's `mamba_ssm_dtype` where it has one, else 4 bytes.
        Raises InvalidShape naming the file and the key that is missing or wrong.
        """
        raw, origin = read_config(config)
        text = _Config(raw.get("text_config", raw), origin)
        kind = text.get("model_type", str)
        reader = _READERS.get(kind)
        if reader is None:
            raise InvalidShape(f"{origin}: model_type {kind!r} is not one of {', '.join(_READERS)}")
        if state_dtype_bytes is None:
            state_dtype_bytes = _dtype_bytes(text)
        name = Path(str(raw.get("_name_or_path") or raw.get("model_type", kind))).name
        return cls.hybrid(
            name, tp=tp, state_dtype_bytes=state_dtype_bytes, page_tokens=page_tokens, dcp=dcp, window=window,
            vocab_size=text.get("vocab_size", int), max_tokens=text.get("max_position_embeddings", int),
            **reader(text, kv_dtype_bytes, tp),
        )


PRESETS = ("kimi-k3", "kimi-linear-48b", "qwen3-next-80b", "nemotron-h-8b")

# As released: Qwen/Qwen3-Next-80B-A3B-Instruct and nvidia/Nemotron-H-8B-Base-8K, the keys that decide bytes.
_PRESET_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-next-80b": {
        "model_type": "qwen3_next", "num_hidden_layers": 48, "full_attention_interval": 4, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "vocab_size": 151936,
        "max_position_embeddings": 262144,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h", "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
        "chunk_size": 256, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
        "max_position_embeddings": 8192,
    },
}


def _draft_rows(name: str, layers: int, row_bytes: int, draft_row_bytes: int | None) -> int:
    """KV layers of the model that a drafter's layers are as large as, on one rank."""
    rows, rest = divmod(row_bytes if draft_row_bytes is None else draft_row_bytes, row_bytes)
    if layers and (rest or rows < 1):
        raise InvalidShape(f"shape {name!r}: a draft row of {draft_row_bytes} bytes is no multiple of the model's "
                           f"{row_bytes}; pad it, so that both lie in the same pages")
    return layers * rows


def _split(name: str, what: str, count: int, tp: int, replicate: bool = False) -> int:
    """What one of tp ranks holds of `count`; with `replicate`, ranks beyond the count share one each."""
    if count % tp == 0:
        return count // tp
    if replicate and tp % count == 0:
        return 1
    good = [n for n in range(1, min(count, 64) + 1) if count % n == 0]
    raise InvalidShape(f"shape {name!r}: tp={tp} does not divide {count} {what}; use a tp that does, such as "
                       f"{', '.join(map(str, good))}")


class _Config:
    """A config's keys with typed access; errors name the file and the key."""

    def __init__(self, raw: Any, origin: str) -> None:
        if not isinstance(raw, Mapping):
            raise InvalidShape(f"{origin}: not a JSON object")
        self.raw = raw
        self.origin = origin

    def get(self, key: str, kind: type[T], *others: str) -> T:
        """The first of these keys, which must be of this type."""
        for name in (key, *others):
            value = self.raw.get(name)
            if value is not None:
                if not isinstance(value, kind) or isinstance(value, bool):
                    raise InvalidShape(f"{self.origin}: {name} must be {kind.__name__}, got {value!r}")
                return value
        raise InvalidShape(f"{self.origin}: {' or '.join((key, *others))} is missing")

    def has(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def sub(self, key: str) -> _Config:
        return _Config(self.get(key, Mapping), f"{self.origin}: {key}")  # type: ignore[type-abstract]


def read_config(config: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """(contents, what to call it in messages) of a Hugging Face config: a folder, its config.json, or what stands in
    it. Raises InvalidShape naming the file."""
    if isinstance(config, Mapping):
        return config, "config"
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidShape(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidShape(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise InvalidShape(f"{path}: not a JSON object")
    return raw, str(path)


def _dtype_bytes(text: _Config) -> int:
    sizes = {"float32": 4, "bfloat16": 2, "float16": 2}
    if not text.has("mamba_ssm_dtype"):
        return 4
    name = text.get("mamba_ssm_dtype", str)
    if name not in sizes:
        raise InvalidShape(f"{text.origin}: mamba_ssm_dtype must be one of {', '.join(sizes)}, got {name!r}")
    return sizes[name]


def _kimi(text: _Config, kv_dtype_bytes: int, tp: int) -> dict[str, int]:
    linear = text.sub("linear_attn_config")
    layers = text.get("num_hidden_layers", int)
    # Both lists count layers from 1.
    full, kda = linear.get("full_attn_layers", list), linear.get("kda_layers", list)
    if sorted([*full, *kda]) != list(range(1, layers + 1)):
        raise InvalidShape(f"{linear.origin}: full_attn_layers and kda_layers must share out layers 1..{layers}")
    heads, dim = linear.get("num_heads", int), linear.get("head_dim", int)
    row = text.get("kv_lora_rank", int) + text.get("qk_rope_head_dim", int)
    return {"state_layers": len(kda), "state_heads": heads, "state_k": dim, "state_v": dim,
            "conv_channels": 3 * heads * dim, "conv_rows": linear.get("short_conv_kernel_size", int) - 1,
            "kv_layers": len(full), "kv_row_bytes": row * kv_dtype_bytes}


def _gqa(text: _Config, kv_dtype_bytes: int) -> dict[str, int]:
    heads = text.get("num_key_value_heads", int)
    dim = text.get("head_dim", int, "attention_head_dim")
    return {"kv_heads": heads, "kv_row_bytes": 2 * heads * dim * kv_dtype_bytes}


def _qwen3_next(text: _Config, kv_dtype_bytes: int, tp: int) -> dict[str, int]:
    layers = text.get("num_hidden_layers", int)
    if text.has("layer_types"):
        full = text.get("layer_types", list).count("full_attention")
    else:
        full = layers // text.get("full_attention_interval", int)
    heads, keys = text.get("linear_num_value_heads", int), text.get("linear_num_key_heads", int)
    k, v = text.get("linear_key_head_dim", int), text.get("linear_value_head_dim", int)
    _split("qwen3_next", "key heads", keys, tp)
    return {"state_layers": layers - full, "state_heads": heads, "state_k": k, "state_v": v,
            "conv_channels": 2 * keys * k + heads * v, "conv_rows": text.get("linear_conv_kernel_dim", int) - 1,
            "decay_channels": 1, "kv_layers": full, **_gqa(text, kv_dtype_bytes)}


def _nemotron_h(text: _Config, kv_dtype_bytes: int, tp: int) -> dict[str, int]:
    if text.has("layers_block_type"):
        names = text.get("layers_block_type", list)
        mamba, full = names.count("mamba"), names.count("attention")
    else:
        pattern = text.get("hybrid_override_pattern", str)
        mamba, full = pattern.count("M"), pattern.count("*")
    heads, dim = text.get("mamba_num_heads", int), text.get("mamba_head_dim", int)
    groups, k = text.get("n_groups", int, "mamba_n_groups"), text.get("ssm_state_size", int, "mamba_state_dim")
    # B and C are shared by a group of heads; a rank holds at least one group, so channels are counted per rank.
    ranked = tp * _split("nemotron_h", "groups", groups, tp, replicate=True)
    return {"state_layers": mamba, "state_heads": heads, "state_k": k, "state_v": dim,
            "conv_channels": heads * dim + 2 * ranked * k, "conv_rows": text.get("conv_kernel", int) - 1,
            "decay_channels": 1, "state_chunk": text.get("chunk_size", int, "mamba_chunk_size"), "kv_layers": full,
            **_gqa(text, kv_dtype_bytes)}


_READERS = {"kimi_linear": _kimi, "qwen3_next": _qwen3_next, "nemotron_h": _nemotron_h}
