"""Speculation through the engine: lossless with every planner, and each side is told what it must know."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.errors import Effect, ExecutorFailed, InvalidRequest
from k3mem.executors.cost import nominal
from k3mem.executors.mock import Fault, Faults, MockExecutor, fresh_output
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Row, Sampling
from k3mem.policy import Policy
from k3mem.request import Request
from k3mem.shape import Shape
from k3mem.spec import Draft, NGram, Planner, Scripted, Stairs, VerifyPlanner
from k3mem.types import Float64, Int32

VOCAB = 97
SHAPE = Shape("tiny", 640, 8, page_tokens=16, state_chunk=16, vocab_size=VOCAB, max_tokens=4096, align=1,
              record_bytes=4)
STEEP = Stairs(bias=1.0, per_token=10.0, tile=4)


class Halves:
    """A planner that keeps half of what is offered, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int, int, float]] = []

    def choose(self, confidence: Float64, offered: Int32, context: int) -> Int32:
        return offered // 2

    def accepted(self, confidence: Float64, kept: Int32, right: Int32) -> None:
        self.told += zip(kept.tolist(), right.tolist(), strict=True)

    def took(self, rows: int, tokens: int, context: int, us: float) -> None:
        self.steps.append((rows, tokens, context, us))


def engine_of(drafter: Any, planner: Planner | None = None, *, executor: Any = None, window: int = 8,
              in_flight: int = 1, pages: int = 200, **policy: Any) -> Engine:
    own = Policy(max_running=6, steps_in_flight=in_flight, **policy)
    scratch = own.max_running * window * SHAPE.record_bytes
    return Engine(SHAPE, executor or MockExecutor(), 30 * 640 + pages * SHAPE.page_bytes + scratch, own,
                  drafter=drafter, window=window, planner=planner)


def requests_of(engine: Engine, count: int, seed: int = 0, new: int = 30) -> dict[Hashable, tuple[Request, list[int]]]:
    """Requests and the answers that they must get."""
    rng, out = random.Random(seed), {}
    for name in range(count):
        request = Request(name, [rng.randrange(VOCAB) for _ in range(rng.randint(3, 40))], new,
                          sampling=Sampling(stop_ids=(rng.randrange(VOCAB),) if name % 3 == 0 else ()))
        cache = engine.scheduler.core.cache
        scope = cache.digest(cache.scope(request.scope))
        out[name] = request, fresh_output(scope, request.prompt.tolist(), request.sampling, new, vocab_size=VOCAB)
    return out


def served(engine: Engine, wanted: dict[Hashable, tuple[Request, list[int]]]) -> dict[Hashable, list[int]]:
    got: dict[Hashable, list[int]] = {name: [] for name in wanted}
    for request, _ in wanted.values():
        engine.submit(request)
    for out in engine.run():
        got[out.id] += out.tokens
    engine.check()
    return got


def lines(wanted: dict[Hashable, tuple[Request, list[int]]]) -> dict[Hashable, list[int]]:
    return {name: [*request.prompt.tolist(), *answer] for name, (request, answer) in wanted.items()}


PLANNERS = {
    "none": lambda: None, "all": lambda: VerifyPlanner(None, 8), "steep": lambda: VerifyPlanner(STEEP, 8),
    "late": lambda: VerifyPlanner(STEEP, 8, late=2), "flat": lambda: VerifyPlanner(Stairs(bias=9.0, per_token=0.0), 8),
    "halves": Halves,
}


@pytest.mark.parametrize("in_flight", [0, 1, 2])
@pytest.mark.parametrize("name", PLANNERS)
def test_outputs_are_those_without_speculation(name: str, in_flight: int) -> None:
    script = Scripted({}, VOCAB, wrong=frozenset(range(0, 99, 5)), confidence=lambda who, depth: (depth % 7) / 7)
    engine = engine_of(script, PLANNERS[name](), in_flight=in_flight)
    wanted = requests_of(engine, 12)
    script.lines = lines(wanted)

    got = served(engine, wanted)

    assert got == {who: answer for who, (_, answer) in wanted.items()}
    stats = engine.stats()
    assert stats["drafts_offered"] >= stats["drafts_verified"] >= stats["drafts_accepted"]
    assert stats["drafts_verified"] < stats["drafts_offered"] or name in ("none", "all", "flat")
    assert sorted(script.gone) == sorted(wanted)


def test_no_draft_is_right_and_each_step_commits_one_token() -> None:
    script = Scripted({}, VOCAB, wrong=frozenset(range(200)))
    engine = engine_of(script)
    wanted = requests_of(engine, 3)
    script.lines = lines(wanted)
    assert served(engine, wanted) == {who: answer for who, (_, answer) in wanted.items()}
    stats = engine.stats()
    assert stats["drafts_accepted"] == 0 < stats["drafts_verified"]


def test_what_repeats_is_drafted_by_looking_it_up() -> None:
    """The answer goes on in a circle; once round, every window is right."""
    circle = [5, 9, 2, 7, 11, 3]
    script = np.array(circle * 20, "<i4")
    drafter, executor = NGram(most=3, least=3), SimExecutor(vocab=VOCAB)
    engine = engine_of(drafter, executor=executor)
    engine.submit(Request("a", [1, 2, 3], 100, sampling=Sampling(script=script.tobytes())))
    out = [token for o in engine.run() for token in o.tokens]
    assert out == script[:100].tolist()
    stats = engine.stats()
    assert stats["drafts_accepted"] >= 75 and stats["steps"] < 40
    assert len(drafter) == 0


def test_windows_are_what_the_planner_keeps_and_rows_without_drafts_decode() -> None:
    plans = []
    executor = MockExecutor()
    launch = executor.launch
    executor.launch = lambda plan: (plans.append(plan), launch(plan))[1]  # type: ignore[method-assign]
    script = Scripted({}, VOCAB)
    engine = engine_of(script, Halves(), executor=executor)
    wanted = requests_of(engine, 1, new=20)
    script.lines = lines(wanted)
    served(engine, wanted)
    windows = [int(plan.length[0]) for plan in plans if len(plan.kind) and plan.kind[0] != Row.PREFILL]
    assert windows[0] == 1 + 7 // 2
    assert windows[-1] == 1 and plans[-1].kind[0] == Row.DECODE


def test_a_planner_is_told_of_verified_rows_that_only_drafts_ended() -> None:
    planner, script = Halves(), Scripted({}, VOCAB, wrong=frozenset({12}))
    engine = engine_of(script, planner, in_flight=0)
    prompt = [1] * 10
    request = Request("a", prompt, 9)
    cache = engine.scheduler.core.cache
    answer = fresh_output(cache.digest(cache.scope(request.scope)), prompt, request.sampling, 9, vocab_size=VOCAB)
    script.lines = {"a": [*prompt, *answer]}
    engine.submit(request)
    engine.run()
    # depth 11: 7 offered, 3 kept, the second wrong; depth 13: 5 offered, 2 kept and right; then 2 offered, 1 kept ...
    assert planner.told == [(3, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("pause", [0.0, 3.0])
@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_a_planner_learns_what_steps_took_without_the_hosts_pauses(in_flight: int, pause: float) -> None:
    cost = replace(nominal(), verify_tile=4, verify_token=50.0)
    planner, executor = Halves(), SimExecutor(cost, vocab=VOCAB)
    line = [i * i % VOCAB for i in range(40)]
    script = Scripted({name: [1, 2, 3, *line] for name in range(4)}, VOCAB, wrong=frozenset({11, 17}))
    engine = Engine(SHAPE, executor, 100_000, Policy(max_running=6, steps_in_flight=in_flight), drafter=script,
                    window=8, planner=planner, clock=executor.clock)
    for name in range(4):
        engine.submit(Request(name, [1, 2, 3], 40, sampling=Sampling(script=np.array(line, "<i4").tobytes())))
    while engine.has_work:
        engine.step()
        if not engine.flights:
            executor.idle(executor.now + pause)

    assert len(planner.steps) > 5 and max(tokens for _, tokens, _, _ in planner.steps) == 4 * 4
    for rows, tokens, context, us in planner.steps:
        if tokens == 4 * rows:  # verify rows alone: three drafts kept of each seven
            want = cost.step_us(context_sum=context, verify_tokens=tokens, copied_bytes=0)
            assert us == pytest.approx(want, rel=1e-6)


class Bad:
    """A drafter that gives what it is told to."""

    def __init__(self, draft: Any) -> None:
        self.says = draft

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Any:
        return self.says


@pytest.mark.parametrize("sure", [[0.5], [0.5, 1.5], [0.5, float("nan")], [[0.5, 0.5]], ["a", "b"]])
def test_confidences_that_are_no_chances_are_refused_and_the_plan_cancelled(sure: Any) -> None:
    drafter = Bad(Draft(np.array([1, 2], np.int32), np.array(sure)))
    engine = engine_of(drafter, in_flight=0)
    wanted = requests_of(engine, 1)
    engine.submit(wanted[0][0])
    got = list(engine.step())
    with pytest.raises(InvalidRequest, match="confidences"):
        engine.step()
    drafter.says = np.zeros(0, np.int32)
    got += engine.run()
    engine.check()
    assert [token for out in got for token in out.tokens] == wanted[0][1]


@pytest.mark.parametrize("kept", [[8], [-1], [1, 1], [0.5], 3])
def test_a_planner_that_keeps_what_is_not_there_is_refused(kept: Any) -> None:
    class Wrong(Halves):
        def choose(self, confidence: Float64, offered: Int32, context: int) -> Int32:
            return np.array(kept)

    engine = engine_of(Bad(np.array([1, 2], np.int32)), Wrong(), in_flight=0)
    wanted = requests_of(engine, 1)
    engine.submit(wanted[0][0])
    engine.step()
    with pytest.raises(ValueError, match="the planner keeps"):
        engine.step()
    engine.scheduler.core.planner = None
    assert [t for out in engine.run() for t in out.tokens] == wanted[0][1][1:]


def test_what_a_planner_raises_at_a_commit_is_an_event() -> None:
    class Failing(Halves):
        def accepted(self, confidence: Float64, kept: Int32, right: Int32) -> None:
            raise OSError("no")

    script = Scripted({}, VOCAB)
    engine = engine_of(script, Failing())
    wanted = requests_of(engine, 2)
    script.lines = lines(wanted)
    assert served(engine, wanted) == {who: answer for who, (_, answer) in wanted.items()}
    assert {event.detail for event in engine.events() if event.kind == "planner"} == {"OSError: no"}


def test_what_a_drafter_raises_at_an_end_is_an_event() -> None:
    class Rude(Bad):
        def ended(self, request_id: Hashable) -> None:
            raise OSError("gone fishing")

    engine = engine_of(Rude(np.zeros(0, np.int32)))
    wanted = requests_of(engine, 2)
    assert served(engine, wanted) == {who: answer for who, (_, answer) in wanted.items()}
    told = [event for event in engine.events() if event.kind == "drafter"]
    assert sorted(event.id for event in told) == [0, 1] and "gone fishing" in told[0].detail


def test_a_drafter_is_told_of_requests_that_an_executor_lost() -> None:
    script = Scripted({}, VOCAB)
    faults = Faults([Fault(step, "launch", Effect.UNKNOWN) for step in range(1, 9)])
    engine = engine_of(script, executor=MockExecutor(faults=faults))
    engine.submit(Request("a", [1, 2, 3], 4))
    with pytest.raises(ExecutorFailed):
        engine.run()
    assert script.gone == ["a"]


def test_the_draft_version_is_part_of_the_key_scope() -> None:
    digests = []
    for version in ("", "1", "2"):
        drafter = Bad(np.zeros(0, np.int32))
        drafter.version = version  # type: ignore[attr-defined]
        cache = engine_of(drafter).scheduler.core.cache
        digests.append(cache.digest(cache.scope(("", "", ""))))
    plain = Engine(SHAPE, MockExecutor(), 100_000).scheduler.core.cache
    assert len(set(digests)) == 3 and digests[0] == plain.digest(plain.scope(("", "", "")))


def test_a_planner_needs_a_drafter_and_both_their_protocols() -> None:
    for options in ({"planner": Halves()}, {"drafter": object()}, {"drafter": Scripted({}, 2), "planner": object()},
                    {"drafter": Scripted}):
        with pytest.raises(ValueError, match="engine: "):
            Engine(SHAPE, MockExecutor(), 100_000, window=2, **options)  # type: ignore[arg-type]
