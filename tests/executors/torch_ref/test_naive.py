"""Configurations of the kind, each away from the golden ones in some respect, against the naive model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from k3mem.executors.torch_ref import Model
from k3mem.executors.torch_ref.init import config_of, write
from tests.executors.torch_ref.naive import Naive
from tests.executors.torch_ref.world import World, request, tokens

VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "tiny-k3": ("tiny-k3", 4, {}),
    "tiny-kimi-linear": ("tiny-kimi-linear", 4, {}),
    "many experts in groups": ("tiny-kimi-linear", 2, {
        "num_experts": 48, "num_expert_group": 6, "topk_group": 2, "num_experts_per_token": 5}),
    "softmax router without shared experts": ("tiny-kimi-linear", 2, {
        "moe_router_activation_func": "softmax", "num_shared_experts": 0, "moe_renormalize": False}),
    "odd sizes": ("tiny-kimi-linear", 3, {
        "hidden_size": 100, "num_attention_heads": 3, "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
        "v_head_dim": 14, "vocab_size": 301, "moe_intermediate_size": 22, "intermediate_size": 77,
        "linear_attn_config": {"num_heads": 5, "head_dim": 12, "short_conv_kernel_size": 3, "full_attn_layers": [2],
                               "kda_layers": [1, 3]}}),
    "latent without norm, sigmoid of SiLU": ("tiny-k3", 3, {"latent_moe_use_norm": False, "hidden_act": "silu"}),
    "no latent, plain queries, no gate": ("tiny-k3", 3, {
        "routed_expert_hidden_size": None, "q_lora_rank": None, "mla_use_output_gate": False,
        "attn_res_block_size": 1}),
    "dense, every second layer a mixture, tied": ("tiny-k3", 4, {
        "first_k_dense_replace": 0, "moe_layer_freq": 2, "tie_word_embeddings": True, "attn_res_block_size": None}),
    "no experts at all": ("tiny-k3", 2, {"num_experts": 0}),
}


def made(name: str, folder: Path) -> Path:
    kind, layers, changes = VARIANTS[name]
    raw = config_of(kind, layers)
    raw.get("text_config", raw).update(changes)
    write(folder, raw, seed=5)
    return folder


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_equations(tmp_path: Path, name: str) -> None:
    folder = made(name, tmp_path)
    text = [token % 301 for token in tokens(1, 30)]
    expected = Naive(folder).logits(text)
    exact = Model.from_pretrained(folder, torch.float64).logits(text)
    assert (exact - expected).abs().max() / expected.abs().max() < 1e-10
    close = Model.from_pretrained(folder).logits(text)
    assert (close - expected).abs().max() / expected.abs().max() < 5e-5


@pytest.mark.parametrize("name", ["odd sizes", "many experts in groups"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_they_are_exact_under_the_engine(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = Model.from_pretrained(made(name, tmp_path), dtype)
    world = World(model, page_tokens=16, interval=64, token_budget=100)
    prompts = [[token % 301 for token in tokens(i, 40 + 45 * i)] for i in range(3)]
    world.run(*[request(i, prompt, 12) for i, prompt in enumerate(prompts)])
    world.run(request(7, [*prompts[2], *world.answers[2], 8, 9], 6), request(8, [*prompts[2][:100], 8, 9], 6)).check()
    assert sum(len(plan.restores) for plan in world.executor.plans) == 2
