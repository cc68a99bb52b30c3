"""The model once more, from its equations: float64, token by token, one head and one expert at a time, nothing folded,
nothing absorbed, no pages. The oracle of what the golden models do not vary."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.weights import unpack

F = torch.nn.functional


class Naive:
    """Of a folder with one safetensors file."""

    def __init__(self, folder: Path) -> None:
        self.c = Config.read(json.loads((folder / "config.json").read_text()))
        self.w = {name.removeprefix("language_model.").removeprefix("model."): tensor
                  for name, tensor in load_file(folder / "model.safetensors").items()}

        self.seen: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.seen:
            self.seen[name] = self._read(name)
        return self.seen[name]

    def _read(self, name: str) -> Tensor:
        if f"{name}.weight_packed" in self.w:
            return unpack(self.w[f"{name}.weight_packed"], self.w[f"{name}.weight_scale"], torch.float64)
        return (self.w[name] if name in self.w else self.w[f"{name}.weight"]).double()

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self[name], self.c.eps)

    def act(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.c.situ is None:
            return F.silu(gate) * up
        b, c = self.c.situ
        return b * torch.tanh(gate / b) * torch.sigmoid(gate) * c * torch.tanh(up / c)

    def mlp(self, x: Tensor, name: str) -> Tensor:
        return self.act(x @ self[f"{name}.gate_proj"].T, x @ self[f"{name}.up_proj"].T) @ self[f"{name}.down_proj"].T

    def moe(self, x: Tensor, name: str) -> Tensor:
        c, out = self.c, torch.zeros_like(x)
        for t, one in enumerate(x):
            logits = self[f"{name}.gate"] @ one
            score = torch.softmax(logits, 0) if c.softmax_router else torch.sigmoid(logits)
            ranked = score + self[f"{name}.gate.e_score_correction_bias"]
            if c.groups > 1:
                size = c.experts // c.groups
                value = [float(part.sort(descending=True).values[:2].sum()) for part in ranked.view(-1, size)]
                best = sorted(range(c.groups), key=lambda g: -value[g])[: c.top_groups]
                ranked = torch.tensor([float(r) if e // size in best else -9e9 for e, r in enumerate(ranked)])
            chosen = sorted(range(c.experts), key=lambda e: -float(ranked[e]))[: c.top_k]
            total = sum(score[e] for e in chosen) if c.renormalize else 1
            z = self[f"{name}.routed_expert_down_proj"] @ one if c.expert_hidden else one
            y = torch.zeros_like(z)
            for e in chosen:
                w1, w2, w3 = (self[f"{name}.experts.{e}.w{i}"] for i in (1, 2, 3))
                y += score[e] / total * c.scaling * (w2 @ self.act(w1 @ z, w3 @ z))
            if c.expert_hidden:
                y = self.norm(y, f"{name}.routed_expert_norm") if c.latent_norm else y
                y = self[f"{name}.routed_expert_up_proj"] @ y
            out[t] = y
        return out + self.mlp(x, f"{name}.shared_experts") if c.shared else out

    def kda(self, x: Tensor, name: str) -> Tensor:
        c, d = self.c, self.c.kda_dim
        mixed = []
        for part in "qkv":
            z = F.pad(x @ self[f"{name}.{part}_proj"].T, (0, 0, c.conv - 1, 0))
            taps = self[f"{name}.{part}_conv1d"].reshape(-1, c.conv)
            y = sum(taps[:, j] * z[j : j + len(x)] for j in range(c.conv))
            assert isinstance(y, Tensor)
            mixed.append(F.silu(y).view(len(x), c.kda_heads, d))
        q, k, v = mixed
        beta = torch.sigmoid(x @ self[f"{name}.b_proj"].T)
        low = (x @ self[f"{name}.f_a_proj"].T @ self[f"{name}.f_b_proj"].T + self[f"{name}.dt_bias"]).view(v.shape)
        scale = self[f"{name}.A_log"].reshape(-1)[: c.kda_heads].exp()
        gate = x @ self[f"{name}.g_proj"].T if c.full_rank_gate else (
            x @ self[f"{name}.g_a_proj"].T @ self[f"{name}.g_b_proj"].T)
        out = torch.zeros_like(v)
        for h in range(c.kda_heads):
            state = torch.zeros(d, d, dtype=torch.float64)
            for t in range(len(x)):
                qt, kt = (y[t, h] / (y[t, h] @ y[t, h] + 1e-6).sqrt() for y in (q, k))
                g = (c.lower_bound * torch.sigmoid(scale[h] * low[t, h]) if c.lower_bound is not None
                     else -scale[h] * F.softplus(low[t, h]))
                state = g.exp().unsqueeze(1) * state
                state = state + torch.outer(kt, beta[t, h] * (v[t, h] - state.T @ kt))
                out[t, h] = state.T @ qt * d**-0.5
        out = self.norm(out, f"{name}.o_norm").flatten(1) * torch.sigmoid(gate)
        return out @ self[f"{name}.o_proj"].T

    def mla(self, x: Tensor, name: str) -> Tensor:
        c, n = self.c, len(x)
        low = x if c.q_rank is None else self.norm(x @ self[f"{name}.q_a_proj"].T, f"{name}.q_a_layernorm")
        q = (low @ self[f"{name}.{'q_proj' if c.q_rank is None else 'q_b_proj'}"].T).view(n, c.heads, c.nope + c.rope)
        row = x @ self[f"{name}.kv_a_proj_with_mqa"].T
        latent, shared = self.norm(row[:, : c.latent], f"{name}.kv_a_layernorm"), row[:, c.latent :]
        kv = (latent @ self[f"{name}.kv_b_proj"].T).view(n, c.heads, c.nope + c.v_dim)
        k = torch.cat((kv[..., : c.nope], shared.unsqueeze(1).expand(n, c.heads, c.rope)), -1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / (c.nope + c.rope) ** 0.5
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), kv[..., c.nope :]).flatten(1)
        return (out * torch.sigmoid(x @ self[f"{name}.g_proj"].T) if c.output_gate else out) @ self[f"{name}.o_proj"].T

    def mix(self, rows: list[Tensor], name: str) -> Tensor:
        """Attention residuals over bank rows and the running sum, which is the last row."""
        if self.c.res_block is None or len(rows) == 1:
            return rows[-1]
        w = self[f"{name}_norm"] * self[f"{name}_proj"].reshape(-1)
        scores = torch.stack([v @ w / (v.square().mean(-1) + self.c.eps).sqrt() for v in rows], -1).softmax(-1)
        mixed = sum(scores[:, j : j + 1] * v for j, v in enumerate(rows))
        assert isinstance(mixed, Tensor)
        return mixed

    def logits(self, tokens: list[int]) -> Tensor:
        """[T, vocab]"""
        c = self.c
        bank: list[Tensor] = []
        p: Tensor | None = self["embed_tokens"][tokens]
        for i in range(c.layers):
            name = f"layers.{i}"
            assert p is not None
            x = self.norm(self.mix([*bank, p], f"{name}.self_attention_res"), f"{name}.input_layernorm")
            if c.res_block is not None and i % c.res_block == 0:
                bank.append(p)
                p = None
            y = (self.mla if i in c.mla_layers else self.kda)(x, f"{name}.self_attn")
            p = y if p is None else p + y
            x = self.norm(self.mix([*bank, p], f"{name}.mlp_res"), f"{name}.post_attention_layernorm")
            p = p + (self.moe(x, f"{name}.block_sparse_moe") if i in c.moe_layers else self.mlp(x, f"{name}.mlp"))
        assert p is not None
        x = self.norm(self.mix([*bank, p], "output_attn_res"), "norm")
        return x @ self["embed_tokens" if c.tied else "lm_head"].T
