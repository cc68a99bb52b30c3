"""What every executor must show, whatever it computes with. `test_contract.py` runs these against each of `FACTORIES`.

To add an executor, add a `Candidate`. Plans here are right ones: planted misuse is for the mock's own tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from k3mem.executor import Executor, Layout
from k3mem.executors.mock import MockExecutor
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Done, Plan, Result, Sampling, from_bytes, to_bytes
from k3mem.shape import Shape
from tests.plans import Host, layout_of, run, run_overlapped, small_shape, tokens_of

PROMPT = [5, 3, 8, 1, 9, 2, 7]


@dataclass(frozen=True)
class Candidate:
    """One executor under contract."""

    make: Callable[[], Executor]
    shape: Callable[[], Shape] = small_shape
    samples: bool = True
    """Tokens depend on the prefix, and stop ids are seen."""
    scripts: bool = True
    """`Sampling.script` is obeyed."""


def torch_candidate() -> Candidate:
    """A random model of two layers, made when the first test asks for it."""

    @cache
    def model() -> Any:
        from k3mem.executors.torch_ref import Model
        from k3mem.executors.torch_ref.init import config_of, write

        with TemporaryDirectory() as folder:
            write(folder, config_of("tiny-k3", 2))
            return Model.from_pretrained(folder)

    def executor() -> Executor:
        from k3mem.executors.torch_ref import TorchExecutor

        made: Executor = TorchExecutor(model())
        return made

    def shape() -> Shape:
        pages: Shape = model().shape(page_tokens=4)
        return pages

    return Candidate(executor, shape)


FACTORIES: dict[str, Candidate] = {
    "mock": Candidate(lambda: MockExecutor(seed=1)),
    "mock-reference": Candidate(lambda: MockExecutor(seed=1, device="python")),
    "mock-in-order": Candidate(lambda: MockExecutor(seed=2, shuffle_streams=False, context_reads="all")),
    "mock-fast-forward": Candidate(lambda: MockExecutor(seed=3, fast_forward=True)),
    "sim": Candidate(SimExecutor),
}
if find_spec("torch") and find_spec("safetensors"):
    FACTORIES["torch_ref"] = torch_candidate()


@dataclass
class Bench:
    """An attached executor and the host that drives it."""

    candidate: Candidate
    executor: Executor
    layout: Layout
    host: Host

    def fresh(self) -> Bench:
        """The same kind of executor again, attached anew."""
        return bench_of(self.candidate)


def bench_of(candidate: Candidate) -> Bench:
    executor = candidate.make()
    layout = layout_of(candidate.shape())
    executor.attach(layout)
    return Bench(candidate, executor, layout, Host(layout))


@pytest.fixture(params=sorted(FACTORIES))
def executor_factory(request: pytest.FixtureRequest) -> Candidate:
    return FACTORIES[request.param]


@pytest.fixture
def bench(executor_factory: Candidate) -> Iterator[Bench]:
    """A bench; an executor that checks plans must find nothing wrong with any plan here."""
    out = bench_of(executor_factory)
    yield out
    assert getattr(out.executor, "violations", []) == []


def script(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def start(bench: Bench, lane: int = 1, limit: int = 16, prompt: list[int] = PROMPT, **seat: object) -> Plan:
    """A plan that seats a lane and absorbs its whole prompt."""
    plan = bench.host.plan()
    bench.host.seat(plan, lane, prompt=len(prompt), limit=limit, **seat)  # type: ignore[arg-type]
    return plan.prefill(lane, 0, prompt, True).build()


def decodes(bench: Bench, count: int, lane: int = 1, depth: int = len(PROMPT)) -> list[Plan]:
    return [bench.host.plan().decode(lane, depth + k).build() for k in range(count)]


def greedy(bench: Bench, count: int, **seat: object) -> list[int]:
    """The first `count` tokens of the standard prompt, by plain decoding on a fresh executor of the same kind."""
    other = bench.fresh()
    return tokens_of(run(other.executor, start(other, **seat), *decodes(other, count - 1)), 1)


def test_rows_of_the_result_stand_in_the_order_of_the_plan(bench: Bench) -> None:
    plan = bench.host.plan()
    for lane in (5, 1, 3):
        bench.host.seat(plan, lane, prompt=len(PROMPT), limit=16, generation=10 + lane)
        plan.prefill(lane, 0, PROMPT, lane != 1, generation=10 + lane)
    (result,) = run(bench.executor, plan)
    assert result.step == 1
    assert result.lane.tolist() == [5, 1, 3]
    assert result.generation.tolist() == [15, 11, 13]
    assert result.accepted.tolist() == [1, 0, 1]
    assert len(result.tokens) == 2
    assert result.done.tolist() == [0, 0, 0]


def test_equal_rows_of_one_plan_get_equal_tokens(bench: Bench) -> None:
    plan = bench.host.plan()
    for lane in (1, 2):
        bench.host.seat(plan, lane, prompt=len(PROMPT), limit=16)
        plan.prefill(lane, 0, PROMPT, True)
    results = run(bench.executor, plan)
    assert tokens_of(results, 1) == tokens_of(results, 2)


def test_a_chunk_that_does_not_end_the_prompt_commits_nothing(bench: Bench) -> None:
    plan = bench.host.plan()
    bench.host.seat(plan, 1, prompt=len(PROMPT), limit=16)
    first, second = run(bench.executor, plan.prefill(1, 0, PROMPT[:4], False),
                        bench.host.plan().prefill(1, 4, PROMPT[4:], True))
    assert first.accepted.tolist() == [0] and len(first.tokens) == 0
    assert second.accepted.tolist() == [1]
    assert second.tokens.tolist() == greedy(bench, 1)


def test_decode_commits_one_token_a_step(bench: Bench) -> None:
    results = run(bench.executor, start(bench), *decodes(bench, 3))
    assert [result.accepted.tolist() for result in results] == [[1]] * 4
    assert all(0 <= token < bench.layout.shape.vocab_size for token in tokens_of(results, 1))


def test_overlapped_steps_equal_sequential_ones(bench: Bench) -> None:
    results = run_overlapped(bench.executor, start(bench), *decodes(bench, 5))
    assert tokens_of(results, 1) == greedy(bench, 6)


def test_limit_ends_the_lane_and_a_done_lane_does_nothing(bench: Bench) -> None:
    limit = len(PROMPT) + 2
    results = run_overlapped(bench.executor, start(bench, limit=limit), *decodes(bench, 3))
    assert [result.accepted.tolist() for result in results] == [[1], [1], [0], [0]]
    assert [result.done.tolist() for result in results] == [[Done.NO], [Done.LENGTH], [Done.LENGTH], [Done.LENGTH]]


def test_a_prompt_that_fills_the_limit_but_one_ends_at_its_first_token(bench: Bench) -> None:
    (result,) = run(bench.executor, start(bench, limit=len(PROMPT) + 1))
    assert result.accepted.tolist() == [1] and result.done.tolist() == [Done.LENGTH]


def test_a_stop_id_is_the_last_token(bench: Bench) -> None:
    if not bench.candidate.samples:
        pytest.skip("this executor's tokens are not sampled")
    expected = greedy(bench, 3)
    cut = expected.index(expected[2]) + 1
    results = run(bench.executor, start(bench, sampling=Sampling(stop_ids=(expected[2],))), *decodes(bench, 3))
    assert tokens_of(results, 1) == expected[:cut]
    assert results[cut - 1].done.tolist() == [Done.STOP]
    assert results[3].accepted.tolist() == [0] and results[3].done.tolist() == [Done.STOP]


def test_script_fixes_the_tokens(bench: Bench) -> None:
    if not bench.candidate.scripts:
        pytest.skip("this executor has no scripts")
    sampling = Sampling(script=script(11, 22, 33, 44))
    results = run(bench.executor, start(bench, sampling=sampling), *decodes(bench, 3))
    assert tokens_of(results, 1) == [11, 22, 33, 44]


def test_script_counts_from_the_callers_prompt_after_a_retraction(bench: Bench) -> None:
    if not bench.candidate.scripts:
        pytest.skip("this executor has no scripts")
    plan = bench.host.plan()
    bench.host.seat(plan, 1, prompt=len(PROMPT), limit=16, sampling=Sampling(script=script(11, 22, 33, 44)))
    results = run(bench.executor, plan.prefill(1, 0, [*PROMPT, 11, 22], True),
                  bench.host.plan().decode(1, len(PROMPT) + 2))
    assert tokens_of(results, 1) == [33, 44]


def drafts_of(bench: Bench, right: int, wrong: int) -> tuple[list[int], list[int]]:
    """Four tokens of the standard prompt, and drafts of which the first `right` are true."""
    seat = {"sampling": Sampling(script=script(11, 22, 33, 44, 55))} if bench.candidate.scripts else {}
    expected = greedy(bench, 5, **seat)
    other = (expected[1 + right] + 1) % bench.layout.shape.vocab_size
    return expected, expected[1 : 1 + right] + [other] * wrong


@pytest.mark.parametrize("right", [0, 1, 2])
def test_verify_accepts_the_true_drafts_and_one_more(bench: Bench, right: int) -> None:
    if not bench.executor.capabilities.verify:
        pytest.skip("this executor does not verify")
    expected, drafts = drafts_of(bench, right, wrong=1)
    sampling = Sampling(script=script(11, 22, 33, 44, 55)) if bench.candidate.scripts else Sampling()
    depth = len(PROMPT)
    first, second = run_overlapped(bench.executor, start(bench, sampling=sampling),
                                   bench.host.plan().verify(1, depth, drafts))
    (third,) = run(bench.executor, bench.host.plan().decode(1, depth + right + 1))
    assert second.accepted.tolist() == [right + 1]
    assert tokens_of([first, second, third], 1) == expected[: right + 3]


def test_verify_stops_at_the_limit(bench: Bench) -> None:
    if not bench.executor.capabilities.verify:
        pytest.skip("this executor does not verify")
    expected, drafts = drafts_of(bench, 2, wrong=0)
    sampling = Sampling(script=script(11, 22, 33, 44, 55)) if bench.candidate.scripts else Sampling()
    results = run(bench.executor, start(bench, limit=len(PROMPT) + 2, sampling=sampling),
                  bench.host.plan().verify(1, len(PROMPT), drafts))
    assert tokens_of(results, 1) == expected[:2]
    assert results[1].done.tolist() == [Done.LENGTH]


def test_a_conditional_snapshot_is_written_by_the_step_that_passes_its_depth(bench: Bench) -> None:
    depth = len(PROMPT) + 2
    first = bench.host.plan()
    bench.host.seat(first, 1, prompt=len(PROMPT), limit=16)
    target = bench.host.new_state(first)
    # Worst cases, one deeper than where the lane will stand: each of these steps might pass the depth.
    steps = [bench.host.plan().decode(1, len(PROMPT) + 1 + k).snapshot(depth, target) for k in range(3)]
    results = run_overlapped(bench.executor, first.prefill(1, 0, PROMPT, True), *steps)
    assert [result.written.tolist() for result in results] == [[], [False], [True], [False]]


def test_prefill_snapshots_are_always_written(bench: Bench) -> None:
    plan = bench.host.plan()
    bench.host.seat(plan, 1, prompt=len(PROMPT), limit=16)
    target = bench.host.new_state(plan, zero=False)
    (result,) = run(bench.executor, plan.prefill(1, 0, PROMPT, True).snapshot(len(PROMPT), target))
    assert result.written.tolist() == [True]


def test_a_checkpoint_resumes_its_prefix(bench: Bench) -> None:
    first = bench.host.plan()
    bench.host.seat(first, 1, prompt=len(PROMPT), limit=16)
    target = bench.host.new_state(first, zero=False)
    first.prefill(1, 0, PROMPT[:4], False).snapshot(4, target)
    page = int(first.entries["lane_pages"][0][2])
    whole = bench.layout.shape.page_span == 4
    second = bench.host.plan()
    bench.host.seat(second, 2, prompt=len(PROMPT), limit=16, depth=4, checkpoint=target,
                    shared=[page] if whole else [], tail=None if whole else (page, 4))
    results = run(bench.executor, first, second.prefill(2, 4, PROMPT[4:], True))
    assert tokens_of(results, 2) == greedy(bench, 1)


def test_a_new_generation_starts_the_lane_anew(bench: Bench) -> None:
    first = start(bench)
    more = decodes(bench, 2)
    again = bench.host.plan()
    bench.host.seat(again, 1, prompt=len(PROMPT), limit=16, generation=2)
    results = run_overlapped(bench.executor, first, *more, again.prefill(1, 0, PROMPT, True, generation=2))
    assert results[-1].generation.tolist() == [2]
    assert results[-1].tokens.tolist() == results[0].tokens.tolist()


def test_a_plan_of_moves_alone_keeps_the_sequence(bench: Bench) -> None:
    first = start(bench)
    moves = bench.host.plan()
    moves.add("moves", (0, 0, 1, 40), (0, 1, 1, 12), (1, 0, 2, 1), (1, 0, 40, 41))
    moves.add("page_table", (1, 41), (2, 1)).add("state_table", (1, 12))
    results = run_overlapped(bench.executor, first, moves, *decodes(bench, 3))
    assert results[1].lane.tolist() == [] and results[1].tokens.tolist() == []
    assert tokens_of(results, 1) == greedy(bench, 4)


def test_a_resync_plan_carries_on(bench: Bench) -> None:
    first = start(bench)
    (result,) = run(bench.executor, first)
    token = int(result.tokens[0])
    plan = bench.host.plan(resync=True)
    plan.add("page_table", *first.page_table.tolist()).add("state_table", *first.state_table.tolist())
    seat = first.seats[0]
    plan.add("seats", type(seat)(lane=1, generation=1, scope=seat.scope, state=seat.state, depth=len(PROMPT),
                                 prompt=len(PROMPT), limit=16, last_token=token))
    plan.add("lane_pages", *first.lane_pages.tolist()).decode(1, len(PROMPT))
    results = run(bench.executor, plan, *decodes(bench, 1, depth=len(PROMPT) + 1))
    assert [token, *tokens_of(results, 1)] == greedy(bench, 3)


def test_a_lane_seated_as_done_does_nothing(bench: Bench) -> None:
    plan = bench.host.plan()
    bench.host.seat(plan, 1, prompt=len(PROMPT), limit=16)
    seat = plan.entries["seats"][0]
    plan.entries["seats"] = [type(seat)(lane=1, generation=1, scope=seat.scope, state=seat.state, depth=0, prompt=7,
                                        limit=16, last_token=3, done=int(Done.STOP))]
    (result,) = run(bench.executor, plan.decode(1, 0))
    assert result.accepted.tolist() == [0] and result.done.tolist() == [Done.STOP]


def test_plans_and_results_survive_serialisation(bench: Bench) -> None:
    plans = [from_bytes(to_bytes(plan)) for plan in (start(bench), *decodes(bench, 1))]
    results = run(bench.executor, *[plan for plan in plans if isinstance(plan, Plan)])
    for result in results:
        again = from_bytes(to_bytes(result))
        assert isinstance(again, Result)
        for name in ("lane", "generation", "accepted", "tokens", "done", "written", "times"):
            assert np.array_equal(getattr(result, name), getattr(again, name))
            assert getattr(result, name).dtype == getattr(again, name).dtype
    assert tokens_of(results, 1) == greedy(bench, 2)


def test_repeat_stands_for_single_steps(bench: Bench) -> None:
    if not bench.executor.capabilities.fast_forward:
        pytest.skip("this executor has no fast-forward")
    first = start(bench, limit=len(PROMPT) + 5)
    results = run(bench.executor, first, bench.host.plan(repeat=3).decode(1, len(PROMPT)),
                  bench.host.plan(repeat=3).decode(1, len(PROMPT) + 3))
    assert [result.accepted.tolist() for result in results] == [[1], [3], [1]]
    assert tokens_of(results, 1) == greedy(bench, 5)
