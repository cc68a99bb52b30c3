"""The engine's surface: what it refuses, what it leaves as it was, and in which order things happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.errors import InvalidRequest, InvalidShape, RequestTooLarge, UnknownRequest
from k3mem.executors.mock import MockExecutor, fresh_output
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Plan, Sampling
from k3mem.policy import Policy
from k3mem.radix import Kind, Lru
from k3mem.request import Output, Request
from k3mem.shape import Shape
from tests.engine.test_matrix import AXES, PLAIN, world
from tests.world import STATE, TOKEN, VOCAB, shape


class Bench:
    """An engine on the mock, with a clock to set."""

    def __init__(self, states: int = 20, tokens: int = 800, window: int = 1, **policy: Any) -> None:
        self.now = 0.0
        self.executor = MockExecutor(seed=1, strict_handout=False)
        policy.setdefault("token_budget", 48)
        self.engine = Engine(shape(), self.executor, (states + 1) * STATE + (tokens + 16) * TOKEN,
                             Policy(**policy), clock=lambda: self.now, window=window)
        self.core = self.engine.scheduler.core

    def fresh(self, prompt: list[int], new: int) -> list[int]:
        scope = self.core.cache.digest(self.core.cache.scope(("", "", "")))
        return fresh_output(scope, prompt, Sampling(), new, vocab_size=VOCAB)

    def everything(self) -> dict[str, Any]:
        """All that a refusal or a cancel must leave as it was, but for evictions."""
        core, cache = self.core, self.core.cache
        walk = cache.tree.walk()
        return {
            "stats": self.engine.stats(),
            "arena": [table.tolist() for table in cache.arena.tables()],
            "refs": {page: n for page, n in enumerate(cache.arena.page_refs().tolist()) if n},
            "walk": [column.tolist() for column in walk],
            "queue": [job.request.id for job in core.queue],
            "jobs": sorted(core.jobs),
            "lanes": {name: [int(getattr(core.lanes, name)[seat.lane]) for seat in core.lanes.taken()]
                      for name in ("phase", "launched", "inflight", "covered", "touched", "limit")},
            "seats": [(s.job.request.id, s.pages[: s.page_count].tolist(), s.owned, s.touched, s.state, s.node,
                       dict(s.slots), dict(s.anchors)) for s in core.lanes.taken()],
            "deltas": len(core.deltas),
        }


def tokens_of(outputs: list[Output], id: object) -> list[int]:
    return [token for out in outputs if out.id == id for token in out.tokens]


def reason_of(outputs: list[Output], id: object) -> str | None:
    return next((out.reason for out in outputs if out.id == id and out.finished), None)


# -- submit

TOO_MUCH: list[tuple[Callable[[], Request], type[Exception], str]] = [
    (lambda: Request("x", [VOCAB], 1), InvalidRequest, f"token {VOCAB} at 0"),
    (lambda: Request("x", [1, -1], 1), InvalidRequest, "token -1 at 1"),
    (lambda: Request("x", [], 1), InvalidRequest, "empty"),
    (lambda: Request("x", [[1, 2]], 1), InvalidRequest, "flat sequence"),  # type: ignore[list-item]
    (lambda: Request("x", [1.5], 1), InvalidRequest, "flat sequence"),  # type: ignore[list-item]
    (lambda: Request("x", [1 << 40], 1), InvalidRequest, "int32"),
    (lambda: Request("x", [1], 0), InvalidRequest, "max_new_tokens"),
    (lambda: Request("x", [1], -3), InvalidRequest, "max_new_tokens"),
    (lambda: Request("x", [1], 1, hints=(2,)), InvalidRequest, "hints"),
    (lambda: Request("x", [1], 1, turn_starts=(-1,)), InvalidRequest, "turn_starts"),
    (lambda: Request("x", [1], 1, media=[(0, 2, b"d")]), InvalidRequest, "media"),
    (lambda: Request("x", [1], 1, colour="red"), InvalidRequest, "colour"),
    (lambda: Request("busy", [1], 1), InvalidRequest, "still in flight"),
    (lambda: Request("waiting", [1], 1), InvalidRequest, "still in flight"),
    (lambda: Request("x", [1] * 4000, 97), RequestTooLarge, "4096"),
    (lambda: Request("x", [1] * 2300, 96), RequestTooLarge, "capacity_bytes"),
]


@pytest.mark.parametrize(("make", "error", "message"), TOO_MUCH)
def test_a_refused_request_changes_nothing(make: Callable[[], Request], error: type[Exception], message: str) -> None:
    bench = Bench(max_running=1)
    bench.engine.submit(Request("busy", [1] * 60, 9))
    bench.engine.submit(Request("waiting", [2] * 60, 9))
    bench.engine.step()
    before = bench.everything()
    with pytest.raises(error, match=message):
        bench.engine.submit(make())
    after = bench.everything()
    after["stats"]["rejected"] -= error is RequestTooLarge
    assert after == before


@pytest.mark.parametrize(("changes", "message"), [
    ({"capacity_bytes": "2GB"}, "capacity_bytes must be an integer, got '2GB'"),
    ({"capacity_bytes": 2e9}, "capacity_bytes must be an integer, got 2000000000.0"),
    ({"capacity_bytes": 1000}, r"capacity_bytes 1000 is too small: give at least \d+"),
    ({"shape": "kimi-k3"}, r"shape must be a k3mem.Shape, such as Shape.kimi_k3\(tp=8\), got 'kimi-k3'"),
    ({"executor": object()}, "is no executor: it has no capabilities, attach, launch, collect"),
    ({"executor": MockExecutor}, "is no executor: it is a class, give an instance"),
    ({"policy": "lru"}, "policy must be a k3mem.Policy, got 'lru'"),
    ({"window": "2"}, "window must lie in 1..grid .*, got '2'"),
])
def test_an_argument_of_a_wrong_kind_is_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"shape": shape(), "executor": MockExecutor(), "capacity_bytes": 1 << 20, **changes}
    with pytest.raises(ValueError, match=message):
        Engine(**arguments)


@pytest.mark.parametrize(("options", "message"), [
    ({"eviction": "mru"}, "policy: eviction must be an object such as .*, got 'mru'"),
    ({"eviction": Lru}, "policy: eviction must be an object such as .*, got <class"),
    ({"token_budget": "8192"}, "policy: token_budget must be an integer, got '8192'"),
    ({"max_running": None}, "policy: max_running must be an integer, got None"),
    ({"interval": 64.0}, "policy: interval must be an integer or None, got 64.0"),
    ({"split": "half"}, "policy: split must be a number between 0 and 1 or None, got 'half'"),
])
def test_a_choice_of_a_wrong_kind_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Policy(**options)


def test_a_hit_names_its_kind() -> None:
    bench = Bench()
    prompt = list(range(40))
    assert (bench.engine.probe(prompt).kind, bench.engine.probe(prompt).kind_name) == (-1, "none")
    bench.engine.submit(Request("a", prompt, 4))
    prompt += tokens_of(bench.engine.run(), "a") + [1]
    hit = bench.engine.probe(prompt)
    assert (hit.kind, hit.kind_name) == (Kind.ANSWER_END, "answer_end")
    assert "kind=6 (answer_end)" in repr(hit)


def test_resize_names_what_is_no_size_and_changes_nothing() -> None:
    bench = Bench()
    before = bench.everything()
    for size, message in (("2GB", "must be an integer"), (1000, "is too small: give at least")):
        with pytest.raises(InvalidShape, match=message):
            bench.engine.resize(size)  # type: ignore[arg-type]
    assert bench.everything() == before


def test_the_largest_request_that_fits_runs() -> None:
    bench = Bench(states=1, tokens=480)
    with pytest.raises(RequestTooLarge):
        bench.engine.submit(Request("x", [1] * 400, 81))
    for again in range(3):  # with what the one before left in the cache
        bench.engine.submit(Request("y", [1] * 400, 80))
        assert tokens_of(bench.engine.run(), "y") == bench.fresh([1] * 400, 80), again
        bench.engine.check()


# -- plan, cancel, commit


def same(one: Plan, other: Plan) -> bool:
    """Equal but for the names of pages and states, which are handed out in another order, and for generations."""
    rows = ("kind", "lane", "start", "length", "sample", "token_offset", "tokens", "moves")
    sizes = ("lane_pages", "zero_pages", "zero_states", "page_copies", "restores", "page_table", "state_table")
    return (
        one.step == other.step
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in rows)
        and all(getattr(one, name).shape == getattr(other, name).shape for name in sizes)
        and np.array_equal(one.snapshots[:, :2], other.snapshots[:, :2])
        and [(s.lane, s.depth, s.prompt, s.limit) for s in one.seats]
        == [(s.lane, s.depth, s.prompt, s.limit) for s in other.seats]
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_cancelled_plan_leaves_no_trace_and_comes_again(seed: int) -> None:
    """In a roomy world nothing is evicted or retracted for a plan, so that everything must be as it was."""
    cell = PLAIN | {axis: values[seed % len(values)] for axis, values in AXES.items()}
    w = world(cell | {"states": 24, "window": 1}, seed, 40)
    bench = Bench.__new__(Bench)
    bench.engine, bench.core = w.engine, w.engine.scheduler.core
    compared = 0
    while w.made < w.requests or w.engine.has_work:
        w.act()
        before = bench.everything()
        plan = w.engine.plan()
        if plan is not None:
            w.engine.cancel(plan)
            after = bench.everything()
            if after["stats"]["events"].get("victim") == before["stats"]["events"].get("victim"):
                for counts in (before, after):
                    for name in ("move_count", "move_bytes", "followers", "peak_running", "skipped_snapshots",
                                 "events"):
                        counts["stats"].pop(name)
                assert after == before
                again = w.engine.plan()
                assert again is not None
                assert same(plan, again)
                w.engine.cancel(again)
                compared += 1
            w.engine.check()
        w.one_step()
    w.settle()
    assert not w.failures
    assert compared > 40


def test_plan_and_commit_go_in_order() -> None:
    bench = Bench(steps_in_flight=3)
    engine = bench.engine
    engine.submit(Request("a", [1] * 20, 9))
    plan = engine.plan()
    assert plan is not None
    with pytest.raises(RuntimeError, match="is open"):
        engine.plan()
    flight = engine.launch(plan)
    with pytest.raises(RuntimeError, match="not open"):
        engine.cancel(plan)
    second = engine.plan()
    assert flight is not None and second is not None
    later = engine.launch(second)
    assert later is not None
    first_result, second_result = engine.collect(flight), engine.collect(later)
    with pytest.raises(RuntimeError, match="oldest"):
        engine.commit(later, second_result)
    assert tokens_of(engine.commit(flight, first_result), "a") == bench.fresh([1] * 20, 1)
    engine.commit(later, second_result)
    engine.run()
    engine.check()


# -- ends


def test_a_deadline_ends_a_request_by_the_given_clock() -> None:
    bench = Bench(max_running=1)
    bench.engine.submit(Request("runs", [1] * 20, 50, deadline=5.0))
    bench.engine.submit(Request("waits", [2] * 20, 50, deadline=3.0))
    bench.engine.submit(Request("lives", [3] * 20, 5, deadline=1000.0))
    outputs = []
    while bench.engine.has_work:
        outputs += bench.engine.step()
        bench.now += 0.5
        assert (reason_of(outputs, "waits") is None) == (bench.now < 3.5)
    assert [reason_of(outputs, i) for i in ("runs", "waits", "lives")] == ["deadline", "deadline", "length"]
    got = tokens_of(outputs, "runs")
    assert 0 < len(got) < 50 and got == bench.fresh([1] * 20, len(got))
    bench.engine.check()


def test_a_higher_priority_goes_first() -> None:
    bench = Bench(max_running=1, steps_in_flight=0)
    for i, priority in enumerate([0, 2, 1, 2]):
        bench.engine.submit(Request(i, [i + 1] * 20, 3, priority=priority))
    ends = [out.id for out in bench.engine.run() if out.finished]
    assert ends == [1, 3, 2, 0]


def test_a_higher_priority_takes_the_lane_of_a_lower_one() -> None:
    bench = Bench(max_running=1)
    bench.engine.submit(Request("low", [1] * 20, 40))
    outputs = [out for _ in range(6) for out in bench.engine.step()]
    bench.engine.submit(Request("high", [2] * 20, 3, priority=1))
    outputs += bench.engine.run()
    assert [out.id for out in outputs if out.finished] == ["high", "low"]
    assert tokens_of(outputs, "low") == bench.fresh([1] * 20, 40)
    assert bench.engine.stats()["retractions"] == 1


@pytest.mark.parametrize("in_flight", [0, 1, 3])
@pytest.mark.parametrize("window", ["queued", "planned", "launched", "collected"])
def test_abort_in_every_window_of_a_step(window: str, in_flight: int) -> None:
    bench = Bench(steps_in_flight=in_flight)
    engine = bench.engine
    engine.submit(Request("other", [5] * 20, 12))
    outputs = engine.step() + engine.step()
    engine.submit(Request("a", [1] * 40, 12))
    if window == "queued":
        engine.abort("a")
    else:
        plan = engine.plan()
        assert plan is not None
        if window == "planned":
            engine.abort("a")
        engine.launch(plan)
        if window == "launched":
            engine.abort("a")
        while bench.core.flights:
            flight = bench.core.flights[0]
            result = engine.collect(flight)
            if window == "collected" and len(bench.core.flights) == 1:
                engine.abort("a")
            outputs += engine.commit(flight, result)
    with pytest.raises(UnknownRequest, match="ended already"):
        engine.abort("a")
    engine.check()
    outputs += engine.run()
    assert reason_of(outputs, "a") == "abort" and tokens_of(outputs, "a") == []
    assert tokens_of(outputs, "other") == bench.fresh([5] * 20, 12)
    engine.check()
    assert not bench.core.lanes.running and not bench.executor.violations


def test_abort_of_what_has_ended_is_refused() -> None:
    bench = Bench()
    bench.engine.submit(Request("a", [1], 1))
    bench.engine.run()
    for id in ("a", "never"):
        with pytest.raises(UnknownRequest):
            bench.engine.abort(id)


@pytest.mark.parametrize("in_flight", [0, 1, 3])
def test_an_id_is_free_again_once_its_last_launched_step_has_committed(in_flight: int) -> None:
    bench = Bench(steps_in_flight=in_flight)
    bench.engine.submit(Request("a", [1] * 20, 30, stop=lambda out: 2 if len(out) >= 2 else None))
    outputs: list[Output] = []
    while reason_of(outputs, "a") is None:
        outputs += bench.engine.step()
    overruns = bench.core.lanes.inflight.sum()
    assert (overruns > 0) == (in_flight > 0)
    while bench.core.lanes.inflight.any():
        with pytest.raises(InvalidRequest, match="still in flight"):
            bench.engine.submit(Request("a", [2] * 20, 3))
        bench.engine.step()
    bench.engine.submit(Request("a", [2] * 20, 3))
    assert tokens_of(bench.engine.run(), "a") == bench.fresh([2] * 20, 3)


# -- streams, probes


def test_two_streams_take_turns() -> None:
    bench = Bench()
    order: list[str] = []

    async def read(id: str, prompt: list[int]) -> list[int]:
        got = []
        async for out in bench.engine.stream(Request(id, prompt, 12)):
            order.append(id)
            got += out.tokens
        return got

    async def both() -> list[list[int]]:
        return await asyncio.gather(read("a", [1] * 20), read("b", [2] * 20))

    assert asyncio.run(both()) == [bench.fresh([1] * 20, 12), bench.fresh([2] * 20, 12)]
    assert "".join(order).find("ab") >= 0 and "".join(order).find("ba") >= 0
    assert not bench.engine.has_work


def test_a_probe_touches_nothing() -> None:
    bench = Bench()
    prompt = list(range(60))
    bench.engine.submit(Request("a", prompt, 5))
    bench.engine.run()
    before = bench.everything()
    hit = bench.engine.probe([*prompt, 1, 2])
    assert (hit.hit, hit.input, sum(hit.causes.values())) == (48, 62, 14)
    assert bench.engine.probe([90] * 3).hit == 0
    assert bench.everything() == before
    # The least recently used is still the same victim.
    bench.engine.submit(Request("b", [7] * 60, 5))
    bench.engine.run()
    assert bench.engine.probe([*prompt, 1]).hit == 48


# -- together


def test_one_prefill_serves_many() -> None:
    bench = Bench(states=40, tokens=2000, max_running=8, token_budget=50)
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 200)]
    bench.engine.submit(Request(0, [*prompt, 0], 4))
    bench.engine.step()
    for i in range(1, 6):
        bench.engine.submit(Request(i, [*prompt, i], 4))
    outputs = bench.engine.run()
    for i in range(6):
        assert tokens_of(outputs, i) == bench.fresh([*prompt, i], 4)
    stats = bench.engine.stats()
    assert stats["followers"] == 5
    assert stats["hit_tokens"] == 5 * 192
    assert stats["prefill_tokens"] == 201 + 5 * 9


def test_what_is_retracted_resumes_where_it_stood() -> None:
    bench = Bench(max_running=1)
    bench.engine.submit(Request("low", [1] * 20, 40))
    outputs = [out for _ in range(11) for out in bench.engine.step()]
    bench.engine.submit(Request("high", [2] * 20, 3, priority=1))
    outputs += bench.engine.run()
    assert tokens_of(outputs, "low") == bench.fresh([1] * 20, 40)
    assert bench.engine.stats()["retractions"] == 1
    # The newest token is all that was computed again: nobody had absorbed it.
    assert bench.engine.stats()["resumed_tokens"] == 1
    assert bench.engine.stats()["created"]["retract"] == 1


# -- construction


@pytest.mark.parametrize(("options", "message"), [
    ({"window": 0}, "1..grid"),
    ({"window": 17}, "grid"),
])
def test_a_window_must_fit_the_grid(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bench(**options)


def test_a_drafter_needs_an_executor_that_verifies_its_window() -> None:
    class Drafter:
        def draft(self, request_id: object, tokens: Any, limit: int) -> Any:
            return tokens[:0]

    with pytest.raises(ValueError, match="max_window"):
        Engine(shape(), MockExecutor(max_window=4), 100_000, drafter=Drafter(), window=5)
    Engine(shape(), MockExecutor(max_window=4), 100_000, drafter=Drafter(), window=4)


# -- long


def test_a_prompt_of_a_million_tokens() -> None:
    """Admitted, chunked, published and resumed, with K3's real sizes."""
    k3 = Shape.kimi_k3(tp=8)
    length, new = 1_048_576 - 64, 32
    executor = SimExecutor()
    engine = Engine(k3, executor, 64_000_000_000, Policy(token_budget=65536), clock=executor.clock)
    prompt = np.random.default_rng(1).integers(0, k3.vocab_size, length, np.int32)
    engine.submit(Request("a", prompt, new))
    outputs = engine.run()
    assert len(tokens_of(outputs, "a")) == new and reason_of(outputs, "a") == "length"
    stats = engine.stats()
    assert stats["steps"] >= length // 65536 + new and stats["tree"]["kv_tokens"] == length + new - 1
    engine.check()
    following = np.concatenate([prompt, np.array(tokens_of(outputs, "a"), np.int32)])
    engine.submit(Request("b", following, 4))
    engine.run()
    assert engine.stats()["hit_tokens"] == length + new - 1
    assert engine.stats()["prefill_tokens"] == length + 1
    with pytest.raises(RequestTooLarge, match="1048576"):
        engine.submit(Request("c", prompt, 65))
    engine.check()
