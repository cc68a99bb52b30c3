"""Corners that a hostile reading of the scheduler found wrong once."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.errors import Corrupted, InvalidRequest
from k3mem.executors.mock import MockExecutor, fresh_output
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Result
from k3mem.policy import Policy
from k3mem.request import Output, Request
from k3mem.sched import failure
from k3mem.sched.lanes import Phase
from tests.world import STATE, VOCAB, shape


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(count)]


def make(pages: int = 40, states: int = 8, page_tokens: int = 16, spare: int = 0, **policy: object) -> Engine:
    """An engine on the mock with room for exactly so many pages and states, and `spare` bytes."""
    options: dict[str, object] = {"token_budget": 64, "max_running": 6, "steps_in_flight": 1} | policy
    geometry = shape(page_tokens)
    capacity = (states + 1) * STATE + (pages + 1) * geometry.page_bytes + spare
    return Engine(geometry, MockExecutor(seed=1), capacity, Policy(**options), clock=lambda: 0.0)  # type: ignore[arg-type]


def finish(engine: Engine) -> dict[Hashable, list[Output]]:
    """Drive to the end, every invariant checked after every step."""
    out: dict[Hashable, list[Output]] = {}
    for _ in range(4000):
        if not engine.has_work:
            return out
        for one in engine.step():
            out.setdefault(one.id, []).append(one)
        engine.check()
    raise AssertionError("no end in sight")


def said(outputs: list[Output]) -> list[int]:
    return [token for out in outputs for token in out.tokens]


def truth(engine: Engine, request: Request) -> list[int]:
    cache = engine.scheduler.core.cache
    return fresh_output(cache.digest(cache.scope(request.scope)), request.prompt.tolist(), request.sampling,
                        request.max_new_tokens, vocab_size=VOCAB)


# -- abort and cancel in an open plan


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_abort_of_a_request_admitted_by_the_open_plan_survives_cancel(depth: int) -> None:
    engine = make(steps_in_flight=depth)
    engine.submit(Request("a", tokens(20), 4))
    plan = engine.plan()
    assert plan is not None
    engine.abort("a")
    engine.cancel(plan)
    engine.check()
    assert [out.reason for out in finish(engine)["a"]] == ["abort"]
    assert not engine.has_work


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_request_aborted_while_its_last_prefill_row_is_planned_gets_no_further_row(depth: int) -> None:
    engine = make(steps_in_flight=depth)
    engine.submit(Request("a", tokens(20), 40))
    plan = engine.plan()
    assert plan is not None
    engine.abort("a")
    engine.launch(plan)
    finish(engine)
    assert engine.stats()["rows"] == 1


def test_a_cancelled_plan_leaves_no_counts_and_no_waiting_time() -> None:
    engine = make(token_budget=24)
    engine.submit(Request("leader", tokens(80), 4))
    engine.step()
    engine.submit(Request("follower", tokens(80) + tokens(5, 1), 4))
    core = engine.scheduler.core
    before = engine.stats()
    for _ in range(3):
        plan = engine.plan()
        assert plan is not None and core.metrics.followers == 1
        engine.cancel(plan)
        assert core.jobs["follower"].waits == 0
    after = engine.stats()
    assert {k: v for k, v in after.items() if k != "arena"} == {k: v for k, v in before.items() if k != "arena"}


def test_a_commit_while_a_plan_is_open_is_refused_and_changes_nothing() -> None:
    engine = make()
    engine.submit(Request("a", tokens(20), 9))
    first = engine.plan()
    assert first is not None
    flight = engine.launch(first)
    assert flight is not None
    result = engine.collect(flight)
    second = engine.plan()
    assert second is not None
    with pytest.raises(RuntimeError, match="is open"):
        engine.commit(flight, result)
    engine.cancel(second)
    engine.commit(flight, result)
    engine.check()


# -- priorities


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_higher_priority_takes_the_lane_of_a_lower_one(depth: int) -> None:
    engine = make(steps_in_flight=depth, max_running=1)
    engine.submit(Request("low", tokens(20), 60))
    for _ in range(4):
        engine.step()
    engine.submit(Request("high", tokens(20, 9), 5, priority=5))
    ends = []
    while engine.has_work:
        ends += [out.id for out in engine.step() if out.finished]
    assert ends == ["high", "low"] and engine.stats()["retractions"] == 1


def test_a_follower_lends_its_leader_the_rank_for_prefill_rows() -> None:
    engine = make(token_budget=24, pages=80)  # one grid depth a step, and a rest that judges the queue
    engine.submit(Request("other", tokens(160, 3), 2))
    engine.submit(Request("leader", tokens(160), 2))
    for _ in range(3):
        engine.step()
    core = engine.scheduler.core
    other, leader = (next(s for s in core.lanes.taken() if s.job.request.id == i) for i in ("other", "leader"))
    assert core.lanes.launched[leader.lane] == 0
    engine.submit(Request("urgent", tokens(160) + tokens(8, 5), 2, priority=9))
    for _ in range(3):
        engine.step()
    assert core.lanes.launched[leader.lane] > 0 and core.lanes.phase[other.lane] == Phase.PREFILL


@pytest.mark.parametrize("budget", [16, 24])
def test_a_higher_priority_does_not_wait_for_the_chunks_of_a_lower_one(budget: int) -> None:
    engine = make(token_budget=budget, pages=80)
    engine.submit(Request("long", tokens(800), 2))
    for _ in range(2):
        engine.step()
    engine.submit(Request("urgent", tokens(10, 2), 1, priority=9))
    for _ in range(3):
        if any(out.id == "urgent" for out in engine.step()):
            break
    else:
        raise AssertionError("the urgent request still waits")
    assert engine.scheduler.core.jobs.keys() == {"long"}


# -- exact fits


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_request_that_fits_alone_to_the_byte_ends(depth: int, deterministic: bool) -> None:
    engine = make(pages=10, states=1, steps_in_flight=depth, deterministic=deterministic)
    request = Request("a", tokens(40), 120)
    engine.submit(request)
    assert said(finish(engine)["a"]) == truth(engine, request)


def test_a_request_that_fits_alone_to_the_byte_ends_after_it_resumed_inside_a_page() -> None:
    engine = make(pages=10, states=1)
    first = Request("a", tokens(40), 3)
    engine.submit(first)
    prompt = tokens(40) + said(finish(engine)["a"]) + tokens(10, 5)
    second = Request("b", prompt, 160 - len(prompt))
    engine.submit(second)
    assert said(finish(engine)["b"]) == truth(engine, second)


@pytest.mark.parametrize("seed", range(12))
def test_tight_arenas_never_stall(seed: int) -> None:
    rng = random.Random(seed)
    page_tokens = rng.choice([1, 4, 16])
    longest = rng.randrange(40, 140)
    engine = make(pages=-(-longest // page_tokens), states=1, page_tokens=page_tokens, spare=rng.choice([0, 1, 500]),
                  steps_in_flight=rng.choice([0, 1, 3]), deterministic=rng.random() < 0.3,
                  interval=rng.choice([None, 16]), move_budget=rng.choice([1, 10**9]), max_running=4)
    known: list[list[int]] = []
    want: dict[Hashable, list[int]] = {}
    got: dict[Hashable, list[Output]] = {}
    for i in range(6):
        base = rng.choice(known) if known and rng.random() < 0.7 else []
        prompt = (base + tokens(rng.randrange(1, 40), 50 * seed + i))[: longest - 1]
        request = Request(i, prompt, rng.randrange(1, longest - len(prompt) + 1), priority=rng.choice([0, 0, 1]))
        engine.submit(request)
        want[i] = truth(engine, request)
        if rng.random() < 0.6:
            got |= finish(engine)
            known.append(prompt + want[i])
    got |= finish(engine)
    assert {i: said(got[i]) for i in got} == {i: want[i] for i in got} and got.keys() == want.keys()


def test_a_head_of_queue_that_cannot_fit_evicts_nothing() -> None:
    engine = make(token_budget=512)
    for i in range(3):
        engine.submit(Request(i, tokens(33, i), 3))
        finish(engine)
    engine.submit(Request("running", tokens(20, 50) + [1] * 300, 250))
    for _ in range(4):
        engine.step()
    before = engine.stats()["tree"]["checkpoints"]
    engine.submit(Request("too big for now", tokens(20, 51) + [2] * 800, 5))
    for _ in range(4):
        engine.step()
    assert engine.stats()["tree"]["checkpoints"] == before and engine.stats()["waiting"] == 1
    finish(engine)


# -- fast-forward


def _replay(seed: int, fast_forward: bool) -> tuple[object, ...]:
    rng = random.Random(seed)
    depth = rng.choice([0, 1, 3])
    policy = Policy(token_budget=rng.choice([8, 16, 48, 256]), max_running=rng.choice([2, 4, 8]),
                    steps_in_flight=depth, eager=rng.random() < 0.4, move_budget=rng.choice([1, 700, 4 << 30]),
                    split=rng.choice([None, None, 0.4]))
    pages, states = rng.choice([(30, 3), (40, 6), (25, 12), (60, 2)])
    executor, geometry = SimExecutor(vocab=VOCAB), shape()
    capacity = (states + 1) * STATE + (pages + 1) * geometry.page_bytes
    engine = Engine(geometry, executor, capacity, policy, clock=executor.clock, fast_forward=fast_forward)
    base, arrivals, now = tokens(60, seed), [], 0.0
    for i in range(30):
        now += rng.expovariate(1) * rng.choice([0, 0.01, 0.2])
        prompt = base[: rng.randrange(60)] + tokens(rng.randrange(1, 40), 100 * seed + i)
        arrivals.append((now, Request(i, prompt, rng.choice([1, 5, 40, 80]), priority=rng.choice([0, 0, 1]))))
    got: dict[Hashable, list[object]] = {}
    while arrivals or engine.has_work:
        while arrivals and arrivals[0][0] <= executor.moment(depth):
            engine.submit(arrivals.pop(0)[1])
        following = arrivals[0][0] if arrivals else float("inf")
        if not engine.has_work:
            executor.idle(following)
            continue
        engine.until(following)
        for out in engine.step():
            one = got.setdefault(out.id, [[], out.first_time, None, None])
            one[0] += out.tokens  # type: ignore[operator]
            one[2:] = [out.last_time, out.reason]
    engine.check()
    return got, engine.stats(), executor.now


@pytest.mark.parametrize("seed", range(12))
def test_reports_with_and_without_fast_forward_are_identical_under_pressure(seed: int) -> None:
    assert _replay(seed, True) == _replay(seed, False)


# -- failures


@pytest.mark.parametrize("moved, used", [(3, False), (2, True)])
def test_who_survives_a_failed_move_depends_on_rows(moved: int, used: bool) -> None:
    engine = make(page_tokens=16)
    engine.submit(Request("a", tokens(47), 60))
    core = engine.scheduler.core
    while not core.lanes.taken() or core.lanes.launched[0] < 50:
        engine.step()
    while core.flights:
        flight = core.flights[0]
        engine.commit(flight, engine.collect(flight))
    seat = core.lanes.seat(0)
    core.lanes.launched[0] = 48  # as if its rows in the fourth page had been drafts that all were wrong
    assert seat.touched == 4
    arena = core.cache.arena
    rows = np.full(arena.page_id_end, failure.INTACT, np.int32)
    rows[seat.pages[moved]] = 0
    states = np.zeros(arena.state_id_end, np.bool_)
    assert failure._stands_on(core, seat, rows, states) == used
    failure._forget_damage(core, seat, rows, states)
    assert seat.touched == (4 if used else 3)


def test_a_survivor_drops_the_snapshot_that_a_failed_step_moved() -> None:
    engine = make(deterministic=True, pages=80)
    engine.submit(Request("a", tokens(20), 60))
    core = engine.scheduler.core
    while not core.lanes.taken() or core.lanes.seat(0).extra.latest is None:
        engine.step()
    seat = core.lanes.seat(0)
    states = np.zeros(core.cache.arena.state_id_end, np.bool_)
    states[seat.extra.latest] = True
    failure._forget_damage(core, seat, np.full(core.cache.arena.page_id_end, failure.INTACT, np.int32), states)
    assert seat.extra.latest is None
    engine.check()
    finish(engine)


# -- what comes from outside


def test_a_wrong_salt_is_refused_and_shifts_no_scope() -> None:
    engine = make()
    with pytest.raises(InvalidRequest, match="salt"):
        engine.submit(Request("a", tokens(20), 4, salt=5))
    with pytest.raises(InvalidRequest, match="UTF-8"):
        engine.probe(tokens(20), salt="\ud800")
    cache = engine.scheduler.core.cache
    x, y = (cache.scope((salt, "", "")) for salt in "xy")
    assert (cache.digest(x), cache.digest(y)) == tuple(_digests("xy"))


def _digests(salts: str) -> list[bytes]:
    caches = [make().scheduler.core.cache for _ in salts]
    return [cache.digest(cache.scope((salt, "", ""))) for cache, salt in zip(caches, salts, strict=True)]


def test_a_prompt_that_its_caller_changes_after_submit_stays_as_it_was() -> None:
    engine = make(token_budget=16)
    array = np.array(tokens(80), np.int32)
    request = Request("a", array, 8)
    want = truth(engine, request)
    engine.submit(request)
    engine.step()
    array[:] = 0
    assert said(finish(engine)["a"]) == want


def test_one_picture_at_two_sizes_is_two_keys() -> None:
    engine = make()
    prompt = [1] * 4 + [0] * 8 + tokens(40)
    engine.submit(Request("a", prompt, 1, media=[(4, 8, b"cat")]))
    engine.submit(Request("b", prompt, 1, media=[(4, 4, b"cat"), (8, 4, b"cat")]))
    engine.submit(Request("c", prompt, 1, media=[(4, 8, b"cat")]))
    one, two, again = (job.tokens[: job.count].tolist() for job in engine.scheduler.core.jobs.values())
    assert one == again != two


@pytest.mark.parametrize("field, wrong", [
    ("accepted", np.array([2], np.int32)), ("accepted", np.array([-1], np.int32)),
    ("tokens", np.zeros(0, np.int32)), ("written", np.zeros(0, np.bool_)), ("written", np.zeros(1, np.bool_)),
    ("done", np.array([3], np.uint8)),
])
def test_an_implausible_result_latches_the_engine_before_it_is_booked(field: str, wrong: np.ndarray) -> None:
    engine = make()
    engine.submit(Request("a", tokens(20), 4))
    plan = engine.plan()
    assert plan is not None and len(plan.snapshots) == 1
    flight = engine.launch(plan)
    assert flight is not None
    result: Result = engine.collect(flight)
    with pytest.raises(Corrupted):
        engine.commit(flight, replace(result, **{field: wrong}))
    assert engine.scheduler.core.jobs["a"].count == 20
    with pytest.raises(Corrupted):
        engine.plan()


def test_a_second_stream_of_an_id_in_use_leaves_the_first_alone() -> None:
    import asyncio

    engine = make()
    request = Request("a", tokens(20), 6)

    async def both() -> list[int]:
        first, got = engine.stream(request), []
        got += (await anext(first)).tokens
        with pytest.raises(InvalidRequest):
            await anext(engine.stream(Request("a", tokens(20), 6)))
        async for out in first:
            got += out.tokens
        return got

    assert asyncio.run(both()) == truth(engine, request)


# -- counts


def test_recomputed_tokens_after_a_retraction_count_from_where_it_resumed() -> None:
    engine = make(caching=False, max_running=1)
    engine.submit(Request("low", tokens(40), 60))
    for _ in range(4):
        engine.step()
    job = engine.scheduler.core.jobs["low"]
    engine.submit(Request("high", tokens(20, 9), 2, priority=5))
    finish(engine)
    assert engine.stats()["retractions"] == 1
    assert 40 < engine.stats()["resumed_tokens"] <= job.count


def test_two_stalls_apart_from_each_other_are_not_two_in_a_row() -> None:
    engine = make()
    core = engine.scheduler.core
    core.stalls = 1
    engine.submit(Request("a", tokens(20), 2))
    engine.step()
    assert core.stalls == 0
