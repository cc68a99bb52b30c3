"""Small random models in Hugging Face layout, for tests, demos and measurements."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.dspark import DraftConfig
from k3mem.executors.torch_ref.weights import INDEX, SINGLE, pack

KINDS = ("tiny-k3", "tiny-kimi-linear")
A_LOG_PAD = 128
"""K3 stores A_log padded with zeros to a multiple of this."""


def config_of(kind: str, layers: int = 4) -> dict[str, Any]:
    """`config.json` of a kind: 1.2 M parameters at 4 layers. Every fourth layer and the last one are MLA, as released.
    Raises ValueError."""
    if kind not in KINDS:
        raise ValueError(f"unknown model {kind!r}; known: {', '.join(KINDS)}")
    if layers < 2:
        raise ValueError(f"a hybrid needs at least 2 layers, got {layers}")
    full = [i for i in range(1, layers + 1) if i % 4 == 0 or i == layers]
    text: dict[str, Any] = {
        "model_type": "kimi_linear", "hidden_size": 128, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": 512, "intermediate_size": 256, "kv_lora_rank": 32,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32, "q_lora_rank": None, "mla_use_nope": True,
        "rms_norm_eps": 1e-5, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_experts": 16,
        "num_experts_per_token": 4, "moe_intermediate_size": 64, "num_shared_experts": 1,
        "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "num_expert_group": 1, "topk_group": 1,
        "topk_method": "noaux_tc", "routed_scaling_factor": 2.446, "tie_word_embeddings": False,
        "max_position_embeddings": 65536, "num_nextn_predict_layers": 0, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "hidden_act": "silu",
        "linear_attn_config": {
            "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4, "full_attn_layers": full,
            "kda_layers": [i for i in range(1, layers + 1) if i not in full],
        },
    }
    if kind == "tiny-kimi-linear":
        return {"architectures": ["KimiLinearForCausalLM"], "torch_dtype": "bfloat16", **text}
    text["linear_attn_config"] |= {"gate_lower_bound": -5.0, "use_full_rank_gate": True}
    text |= {
        "q_lora_rank": 48, "num_shared_experts": 2, "routed_scaling_factor": 1.0, "hidden_act": "situ",
        "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "mla_use_output_gate": True,
        "attn_res_block_size": 3, "routed_expert_hidden_size": 64, "latent_moe_use_norm": True,
    }
    return {
        "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3", "text_config": text,
        "torch_dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}}},
    }


def write(folder: str | os.PathLike[str], raw: dict[str, Any], *, seed: int = 0, shards: int = 1) -> int:
    """Write a random model of this config into a folder (made if need be); its number of parameters.

    Same config and seed, same values. MXFP4 experts and padded A_log where the config has a `text_config`, whose
    tensors are then called `language_model.model...`, as in the release. Raises InvalidShape, OSError.
    """
    from safetensors.torch import save_file

    config = Config.read(raw)
    tensors = _Random(config, seed, "text_config" in raw).tensors()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    names = list(tensors)
    if shards == 1:
        save_file(tensors, target / SINGLE, metadata={"format": "pt"})
    else:
        placed: dict[str, str] = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
            mine = names[shard::shards]
            save_file({name: tensors[name] for name in mine}, target / file, metadata={"format": "pt"})
            placed |= dict.fromkeys(mine, file)
        (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}), encoding="utf-8")
    return sum(t.numel() * (2 if name.endswith("weight_packed") else 1) for name, t in tensors.items()
               if not name.endswith("weight_scale"))


def draft_config_of(raw: dict[str, Any], layers: int = 2) -> dict[str, Any]:
    """`config.json` of a small block drafter for a model of this config. Raises InvalidShape."""
    c = Config.read(raw)
    return {
        "architectures": ["DSparkDraftModel"], "model_type": "dspark", "hidden_size": c.hidden, "block_size": 7,
        "num_hidden_layers": layers, "intermediate_size": c.dense, "num_attention_heads": c.heads,
        "kv_lora_rank": c.latent, "qk_nope_head_dim": c.nope, "qk_rope_head_dim": c.rope, "v_head_dim": c.v_dim,
        "rope_theta": 50000.0, "target_layer_ids": sorted({0, c.layers // 2, c.layers - 1}),
        "mask_token_id": min(3, c.vocab - 1), "markov_rank": 16, "confidence_temperature": 1.0,
        "torch_dtype": "bfloat16",
    }


def write_draft(folder: str | os.PathLike[str], raw: dict[str, Any], target: dict[str, Any], *, seed: int = 0) -> int:
    """Write a random block drafter of config `raw` for a model of config `target`; its number of parameters. Raises
    InvalidShape, OSError."""
    from safetensors.torch import save_file

    config = DraftConfig.read(raw, Config.read(target))
    tensors = _Random(config.inner, seed, False).draft_tensors(config)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    save_file(tensors, place / SINGLE, metadata={"format": "pt"})
    return sum(t.numel() for t in tensors.values())


class _Random:
    """Draws the tensors of a config, in a fixed order."""

    def __init__(self, config: Config, seed: int, release: bool) -> None:
        """`release`: the wrapper's names, MXFP4 experts, A_log padded."""
        self.config, self.release = config, release
        self.generator = torch.Generator().manual_seed(seed)
        self.prefix = "language_model." if release else ""
        self.out: dict[str, Tensor] = {}

    def tensors(self) -> dict[str, Tensor]:
        c = self.config
        self._matrix("embed_tokens", c.vocab, c.hidden, scale=1.0)
        for i in range(c.layers):
            at = f"layers.{i}"
            self._norm(f"{at}.input_layernorm", c.hidden)
            self._norm(f"{at}.post_attention_layernorm", c.hidden)
            if c.res_block is not None:
                for part in ("self_attention_res", "mlp_res"):
                    self._reading(f"{at}.{part}")
            (self._mla if i in c.mla_layers else self._kda)(f"{at}.self_attn")
            if i in c.moe_layers:
                self._moe(f"{at}.block_sparse_moe")
            else:
                self._pair(f"{at}.mlp", c.dense)
        if c.res_block is not None:
            self._reading("output_attn_res")
        self._norm("norm", c.hidden)
        if not c.tied:
            self.out[f"{self.prefix}lm_head.weight"] = self._draw(c.vocab, c.hidden).bfloat16()
        return self.out

    def draft_tensors(self, config: DraftConfig) -> dict[str, Tensor]:
        c = self.config
        for i in range(config.layers):
            self._norm(f"layers.{i}.input_layernorm", c.hidden)
            self._norm(f"layers.{i}.post_attention_layernorm", c.hidden)
            self._mla(f"layers.{i}.self_attn")
            self._pair(f"layers.{i}.mlp", c.dense)
        for name, shape in (("fc", (c.hidden, len(config.taps) * c.hidden)),
                            ("markov_head.markov_w1", (c.vocab, config.markov)),
                            ("markov_head.markov_w2", (c.vocab, config.markov)),
                            ("confidence_head.proj", (1, c.hidden + config.markov))):
            self.out[f"{name}.weight"] = self._draw(*shape).bfloat16()
        self.out["confidence_head.proj.bias"] = self._draw(1)
        self.out["fc_norm.weight"] = (1 + 0.1 * self._draw(c.hidden, scale=1.0)).bfloat16()
        return self.out

    def _draw(self, *shape: int, scale: float | None = None) -> Tensor:
        scale = shape[-1] ** -0.5 if scale is None else scale
        return torch.randn(*shape, generator=self.generator) * scale

    def _put(self, name: str, value: Tensor) -> None:
        self.out[f"{self.prefix}model.{name}"] = value.contiguous()

    def _matrix(self, name: str, *shape: int, scale: float | None = None) -> None:
        self._put(f"{name}.weight", self._draw(*shape, scale=scale).bfloat16())

    def _norm(self, name: str, width: int) -> None:
        self._put(f"{name}.weight", (1 + 0.1 * self._draw(width, scale=1.0)).bfloat16())

    def _reading(self, name: str) -> None:
        self._norm(f"{name}_norm", self.config.hidden)
        self._matrix(f"{name}_proj", 1, self.config.hidden)

    def _pair(self, name: str, inner: int) -> None:
        self._matrix(f"{name}.gate_proj", inner, self.config.hidden)
        self._matrix(f"{name}.up_proj", inner, self.config.hidden)
        self._matrix(f"{name}.down_proj", self.config.hidden, inner)

    def _kda(self, name: str) -> None:
        c, width = self.config, self.config.kda_width
        for part in "qkv":
            self._matrix(f"{name}.{part}_proj", width, c.hidden)
            self._put(f"{name}.{part}_conv1d.weight", self._draw(width, 1, c.conv, scale=0.5))
        self._matrix(f"{name}.f_a_proj", c.kda_dim, c.hidden)
        self._matrix(f"{name}.f_b_proj", width, c.kda_dim)
        self._matrix(f"{name}.b_proj", c.kda_heads, c.hidden)
        if c.full_rank_gate:
            self._matrix(f"{name}.g_proj", width, c.hidden)
        else:
            self._matrix(f"{name}.g_a_proj", c.kda_dim, c.hidden)
            self._matrix(f"{name}.g_b_proj", width, c.kda_dim)
        a_log = self._draw(c.kda_heads, scale=0.5)
        if self.release:
            wide = torch.zeros(math.ceil(c.kda_heads / A_LOG_PAD) * A_LOG_PAD)
            wide[: c.kda_heads] = a_log
            self._put(f"{name}.A_log", wide)
        else:
            self._put(f"{name}.A_log", a_log.view(1, 1, -1, 1))
        self._put(f"{name}.dt_bias", self._draw(width, scale=1.0) - 4)  # most channels remember some ten tokens
        self._norm(f"{name}.o_norm", c.kda_dim)
        self._matrix(f"{name}.o_proj", c.hidden, width)

    def _mla(self, name: str) -> None:
        c, heads = self.config, self.config.heads
        if c.q_rank is None:
            self._matrix(f"{name}.q_proj", heads * (c.nope + c.rope), c.hidden)
        else:
            self._matrix(f"{name}.q_a_proj", c.q_rank, c.hidden)
            self._norm(f"{name}.q_a_layernorm", c.q_rank)
            self._matrix(f"{name}.q_b_proj", heads * (c.nope + c.rope), c.q_rank)
        self._matrix(f"{name}.kv_a_proj_with_mqa", c.kv_row, c.hidden)
        self._norm(f"{name}.kv_a_layernorm", c.latent)
        self._matrix(f"{name}.kv_b_proj", heads * (c.nope + c.v_dim), c.latent)
        if c.output_gate:
            self._matrix(f"{name}.g_proj", heads * c.v_dim, c.hidden)
        self._matrix(f"{name}.o_proj", c.hidden, heads * c.v_dim)

    def _moe(self, name: str) -> None:
        c = self.config
        seen = c.expert_hidden or c.hidden
        self._matrix(f"{name}.gate", c.experts, c.hidden)
        self._put(f"{name}.gate.e_score_correction_bias", self._draw(c.experts, scale=0.05))
        if c.expert_hidden is not None:
            self._matrix(f"{name}.routed_expert_down_proj", seen, c.hidden)
            self._matrix(f"{name}.routed_expert_up_proj", c.hidden, seen)
            if c.latent_norm:
                self._norm(f"{name}.routed_expert_norm", seen)
        if c.shared:
            self._pair(f"{name}.shared_experts", c.shared * c.expert_inner)
        for expert in range(c.experts):
            for part, shape in (("w1", (c.expert_inner, seen)), ("w2", (seen, c.expert_inner)),
                                ("w3", (c.expert_inner, seen))):
                at = f"{name}.experts.{expert}.{part}"
                if self.release:
                    codes, scales = pack(self._draw(*shape))
                    self._put(f"{at}.weight_packed", codes)
                    self._put(f"{at}.weight_scale", scales)
                else:
                    self._matrix(at, *shape)
