"""The sim's rows in C are those of its Python: the same plans on two executors, of which one never goes to C."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest

from k3mem import Engine, Policy, Request, Sampling, Shape
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Plan, Result

SHAPE = Shape("tiny", 640, 8, page_tokens=16, state_chunk=16, vocab_size=97, max_tokens=4096, align=1)


class Both(SimExecutor):
    """A sim that gives every plan to a twin as well, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = SimExecutor()
        self.compiled = self.others = 0

    def attach(self, layout):
        super().attach(layout)
        self.twin.attach(layout)
        self.twin._lanes.run = self.twin._lanes.ahead = lambda *any: None
        run = self._lanes.run

        def counted(*args):
            ran = run(*args)
            self.compiled += ran is not None
            self.others += ran is None
            return ran

        self._lanes.run = counted

    def launch(self, plan: Plan) -> Result:
        result, other = super().launch(plan), self.twin.launch(plan)
        for field in fields(Result):
            one, two = getattr(result, field.name), getattr(other, field.name)
            assert np.array_equal(one, two) and getattr(one, "dtype", None) == getattr(two, "dtype", None), field.name
        assert np.array_equal(self._lanes.table, self.twin._lanes.table)
        return result

    def fast_forward(self, plan: Plan, limit: int, until: float, depth: int = 1) -> int:
        answer = super().fast_forward(plan, limit, until, depth)
        assert answer == self.twin.fast_forward(plan, limit, until, depth)
        return answer

    def collect(self, ticket):
        self.twin.collect(self.twin._flight[0])
        return super().collect(ticket)


@pytest.mark.parametrize("seed", range(8))
def test_both_routes_give_the_same(seed: int) -> None:
    rng = random.Random(seed)
    sim = Both()
    policy = Policy(token_budget=rng.choice((24, 64, 400)), max_running=rng.choice((1, 4, 8)),
                    steps_in_flight=rng.choice((0, 1, 2)))
    engine = Engine(SHAPE, sim, 12 * 640 + 60 * SHAPE.page_bytes, policy, clock=sim.clock, fast_forward=seed % 2 == 0)
    for i in range(40):
        new = rng.randint(1, 60)
        script = np.arange(rng.choice((0, new, new // 2)), dtype="<i4").tobytes() or None
        stops = (5, 6) if rng.random() < 0.1 else ()
        engine.submit(Request(i, [rng.randrange(97) for _ in range(rng.randint(1, 120))], new,
                              sampling=Sampling(script=script, seed=i, stop_ids=stops)))
        for _ in range(rng.randrange(4)):
            engine.step()
    engine.run()
    assert sim.compiled > 50


def seated(limit: int = 40) -> SimExecutor:
    """A sim with one request on its way: 20 tokens of prompt absorbed, one sampled."""
    sim = SimExecutor()
    engine = Engine(SHAPE, sim, 12 * 640 + 60 * SHAPE.page_bytes, Policy(steps_in_flight=0), clock=sim.clock)
    engine.submit(Request("a", [1] * 20, limit - 20))
    engine.step()
    return sim


@pytest.mark.parametrize("wrong", [
    {"generation": 9}, {"start": 3}, {"lane": 4000}, {"lane": -1}, {"kind": 2}, {"kind": 0},
])
def test_a_row_that_does_not_fit_is_left_to_those_who_can_say_why(wrong: dict[str, int]) -> None:
    sim = seated()
    generation = int(sim._lanes.table[0, 0])
    words = {"kind": 1, "lane": 0, "generation": generation, "start": 20, "length": 1} | wrong
    plan = Plan(step=2, **{name: np.array([value], np.uint8 if name == "kind" else np.int32)
                           for name, value in words.items()},
                sample=np.ones(1, np.bool_), token_offset=np.zeros(2, np.int32))
    before = sim._lanes.table.copy()
    assert sim._lanes.run(plan, sim._model, 0.0) is None and np.array_equal(sim._lanes.table, before)


def test_two_rows_of_a_lane_are_none() -> None:
    sim = seated()
    two = np.zeros(2, np.int32)
    plan = Plan(step=2, kind=np.ones(2, np.uint8), lane=two, generation=two + int(sim._lanes.table[0, 0]),
                start=two + 20, length=two + 1, sample=np.ones(2, np.bool_), token_offset=np.zeros(3, np.int32))
    assert sim._lanes.run(plan, sim._model, 0.0) is None
