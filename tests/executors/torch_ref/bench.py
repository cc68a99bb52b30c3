"""An executor driven by hand-made plans: what VERIFY rows do beside what plain decoding does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor

from k3mem.executors.torch_ref import Model, TorchExecutor
from k3mem.plan import STATE, Sampling
from tests.executors.torch_ref.world import Final, held_by, tokens
from tests.plans import Host, layout_of, run, tokens_of

PROMPT = tokens(1, 21)
LIMIT = 60
"""Most tokens of a lane."""


class Bench:
    """An executor and its host; lane 1 has absorbed the prompt."""

    def __init__(self, model: Model, page: int = 16, *, pages: int = 64, states: int = 16,
                 prompt: Sequence[int] = PROMPT, **executor: Any) -> None:
        self.prompt = list(prompt)
        self.executor = TorchExecutor(model, **executor)
        layout = layout_of(model.shape(page), pages=pages, states=states)
        self.executor.attach(layout)
        self.host = Host(layout)
        self.state = self.seat(1, self.prompt)

    def seat(self, lane: int, prompt: list[int], sampling: Sampling | None = None) -> int:
        plan = self.host.plan()
        state = self.host.seat(plan, lane, prompt=len(prompt), limit=LIMIT, sampling=sampling)
        run(self.executor, plan.prefill(lane, 0, prompt, True))
        return state

    def slot(self, state: int) -> Tensor:
        """A state's bytes."""
        arena = self.executor.arena
        return arena.slots[arena.slot(self.executor.tables.place(STATE, state))].clone()

    def holds(self, lane: int) -> Final:
        """A lane's state and KV rows now."""
        return held_by(self.executor, lane)

    def decode(self, count: int, lane: int = 1) -> list[int]:
        got = []
        for _ in range(count):
            depth = self.executor.tables.lane(lane).depth
            got += tokens_of(run(self.executor, self.host.plan().decode(lane, depth)), lane)
        return got


def drafts_of(model: Model, right: int, total: int = 7) -> list[int]:
    """`right` true tokens after the prompt's first one, then wrong ones, `total` in all."""
    return [token if i < right else (token + 1) % model.config.vocab for i, token in enumerate(ahead(model)[:total])]


@cache
def ahead(model: Model, prompt: tuple[int, ...] = tuple(PROMPT)) -> list[int]:
    """What decoding says after a prompt and the first token behind it."""
    return Bench(model, prompt=prompt).decode(18)
