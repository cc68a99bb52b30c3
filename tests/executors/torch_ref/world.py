"""One model under an engine, and the lone cold pass that every request must equal to the bit."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from k3mem import Engine, Policy, Request, Sampling
from k3mem.errors import StepFailed
from k3mem.executors.torch_ref import Model, TorchExecutor
from k3mem.executors.torch_ref.executor import STATE
from k3mem.plan import Plan, Result
from k3mem.types import Int32

CAPACITY = 8 << 20


class Final(NamedTuple):
    """What a lane holds when it ends."""

    depth: int
    window: Tensor
    matrix: Tensor
    kv: Tensor
    """[KV layers, depth, latent + rope]"""


class Spy(TorchExecutor):
    """Keeps what a request's lane holds at its end, by the seed of its sampling parameters, which greedy requests do
    not use otherwise. With `poison`, the arena begins as NaN everywhere but in the sinks."""

    def __init__(self, model: Model, poison: bool = True, **options: Any) -> None:
        super().__init__(model, **options)
        self.finals: dict[int, Final] = {}
        self.seeds: dict[int, int] = {}
        self.plans: list[Plan] = []
        self.poison = poison
        self.breaks: list[int] = []
        """Steps that fail when they are collected, in order."""

    def attach(self, layout: Any) -> None:
        super().attach(layout)
        if self.poison:
            self.arena.raw.fill_(0xFF)
            self.arena.pages[0].zero_()

    def launch(self, plan: Plan) -> Result:
        result = super().launch(plan)
        self.plans.append(plan)
        self.seeds |= {seat.lane: seat.sampling.seed for seat in plan.seats}
        for number, accepted, done in zip(plan.lane.tolist(), result.accepted.tolist(), result.done.tolist(),
                                          strict=True):
            if done and accepted:
                self.finals[self.seeds[number]] = self.holds(number)
        return result

    def collect(self, ticket: Result) -> Result:
        result = super().collect(ticket)
        if self.breaks and ticket.step == self.breaks[0]:
            del self.breaks[0]
            self._flight.clear()
            raise StepFailed("planted")
        return result

    def holds(self, number: int) -> Final:
        """A lane's state and KV rows now."""
        return held_by(self, number)


def held_by(executor: TorchExecutor, number: int) -> Final:
    """What a lane of an executor holds now."""
    lane, arena = executor.tables.lane(number), executor.arena
    slot = arena.slots[arena.slot(executor.tables.place(STATE, lane.state))]
    window, matrix = arena.parts(slot.unsqueeze(0))
    places = executor.tables.page_places(number, lane, -(-lane.depth // arena.page_tokens))
    rows = torch.from_numpy(arena.rows_of(places, lane.depth))
    kv = torch.stack([arena.kv.get(layer, rows) for layer in range(arena.page_rows // arena.page_tokens)])
    return Final(lane.depth, window[0].clone(), matrix[0].clone(), kv)


def tokens(seed: int, count: int) -> list[int]:
    """A prompt."""
    return np.random.default_rng(seed).integers(3, 512, count).tolist()


def request(seed: int, prompt: Sequence[int], new: int, **options: Any) -> Request:
    """A greedy request, called by its seed."""
    return Request(seed, prompt, new, sampling=Sampling(seed=seed), **options)


class World:
    """An engine whose finished requests can be compared."""

    def __init__(self, model: Model, *, page_tokens: int = 64, capacity: int = CAPACITY, drafter: Any = None,
                 window: int = 1, poison: bool = True, kda_mode: Any = "recurrent", **policy: Any) -> None:
        self.model = model
        self.executor = Spy(model, poison, kda_mode=kda_mode)
        if isinstance(drafter, type):
            drafter = drafter(self.executor)
        self.engine = Engine(model.shape(page_tokens, window), self.executor, capacity,
                             Policy(**{"max_running": 8, **policy}), drafter=drafter, window=window)
        self.prompts: dict[Hashable, list[int]] = {}
        self.answers: dict[Hashable, list[int]] = {}

    def submit(self, *requests: Request) -> World:
        for one in requests:
            self.prompts[one.id] = one.prompt.tolist()
            self.answers[one.id] = []
            self.engine.submit(one)
        return self

    def step(self) -> None:
        for out in self.engine.step():
            self.answers[out.id] += out.tokens

    def run(self, *requests: Request) -> World:
        """Submit these, and step until nothing is left."""
        self.submit(*requests)
        while self.engine.has_work:
            self.step()
        self.engine.check()
        return self

    def check(self, seeds: Iterable[int] | None = None) -> None:
        """Every request's tokens, final state and KV are those of one bare pass over all that it absorbed."""
        for seed in self.answers if seeds is None else seeds:
            assert isinstance(seed, int)
            answer, final = self.answers[seed], self.executor.finals[seed]
            absorbed = self.prompts[seed] + answer[:-1]
            assert final.depth == len(absorbed)
            logits, held = self.model.forward(absorbed)
            assert logits.argmax(-1).tolist()[len(self.prompts[seed]) - 1 :] == answer
            same(self.model, final, held)


def same(model: Model, final: Final, held: dict[str, Tensor]) -> None:
    """Bit equality of what a lane holds and a bare pass holds."""
    c = model.config
    for n, i in enumerate(c.kda_layers):
        assert torch.equal(final.matrix[n].transpose(1, 2), held[f"state.{i}"]), f"state of layer {i}"
        assert torch.equal(final.window[n], held[f"conv.{i}"]), f"window of layer {i}"
    for n, i in enumerate(c.mla_layers):
        assert torch.equal(final.kv[n], held[f"kv.{i}"]), f"KV of layer {i}"
    for n in range(model.draft_layers):
        assert torch.equal(final.kv[len(c.mla_layers) + n], held[f"draft.{n}"]), f"KV of the drafter's layer {n}"


class Script:
    """A drafter that knows the answers: `right` true drafts, then wrong ones, up to the window."""

    def __init__(self, model: Model, prompts: Sequence[Sequence[int]], new: int, right: int) -> None:
        self.right, self.vocab = right, model.config.vocab
        self.texts = [(len(prompt), [*prompt, *greedy(model, prompt, new)]) for prompt in prompts]

    def draft(self, request_id: Hashable, known: Int32, limit: int) -> Int32:
        sofar = known.tolist()
        (text,) = [text for _, text in self.texts if text[: len(sofar)] == sofar][:1]
        ahead = text[len(sofar) : len(sofar) + limit]
        return np.array([t if i < self.right else (t + 1) % self.vocab for i, t in enumerate(ahead)], np.int32)


def greedy(model: Model, prompt: Sequence[int], new: int) -> list[int]:
    """The answer of an engine without a cache."""
    world = World(model, caching=False, poison=False).run(request(0, prompt, new))
    return world.answers[0]
