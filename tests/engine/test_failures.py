"""Steps that fail, in every way and at every depth of overlap: time is lost, never a token."""

from __future__ import annotations

from random import Random
from typing import Literal

import pytest

from k3mem.engine import Engine
from k3mem.errors import Effect, ExecutorFailed, StepFailed
from k3mem.executor import Ticket
from k3mem.executors.mock import Fault, Faults, MockExecutor, MockTicket, fresh_output
from k3mem.plan import Plan, Result, Sampling
from k3mem.policy import Policy
from k3mem.request import Output, Request
from tests.engine.test_matrix import PLAIN, world
from tests.world import VOCAB, World, shape

At = Literal["launch", "collect"]
WAYS: list[tuple[At, Effect]] = [(at, effect) for at in ("launch", "collect") for effect in Effect]  # type: ignore[misc]
SEEDS = range(2)


def failing(seed: int, in_flight: int, faults: Faults, window: int = 1, requests: int = 25) -> tuple[World, list[Plan]]:
    """A world with faults, and the list of all plans that are launched in it."""
    cell = PLAIN | {"page_tokens": 16, "eager": seed % 2 == 1, "in_flight": in_flight, "states": [4, 24][seed % 2],
                    "window": window}
    plans: list[Plan] = []

    def look(plan: Plan) -> Plan:
        plans.append(plan)
        return plan

    w = world(cell, seed, requests, faults=faults, mangle=look, audit_every=1)
    audit, core = w.audit, w.engine.scheduler.core
    w.audit = lambda: None if core.resync else audit()  # type: ignore[method-assign] # the tables differ until then
    return w, plans


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("in_flight", [0, 1, 3])
@pytest.mark.parametrize(("at", "effect"), WAYS)
def test_a_failed_step_costs_no_token(at: At, effect: Effect, in_flight: int, window: int, seed: int) -> None:
    rng = Random(seed)
    steps = [step + rng.randrange(4) for step in range(2, 100, 9)]
    w, _ = failing(seed, in_flight, Faults([Fault(step, at, effect) for step in steps]), window)
    assert not w.run().failures  # among others: everybody was answered, nothing is owned by anyone but the tree
    assert w.engine.stats()["failures"] > 3
    assert all(e.reason != "failed" for e in w.expected.values())


@pytest.mark.parametrize("in_flight", [0, 1, 3])
@pytest.mark.parametrize(("at", "effect"), WAYS)
def test_the_next_plan_is_a_resync(at: At, effect: Effect, in_flight: int) -> None:
    w, plans = failing(1, in_flight, Faults([Fault(20, at, effect)]))
    while not (failures := w.engine.stats()["failures"]):
        before = len(plans)
        w.act()
        w.one_step()
    assert failures == 1
    assert not any(plan.resync for plan in plans[:before])
    while len(plans) == before or not plans[-1].resync:
        known = len(plans)
        w.act()
        w.one_step()
        assert all(plan.step <= 20 + in_flight or plan.resync for plan in plans[known:])
    assert not w.run().failures
    assert sum(plan.resync for plan in plans) == 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_random_faults_cost_no_token(in_flight: int, seed: int) -> None:
    """Faults at 8 % of all steps; where three come in a row everybody is told, and the world goes on."""
    w, _ = failing(seed, in_flight, Faults(rate=0.08, seed=seed), window=1 + 3 * (seed % 2), requests=60)
    assert not w.run().failures
    assert w.engine.stats()["failures"] > 3


class EveryStep(Faults):
    """From step 6 on, until repaired."""

    def __init__(self, at: At, effect: Effect) -> None:
        super().__init__()
        self.at, self.effect, self.repaired = at, effect, False

    def strike(self, step: int) -> Fault | None:
        return None if self.repaired or step < 6 else Fault(step, self.at, self.effect)


def hopeless(in_flight: int, at: At, effect: Effect) -> tuple[Engine, MockExecutor, list[Output]]:
    """An engine with running, waiting and aborted requests whose steps 6, 7, ... fail until it gives up."""
    faults = EveryStep(at, effect)
    executor = MockExecutor(seed=5, faults=faults, strict_handout=False)
    engine = Engine(shape(), executor, 100_000, Policy(max_running=2, steps_in_flight=in_flight))
    for i in range(5):
        engine.submit(Request(i, [i + 1] * 30, 40))
    outputs: list[Output] = []
    with pytest.raises(ExecutorFailed, match="submit them again"):
        for step in range(100):
            if step == 3:
                engine.abort(4)
            outputs += engine.step()
    faults.repaired = True
    return engine, executor, outputs


@pytest.mark.parametrize("in_flight", [0, 1, 3])
@pytest.mark.parametrize(("at", "effect"), WAYS)
def test_after_three_in_a_row_everybody_is_told_and_the_engine_goes_on(at: At, effect: Effect, in_flight: int) -> None:
    engine, executor, outputs = hopeless(in_flight, at, effect)
    outputs += engine.take_outputs()
    ends = {out.id: out.reason for out in outputs if out.finished}
    assert ends == {0: "failed", 1: "failed", 2: "failed", 3: "failed", 4: "abort"}
    assert not engine.has_work
    engine.check()
    stats = engine.stats()
    assert (stats["running"], stats["waiting"], stats["in_flight"]) == (0, 0, 0)
    assert 3 <= stats["failures"] <= 3 + in_flight  # steps launched before the first one may commit in between
    assert stats["arena"]["live_states"] == stats["tree"]["checkpoints"]

    prompt = [1] * 30
    engine.submit(Request(0, prompt, 40))
    got = [token for out in engine.run() for token in out.tokens]
    core = engine.scheduler.core
    scope = core.cache.digest(core.cache.scope(("", "", "")))
    assert got == fresh_output(scope, prompt, Sampling(), 40, vocab_size=VOCAB)
    assert not executor.violations


def test_a_commit_between_starts_the_count_again() -> None:
    """Two failures, a commit, two failures, ...: never hopeless."""
    w, _ = failing(3, 0, Faults([Fault(step) for step in range(4, 200) if step % 3]), requests=6)
    assert not w.run().failures
    assert w.engine.stats()["failures"] > 20
    assert all(e.reason != "failed" for e in w.expected.values())


class Gone(MockExecutor):
    """An executor whose device goes away: every launch and every collect fails, until it is repaired."""

    gone = False

    def launch(self, plan: Plan) -> MockTicket:
        if self.gone:
            raise StepFailed("the device is gone", Effect.CONTENTS_LOST)
        return super().launch(plan)

    def collect(self, ticket: Ticket) -> Result:
        if self.gone:
            raise StepFailed("the device is gone", Effect.CONTENTS_LOST)
        return super().collect(ticket)


@pytest.mark.parametrize("in_flight", [0, 1, 2, 3])
def test_a_device_that_goes_away_with_several_steps_in_flight_is_one_failure(in_flight: int) -> None:
    executor = Gone(seed=7, strict_handout=False)
    engine = Engine(shape(), executor, 100_000, Policy(max_running=2, steps_in_flight=in_flight))
    prompts = [[i + 1] * 30 for i in range(3)]
    for i, prompt in enumerate(prompts):
        engine.submit(Request(i, prompt, 40))
    outputs = [out for _ in range(8) for out in engine.step()]
    executor.gone = True
    outputs += engine.step()
    assert (engine.stats()["failures"], engine.flights) == (1, ())
    executor.gone = False
    engine.resize(100_000)  # attaches the executor anew
    outputs += engine.run()
    core = engine.scheduler.core
    scope = core.cache.digest(core.cache.scope(("", "", "")))
    for i, prompt in enumerate(prompts):
        got = [token for out in outputs if out.id == i for token in out.tokens]
        assert got == fresh_output(scope, prompt, Sampling(), 40, vocab_size=VOCAB)
    engine.check()


class Launches(Faults):
    """Launches fail without effect as a list says, one entry a launch; later ones do not."""

    def __init__(self, fails: list[bool]) -> None:
        super().__init__()
        self.fails = fails

    def strike(self, step: int) -> Fault | None:
        return Fault(step, "launch", Effect.NO_EFFECT) if self.fails and self.fails.pop(0) else None


def test_a_step_in_flight_is_retired_before_the_executor_is_given_up() -> None:
    """Two launches fail, the third is in flight when the fourth fails: its commit comes first and starts the count
    again, and no ticket is forgotten."""
    executor = MockExecutor(seed=5, faults=Launches([True, True, False, True]), strict_handout=False)
    engine = Engine(shape(), executor, 100_000, Policy(max_running=2, steps_in_flight=1))
    for i in range(3):
        engine.submit(Request(i, [i + 1] * 30, 20))
    ends = {out.id: out.reason for out in engine.run() if out.finished}
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert engine.stats()["failures"] == 3
    assert not executor.violations


class Third(Faults):
    """The 4th step fails, then a launch without effect, and another one while the step between is in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = 0

    def strike(self, step: int) -> Fault | None:
        self.launches += 1
        if self.launches == 4:
            return Fault(step, "collect")
        return Fault(step, "launch", Effect.NO_EFFECT) if self.launches in (5, 7) else None


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_missed_launch_first_retires_what_is_in_flight(in_flight: int) -> None:
    """Those steps commit: giving up forgot them, and the executor still had them to be collected."""
    executor = MockExecutor(seed=5, faults=Third(), strict_handout=False)
    engine = Engine(shape(), executor, 100_000, Policy(steps_in_flight=in_flight))
    engine.submit(Request(0, [1] * 30, 20))
    outputs = list(engine.run())
    assert [out.reason for out in outputs if out.finished] == ["length"]
    assert engine.stats()["failures"] == 3 and not executor.violations
