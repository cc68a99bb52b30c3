"""One token from one row of logits: greedy, or drawn by (seed, offset) whatever the batch or the cache did."""

from __future__ import annotations

import numpy as np

from k3mem.plan import Sampling
from k3mem.types import Float64, Int32


class Sampler:
    """A request's sampling parameters, ready for use."""

    __slots__ = ("params", "script", "stops")

    def __init__(self, params: Sampling) -> None:
        self.params = params
        self.stops = frozenset(params.stop_ids)
        self.script: Int32 = np.frombuffer(params.script or b"", "<i4").astype(np.int32)

    @property
    def greedy(self) -> bool:
        """The largest logit is all that matters."""
        return self.params.temperature <= 0 or self.params.top_k == 1

    def scripted(self, offset: int) -> int | None:
        """Output token `offset` where a script fixes it."""
        return int(self.script[offset]) if 0 <= offset < len(self.script) else None

    def draw(self, logits: Float64, offset: int) -> int:
        """Output token `offset` from its logits [vocab]. The k likeliest (all for top_k 0), of those the fewest that
        together have top_p, ties by smaller id; then one of them by a number from the generator (seed, offset).
        O(vocab log vocab)."""
        p = self.params
        order = np.argsort(-logits, kind="stable")
        if p.top_k > 0:
            order = order[: p.top_k]
        scaled = logits[order] / p.temperature
        mass = np.exp(scaled - scaled[0])
        mass /= mass.sum()
        if p.top_p < 1.0:
            kept = int(np.searchsorted(np.cumsum(mass), p.top_p)) + 1
            order, mass = order[:kept], mass[:kept]
        total = np.cumsum(mass)
        key = np.array([p.seed & (1 << 64) - 1, offset & (1 << 64) - 1], np.uint64)
        number = np.random.Generator(np.random.Philox(key=key)).random() * total[-1]
        return int(order[min(int(np.searchsorted(total, number, side="right")), len(order) - 1)])
