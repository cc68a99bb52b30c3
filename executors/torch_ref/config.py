"""A model's `config.json`, read into the numbers that the equations use. Model types kimi_k3 and kimi_linear."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from k3mem.errors import InvalidShape
from k3mem.shape import read_config

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Sizes and switches of one model; layers count from 0. Names are those of the released configuration."""

    name: str
    hidden: int
    layers: int
    vocab: int
    max_tokens: int
    eps: float
    tied: bool
    """The output head is the embedding."""
    mla_layers: tuple[int, ...]
    """Layers with latent attention; all others are KDA."""
    # -- KDA
    kda_heads: int
    kda_dim: int
    """Of keys and of values."""
    conv: int
    """Taps of the short convolution."""
    lower_bound: float | None
    """Decay = exp(lower_bound * sigmoid(.)); None: exp(-exp(A_log) * softplus(.))."""
    full_rank_gate: bool
    # -- MLA
    heads: int
    q_rank: int | None
    """None: a plain query projection."""
    latent: int
    nope: int
    rope: int
    v_dim: int
    output_gate: bool
    # -- residual stream
    res_block: int | None
    """Layers between two rows of the bank of attention residuals; None: plain residuals."""
    # -- feed-forward
    dense: int
    """Inner width of dense layers."""
    moe_layers: tuple[int, ...]
    experts: int
    top_k: int
    expert_inner: int
    shared: int
    """Shared experts, fused into one of their joint width; 0: none."""
    expert_hidden: int | None
    """Width of the latent that routed experts see; None: they see the hidden state."""
    latent_norm: bool
    softmax_router: bool
    """Router probabilities by softmax over experts, not by sigmoid."""
    renormalize: bool
    scaling: float
    groups: int
    top_groups: int
    situ: tuple[float, float] | None
    """(beta, linear beta) of SiTU; None: SiLU."""
    eos: tuple[int, ...]
    """Tokens that end an answer."""
    extra_layers: int
    """Next-token layers behind the model, which are not read."""

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Layers with a recurrent state."""
        return tuple(i for i in range(self.layers) if i not in self.mla_layers)

    @property
    def kda_width(self) -> int:
        """Channels of q, of k and of v."""
        return self.kda_heads * self.kda_dim

    @property
    def kv_row(self) -> int:
        """Values that one token leaves in one MLA layer: normed latent | shared key."""
        return self.latent + self.rope

    @classmethod
    def load(cls, where: str | os.PathLike[str]) -> Config:
        """Of a folder or a file. Raises InvalidShape naming the file and the key that is missing or wrong."""
        return cls.read(*read_config(where))

    @classmethod
    def read(cls, raw: Any, origin: str = "config") -> Config:
        """Of a config's contents, plain or inside a wrapper's `text_config`. Raises InvalidShape."""
        outer = _Keys(raw, origin)
        text = _Keys(raw["text_config"], f"{origin}: text_config") if outer.has("text_config") else outer
        kind = text.get("model_type", str)
        if kind not in ("kimi_linear", "kimi_k3"):
            raise InvalidShape(f"{origin}: model_type {kind!r} is none that this executor runs: kimi_k3, kimi_linear")
        linear = _Keys(text.get("linear_attn_config", dict), f"{text.origin}: linear_attn_config")
        if not text.get("mla_use_nope", bool, default=False):
            raise InvalidShape(f"{origin}: mla_use_nope must be true: rotary positions are not implemented")
        layers = text.get("num_hidden_layers", int)
        activation = text.get("hidden_act", str, default="silu")
        if activation not in ("silu", "situ"):
            raise InvalidShape(f"{origin}: hidden_act {activation!r} is neither silu nor situ")
        router = text.get("moe_router_activation_func", str, default="sigmoid")
        if router not in ("sigmoid", "softmax"):
            raise InvalidShape(f"{origin}: moe_router_activation_func {router!r} is neither sigmoid nor softmax")
        experts = text.get("num_experts", int, default=0)
        first, every = text.get("first_k_dense_replace", int, default=0), text.get("moe_layer_freq", int, default=1)
        block = text.get("attn_res_block_size", int, default=0)
        heads = text.get("num_attention_heads", int)
        nope = text.get("qk_nope_head_dim", int)
        return cls(
            name=str(outer.get("_name_or_path", str, default="") or outer.get("model_type", str)).rsplit("/", 1)[-1],
            hidden=text.get("hidden_size", int), layers=layers, vocab=text.get("vocab_size", int),
            max_tokens=text.get("max_position_embeddings", int, "model_max_length", default=2**31 - 1),
            eps=text.get("rms_norm_eps", float, default=1e-5),
            tied=text.get("tie_word_embeddings", bool, default=False),
            mla_layers=_mla_layers(linear, layers),
            kda_heads=linear.get("num_heads", int), kda_dim=linear.get("head_dim", int),
            conv=linear.get("short_conv_kernel_size", int, default=4),
            lower_bound=linear.get("gate_lower_bound", float, default=None),
            full_rank_gate=linear.get("use_full_rank_gate", bool, default=False),
            heads=heads, q_rank=text.get("q_lora_rank", int, default=None), latent=text.get("kv_lora_rank", int),
            nope=nope, rope=text.get("qk_rope_head_dim", int), v_dim=text.get("v_head_dim", int, default=nope),
            output_gate=text.get("mla_use_output_gate", bool, default=False), res_block=block or None,
            dense=text.get("intermediate_size", int),
            moe_layers=tuple(i for i in range(layers) if experts and i >= first and i % every == 0),
            experts=experts,
            top_k=text.get("num_experts_per_token", int, "num_experts_per_tok", default=1 if experts else 0),
            expert_inner=text.get("moe_intermediate_size", int, default=0),
            shared=text.get("num_shared_experts", int, default=0),
            expert_hidden=text.get("routed_expert_hidden_size", int, default=None),
            latent_norm=text.get("latent_moe_use_norm", bool, default=False), softmax_router=router == "softmax",
            renormalize=text.get("moe_renormalize", bool, default=True),
            scaling=text.get("routed_scaling_factor", float, default=1.0),
            groups=text.get("num_expert_group", int, default=1), top_groups=text.get("topk_group", int, default=1),
            situ=None if activation == "silu" else (text.get("activation_situ_beta", float, default=4.0),
                                                    text.get("activation_situ_linear_beta", float, default=25.0)),
            eos=_tokens(text, "eos_token_id"),
            extra_layers=text.get("num_nextn_predict_layers", int, default=0),
        )


_REQUIRED: Any = object()


class _Keys:
    """Typed access to a config's keys; errors name the file and the key. null counts as absent."""

    def __init__(self, raw: Any, origin: str) -> None:
        if not isinstance(raw, Mapping):
            raise InvalidShape(f"{origin}: not a JSON object")
        self.raw, self.origin = raw, origin

    def has(self, key: str) -> bool:
        return self.raw.get(key) is not None

    def get(self, key: str, kind: type[T], *others: str, default: Any = _REQUIRED) -> Any:
        for name in (key, *others):
            value = self.raw.get(name)
            if value is None:
                continue
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise InvalidShape(f"{self.origin}: {name} must be {kind.__name__}, got {value!r}")
            if isinstance(value, int) and value < 0:
                raise InvalidShape(f"{self.origin}: {name} must not be negative, got {value}")
            return value
        if default is _REQUIRED:
            raise InvalidShape(f"{self.origin}: {' or '.join((key, *others))} is missing")
        return default


def _tokens(text: _Keys, key: str) -> tuple[int, ...]:
    """One id, a list of them, or none."""
    value = text.raw.get(key)
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) for token in found):
        raise InvalidShape(f"{text.origin}: {key} must be a token id or a list of them, got {value!r}")
    return tuple(found)


def _mla_layers(linear: _Keys, layers: int) -> tuple[int, ...]:
    """Both lists of the file count layers from 1."""
    full, kda = linear.get("full_attn_layers", list), linear.get("kda_layers", list)
    if sorted([*full, *kda]) != list(range(1, layers + 1)):
        raise InvalidShape(f"{linear.origin}: full_attn_layers and kda_layers must share out layers 1..{layers}")
    return tuple(sorted(i - 1 for i in full))
