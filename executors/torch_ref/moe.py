"""Feed-forward layers: dense, and mixtures of experts with an optional latent.

    s = sigmoid(W_r x);  chosen = the k largest of s + bias;  w = s / sum of the chosen s * scaling
    z = W_down x;  y = W_up RMS(sum over chosen of w_e W2_e act(W1_e z, W3_e z)) + shared(x)

(without a latent: z = x, no norm, no W_up). act is SiLU(g) u, or SiTU: b tanh(g / b) sigmoid(g) c tanh(u / c).

Few experts run all at once: one product ahead of the activation, one behind it in which those not chosen are zero. Of
many, each runs on the tokens that chose it, in tiles of 16 rows. Either way the order of a token's sum does not depend
on its company.
"""

from __future__ import annotations

import torch
from torch import Tensor

from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.ops import Linear, padded, rms, sigmoid_neg_, silu
from k3mem.executors.torch_ref.weights import Checkpoint

ALL_AT_ONCE = 32
"""Most experts that run for every token."""


class Activation:
    """act(gate, up) of the pair [gate | up]. SiTU's inner scales are folded into W1 and W3 and its outer ones into W2:
    see `fold`."""

    def __init__(self, situ: tuple[float, float] | None) -> None:
        self.situ = situ

    def fold(self, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights as `__call__` takes them."""
        if self.situ is None:
            return gate, up, down
        beta, linear = self.situ
        return gate / beta, up / linear, down * (beta * linear)

    def __call__(self, pair: Tensor) -> Tensor:
        """[..., 2 n] -> [..., n]."""
        gate, up = pair.chunk(2, -1)
        if self.situ is None:
            return silu(gate).mul_(up)
        flat = pair.tanh()
        bent, up = flat.chunk(2, -1)
        return (bent * up).div_(torch.mul(gate, -self.situ[0]).exp_().add_(1))


class Mlp:
    """A dense layer."""

    def __init__(self, config: Config, weights: Checkpoint, layer: int, norm: Tensor) -> None:
        name, hidden, inner = f"layers.{layer}.mlp", config.hidden, config.dense
        self.act = Activation(config.situ)
        gate, up, down = self.act.fold(weights.matrix(f"{name}.gate_proj", inner, hidden),
                                       weights.matrix(f"{name}.up_proj", inner, hidden),
                                       weights.matrix(f"{name}.down_proj", hidden, inner))
        self.input, self.output = Linear(torch.cat((gate, up)) * norm), Linear(down)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, hidden] normed without its weight -> [N, hidden]."""
        return self.output(self.act(self.input(x)))


class Router:
    """Which experts a token takes, and how much of each."""

    def __init__(self, config: Config, bias: Tensor) -> None:
        self.config, self.bias = config, bias

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """[N, experts] -> (chosen [N, k], weights [N, k]). The logits come negated."""
        config = self.config
        scores = torch.neg(logits).softmax(-1) if config.softmax_router else sigmoid_neg_(logits.contiguous())
        ranked = scores + self.bias
        if config.groups > config.top_groups:
            parts = ranked.view(len(ranked), config.groups, -1)
            best = parts.topk(min(2, parts.shape[-1]), -1).values.sum(-1).topk(config.top_groups, -1).indices
            closed = torch.ones_like(parts, dtype=torch.bool).scatter_(
                1, best.unsqueeze(-1).expand(-1, -1, parts.shape[-1]), False)
            ranked = ranked.masked_fill(closed.flatten(1), -torch.inf)
        chosen = ranked.topk(config.top_k, -1).indices
        share = scores.gather(1, chosen)
        if config.renormalize:
            share = share / share.sum(-1, keepdim=True)
        return chosen, share.mul_(config.scaling)


class Moe:
    """A mixture of experts; `dense` runs all of them for every token."""

    def __init__(self, config: Config, weights: Checkpoint, layer: int, norm: Tensor, dense: bool | None = None
                 ) -> None:
        name, hidden = f"layers.{layer}.block_sparse_moe", config.hidden
        experts, inner = config.experts, config.expert_inner
        self.config, self.eps, self.act = config, config.eps, Activation(config.situ)
        self.dense = experts <= ALL_AT_ONCE if dense is None else dense
        self.router = Router(config, weights.take(f"{name}.gate.e_score_correction_bias", experts))
        seen = config.expert_hidden or hidden
        inputs, outputs = [-weights.matrix(f"{name}.gate", experts, hidden)], []
        shared = config.shared * inner
        if shared:
            part = f"{name}.shared_experts"
            gate, up, down = self.act.fold(
                weights.matrix(f"{part}.gate_proj", shared, hidden), weights.matrix(f"{part}.up_proj", shared, hidden),
                weights.matrix(f"{part}.down_proj", hidden, shared))
            inputs += [gate, up]
            outputs.append(down)
        self.sizes = [experts, 2 * shared]
        if config.expert_hidden is not None:
            inputs.append(weights.matrix(f"{name}.routed_expert_down_proj", seen, hidden))
            up = weights.matrix(f"{name}.routed_expert_up_proj", hidden, seen)
            if config.latent_norm:
                up = up * weights.take(f"{name}.routed_expert_norm.weight", seen)
            outputs.append(up)
            self.sizes.append(seen)
        self.input = Linear(torch.cat(inputs) * norm)
        self.output = Linear(torch.cat(outputs, 1)) if outputs else None
        own = norm if config.expert_hidden is None else torch.ones(seen, dtype=norm.dtype)
        pairs, downs = [], []
        for expert in range(experts):
            part = f"{name}.experts.{expert}"
            gate, up, down = self.act.fold(weights.matrix(f"{part}.w1", inner, seen),
                                           weights.matrix(f"{part}.w3", inner, seen),
                                           weights.matrix(f"{part}.w2", seen, inner))
            pairs.append((gate * own, up * own))
            downs.append(down)
        if self.dense:
            every = torch.cat([half for pair in pairs for half in pair])
            self.pair, self.down = [Linear(every)], [Linear(torch.cat(downs, 1))]
        else:
            self.pair = [Linear(torch.cat(pair)) for pair in pairs]
            self.down = [Linear(down) for down in downs]

    def __call__(self, x: Tensor) -> Tensor:
        """[N, hidden] normed without its weight -> [N, hidden]. O(N experts inner seen) dense, else O(N k ...)."""
        logits, shared, *latent = self.input(x).split_with_sizes(self.sizes, 1)
        seen = latent[0] if latent else x
        mixed = (self._all if self.dense else self._chosen)(seen, *self.router(logits))
        if self.output is None:
            return mixed
        parts = [self.act(shared)] if self.config.shared else []
        if latent:
            return self.output(torch.cat((*parts, rms(mixed, self.eps) if self.config.latent_norm else mixed), 1))
        return self.output(parts[0]).add_(mixed)

    def _all(self, z: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        n, experts, inner = z.shape[0], self.config.experts, self.config.expert_inner
        where = (chosen + torch.arange(0, n * experts, experts).unsqueeze(1)).flatten()
        hidden = self.act(self.pair[0](z).view(n * experts, 2 * inner).index_select(0, where))
        weighed = z.new_zeros(n * experts, inner)
        weighed.index_copy_(0, where, hidden.mul_(share.view(-1, 1)))
        return self.down[0](weighed.view(n, experts * inner))

    def _chosen(self, z: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        out = z.new_empty(*chosen.shape, z.shape[1])
        for expert in sorted(set(chosen.flatten().tolist())):
            row, slot = (chosen == expert).nonzero(as_tuple=True)
            mine = z.new_zeros(padded(len(row)), z.shape[1])
            mine[: len(row)] = z.index_select(0, row)
            out[row, slot] = self.down[expert](self.act(self.pair[expert](mine)))[: len(row)]
        parts = (out * share.unsqueeze(-1)).unbind(1)
        total = parts[0].clone()
        for part in parts[1:]:
            total.add_(part)
        return total
