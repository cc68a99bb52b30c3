"""What a second hostile reading of the scheduler found, one section a kind of fault."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.errors import Effect
from k3mem.executors.mock import Fault, Faults, MockExecutor
from k3mem.plan import Row
from k3mem.policy import Policy
from k3mem.request import Output, Request
from k3mem.sched import pins, spare
from k3mem.sched.lanes import Phase
from k3mem.types import Int32
from tests.cases.helpers import Scene, cached, diverge
from tests.engine.test_review import finish, make, said, tokens, truth
from tests.world import STATE, World, shape


def core_of(engine: Engine) -> Any:
    return engine.scheduler.core


def drain(engine: Engine) -> list[Output]:
    """Commit all flights."""
    out: list[Output] = []
    while engine.flights:
        out += engine.commit(engine.flights[0], engine.collect(engine.flights[0]))
    return out


def end_of(outputs: list[Output]) -> Output:
    (last,) = [out for out in outputs if out.finished]
    return last


# -- pins


def pinned_engine(**policy: object) -> tuple[Engine, list[int]]:
    """An engine in which session "s" has had one request; and the text that it left."""
    engine = make(**policy)  # type: ignore[arg-type]
    request = Request("first", tokens(40), 4, session="s")
    engine.submit(request)
    return engine, tokens(40) + said(finish(engine)["first"])


def test_a_session_s_memory_holds_no_tokens() -> None:
    engine = make()
    buffers = []
    for i in range(4):
        engine.submit(Request(i, tokens(40, i), 3, session=i))
        buffers.append(core_of(engine).jobs[i].tokens)
        finish(engine)
    held = [b for b in buffers if any(r is not buffers and not isinstance(r, FrameType) for r in gc.get_referrers(b))]
    assert not held and len(core_of(engine).pins._places) == 4


def test_a_pin_keeps_the_newest_checkpoint_and_moves_on_with_the_session() -> None:
    engine, text = pinned_engine()
    engine.pin("s", 10)
    tree = core_of(engine).cache.tree
    (node,) = core_of(engine).pins.nodes
    assert tree.info(node).depth == len(text) - 1
    engine.submit(Request("second", text + tokens(20, 7), 4, session="s"))
    finish(engine)
    (newer,) = core_of(engine).pins.nodes
    assert tree.info(newer).depth > tree.info(node).depth and tree.info(node).lock == 0


def test_a_pin_on_a_node_that_has_another_tenant_locks_nothing() -> None:
    engine, _ = pinned_engine(ghost_tokens=0)
    core = core_of(engine)
    place = core.pins._places["s"]
    engine.flush()
    seed = 10
    while True:  # others come until one of them stands on the same node id
        engine.submit(Request(seed, tokens(40, seed), 4))
        finish(engine)
        if place.node in core.cache.tree.walk().node.tolist() and core.cache.tree.info(place.node).state >= 0:
            break
        seed += 1
    engine.pin("s", 10)
    assert core.pins.nodes == [] and "s" not in core.pins._places
    engine.check()


def test_sessions_without_a_checkpoint_are_not_remembered_and_the_rest_is_bounded(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MOST_SESSIONS", 3)
    engine = make(caching=False)
    engine.submit(Request("a", tokens(20), 2, session="a"))
    finish(engine)
    assert not core_of(engine).pins._places
    engine = make()
    for i in range(5):
        engine.submit(Request(i, tokens(20, i), 2, session=i))
        finish(engine)
        engine.pin(i, 10)
    assert list(core_of(engine).pins._places) == [2, 3, 4] == list(core_of(engine).pins._pins)
    engine.check()


def test_a_cancelled_takeover_leaves_the_session_pinnable() -> None:
    engine, text = pinned_engine(pages=10, states=1, answer_ends=True)
    engine.submit(Request("second", text + tokens(20, 7), 4))
    plan = engine.plan()
    assert plan is not None and core_of(engine).metrics.takeovers == 1
    engine.cancel(plan)
    engine.pin("s", 10)
    assert len(core_of(engine).pins.nodes) == 1
    engine.check()
    engine.unpin("s")
    finish(engine)


# -- stop functions


def stopping(stop: Callable[[Int32], Any], **policy: object) -> tuple[Engine, dict[Hashable, list[Output]]]:
    """A request with this stop function beside one without, to their ends."""
    engine = make(**policy)  # type: ignore[arg-type]
    engine.submit(Request("odd", tokens(20), 8, stop=stop))
    engine.submit(Request("other", tokens(30, 1), 8))
    out = finish(engine)
    assert said(out["other"]) == truth(engine, Request("other", tokens(30, 1), 8))
    assert end_of(out["other"]).reason == "length"
    return engine, out


def raises_at_two(output: Int32) -> int | None:
    if len(output) == 2:
        raise KeyError("no such stop string")
    return None


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("stop, why", [
    (raises_at_two, "KeyError"), (lambda out: -1 if len(out) == 2 else None, "returned -1"),
    (lambda out: 3 if len(out) == 2 else None, "returned 3"), (lambda out: True if len(out) == 2 else None, "True"),
    (lambda out: "2" if len(out) == 2 else None, "'2'"),
    (lambda out: out.fill(0) if len(out) == 2 else None, "read-only"),
])
def test_a_stop_function_that_fails_ends_its_own_request_only(stop: Any, why: str, depth: int) -> None:
    engine, out = stopping(stop, steps_in_flight=depth)
    last = end_of(out["odd"])
    assert (last.reason, last.keep) == ("failed", None)
    assert said(out["odd"]) == truth(engine, Request("odd", tokens(20), 8))[:2]
    (event,) = [e for e in engine.events() if e.kind == "end" and e.id == "odd"]
    assert event.detail.startswith("failed: stop()") and why in event.detail


@pytest.mark.parametrize("keep", [0, 1, 2, np.int64(2)])
def test_a_stop_function_keeps_from_none_to_all(keep: int) -> None:
    engine, out = stopping(lambda output: keep if len(output) == 2 else None)
    assert (end_of(out["odd"]).reason, end_of(out["odd"]).keep) == ("host_stop", int(keep))


def test_an_interrupt_inside_a_stop_function_books_nothing() -> None:
    engine = make(steps_in_flight=0)
    calls = [0]

    def interrupted(output: Int32) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt

    engine.submit(Request("a", tokens(20), 5, stop=interrupted))
    engine.submit(Request("b", tokens(30, 1), 5))
    got: list[Output] = engine.step()
    plan = engine.plan()
    assert plan is not None
    flight = engine.launch(plan)
    assert flight is not None
    result = engine.collect(flight)
    with pytest.raises(KeyboardInterrupt):
        engine.commit(flight, result)
    engine.check()
    assert engine.flights == (flight,)
    got += engine.commit(flight, result)
    engine.check()
    got += [out for outputs in finish(engine).values() for out in outputs]
    for request in (Request("a", tokens(20), 5), Request("b", tokens(30, 1), 5)):
        assert said([out for out in got if out.id == request.id]) == truth(engine, request)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_stop_function_may_abort_anybody(depth: int) -> None:
    engine = make(steps_in_flight=depth)

    def abort_both(output: Int32) -> None:
        if len(output) == 2:
            engine.abort("a")
            engine.abort("b")

    engine.submit(Request("a", tokens(20), 8, stop=abort_both))
    engine.submit(Request("b", tokens(30, 1), 8))
    out = finish(engine)
    assert end_of(out["a"]).reason == end_of(out["b"]).reason == "abort"


# -- followers


@pytest.mark.parametrize("budget, lanes", [(32, 6), (40, 1)])
def test_a_leader_leaves_a_checkpoint_for_a_follower_that_no_plan_had_budget_or_a_lane_for(
        budget: int, lanes: int) -> None:
    engine = make(token_budget=budget, pages=120, max_running=lanes, chunk_ends=False)
    engine.submit(Request("leader", tokens(200), 2))
    engine.step()
    engine.submit(Request("follower", tokens(96) + tokens(60, 5), 2))
    core = core_of(engine)
    job, leader = core.jobs["follower"], core.lanes.seat(0)
    engine.step()
    assert core.lanes.launched[0] == 64 and list(leader.slots) == [96] and job.waits == 0
    engine.check()
    finish(engine)
    assert job.hit is not None and job.hit.hit == 96


def test_judging_those_whom_no_plan_can_admit_costs_them_no_patience() -> None:
    engine = make(token_budget=16, pages=120, max_running=1)
    engine.submit(Request("leader", tokens(300), 2))
    engine.step()
    engine.submit(Request("follower", tokens(40), 2))
    for _ in range(12):
        engine.step()
        engine.check()
    assert core_of(engine).jobs["follower"].waits == 0
    finish(engine)


def test_no_more_waiting_jobs_are_judged_than_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make(token_budget=16, pages=120, max_running=2)
    engine.submit(Request("leader", tokens(300), 2))
    engine.step()
    for i in range(8):
        engine.submit(Request(i, tokens(290) + tokens(9, i + 1), 2))
    asked = []
    cache = core_of(engine).cache
    match = cache.match
    monkeypatch.setattr(cache, "match", lambda *a: asked.append(a) or match(*a))
    engine.step()
    assert len(asked) == 2


def test_a_loan_ends_with_the_follower() -> None:
    engine = make(token_budget=40, pages=80)
    engine.submit(Request("leader", tokens(300), 2))
    engine.step()
    engine.submit(Request("urgent", tokens(200) + tokens(8, 5), 2, priority=9))
    engine.step()
    (leader,) = core_of(engine).lanes.taken()
    assert leader.rank[0] == -9
    engine.abort("urgent")
    engine.step()
    assert leader.lent is None
    finish(engine)


# -- preemption


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_victim_of_a_higher_priority_gets_no_row_from_the_plan_on_that_retracts_it(depth: int) -> None:
    engine = make(steps_in_flight=depth, max_running=1)
    engine.submit(Request("low", tokens(20), 60))
    for _ in range(4):
        engine.step()
    engine.submit(Request("high", tokens(20, 9), 5, priority=5))
    core = core_of(engine)
    seat = core.lanes.seat(0)
    while True:
        before = core.metrics.retractions
        plan = engine.plan()
        if core.metrics.retractions > before:
            break
        if plan is not None:
            engine.launch(plan)
        if engine.flights and (plan is None or len(engine.flights) > depth):
            engine.commit(engine.flights[0], engine.collect(engine.flights[0]))
    assert seat.end is not None
    if plan is not None:
        assert not any(int(g) == seat.generation for g in plan.generation)
        engine.launch(plan)
    drain(engine)
    finish(engine)
    assert engine.stats()["retractions"] == 1


def test_nobody_is_retracted_for_a_job_that_was_aborted_or_once_a_lane_is_free() -> None:
    for gone in ("high", "low"):
        engine = make(max_running=2, steps_in_flight=0)
        for i in ("low", "lower"):
            engine.submit(Request(i, tokens(20, len(i)), 60))
        for _ in range(4):
            engine.step()
        engine.submit(Request("high", tokens(20, 9), 5, priority=5))
        engine.step()
        assert core_of(engine).wanting is core_of(engine).jobs["high"]
        engine.abort(gone)
        finish(engine)
        assert engine.stats()["retractions"] == 0


# -- ranks


def test_of_equal_priority_who_was_admitted_goes_before_who_was_not() -> None:
    engine = make(max_running=1, pages=80)
    core = core_of(engine)
    engine.submit(Request("first in line", tokens(20, 1), 3))
    plan = engine.plan()
    assert plan is not None
    engine.cancel(plan)  # submitted first, but admitted by nobody
    engine.submit(Request("overtakes", tokens(20, 2), 40, priority=1))
    for _ in range(4):
        engine.step()
    running = core.lanes.seat(0).job
    running.request.priority = 0  # of one priority with the other from here on
    assert running.request.id == "overtakes" and running.rank < core.jobs["first in line"].rank
    engine.submit(Request("urgent", tokens(20, 3), 3, priority=5))
    while running not in core.queue:
        engine.step()
    engine.check()
    assert [job.request.id for job in core.queue][-2:] == ["overtakes", "first in line"]
    ends = [out.id for outputs in iter_steps(engine) for out in outputs if out.finished]
    assert ends == ["urgent", "overtakes", "first in line"]


def test_a_cancelled_admission_gives_its_number_back() -> None:
    engine = make()
    engine.submit(Request("a", tokens(20), 3))
    engine.submit(Request("b", tokens(20, 1), 3))
    core = core_of(engine)
    for _ in range(3):
        plan = engine.plan()
        assert plan is not None and core.admissions == 2
        engine.check()
        engine.cancel(plan)
        assert core.admissions == 0 and [job.rank for job in core.queue] == [(0, 1, 0), (0, 1, 1)]
        engine.check()
    finish(engine)


def test_a_priority_changed_after_submit_changes_nothing() -> None:
    engine = make(max_running=1)
    requests = [Request(i, tokens(20, i), 3) for i in range(4)]
    for request in requests:
        engine.submit(request)
    requests[3].priority = 9
    requests[1].id = "another"
    requests[2].deadline = -1.0
    engine.check()
    ends = [out.id for outputs in iter_steps(engine) for out in outputs if out.finished]
    assert ends == [0, 1, 2, 3]


def iter_steps(engine: Engine) -> Any:
    while engine.has_work:
        yield engine.step()
        engine.check()


# -- spare checkpoints


@pytest.mark.parametrize("touched", [False, True])
def test_a_checkpoint_given_up_for_a_running_request_counts_like_an_evicted_one(touched: bool) -> None:
    engine = make(token_budget=32)
    engine.submit(Request("a", tokens(80), 30))
    while not core_of(engine).lanes.taken() or core_of(engine).lanes.phase[0] != Phase.DECODE:
        engine.step()
    core = core_of(engine)
    (seat,) = core.lanes.taken()
    info = core.cache.tree.info(seat.node)
    assert info.state >= 0 and info.unused
    if touched:
        core.cache.tree.touch(seat.node)
    before = (core.metrics.evicted, core.metrics.evicted_unused)
    assert spare._drop_checkpoint(core, seat)
    assert (core.metrics.evicted, core.metrics.evicted_unused) == (before[0] + 1, before[1] + (not touched))
    assert engine.events()[-1].kind == "evict" and engine.events()[-1].depth == info.depth
    engine.check()
    finish(engine)


# -- a step that failed without effect


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("effect", [Effect.NO_EFFECT, Effect.UNKNOWN])
def test_a_step_without_effect_costs_no_more_than_its_own_work(depth: int, effect: Effect) -> None:
    faults = Faults()
    geometry = shape(16)
    executor = MockExecutor(seed=3, faults=faults, strict_handout=False)
    engine = Engine(geometry, executor, 9 * STATE + 41 * geometry.page_bytes,
                    Policy(token_budget=64, max_running=6, steps_in_flight=depth), clock=lambda: 0.0)
    request = Request("a", tokens(100), 30)
    engine.submit(request)
    got: list[Output] = []
    core = core_of(engine)
    while not core.lanes.taken() or core.lanes.launched[0] < 110:
        got += engine.step()
    faults.script[core.step + 1] = Fault(core.step + 1, effect=effect)
    while core.metrics.failures == 0:
        got += engine.step()
    engine.check()
    if effect == Effect.NO_EFFECT:
        assert core.cache.tree.counters().checkpoints == 2  # chunk end and prompt end; nothing was damaged
    for outputs in finish(engine).values():
        got += outputs
    assert said(got) == truth(engine, request)
    assert executor.violations == []


def left_behind_a_failed_prefill(effect: Effect) -> int:
    """KV tokens in the tree after a prefill failed with a decode row of the same lane in flight, on a lane whose list
    names pages of the tree."""
    faults = Faults()
    scene = Scene(faults=faults, policy=Policy(max_running=4))
    scene.serve("R1", cached(129), 1)
    scene.tombstone(cached(129), *scene.checkpoints(cached(129)))
    faults.script[scene.core.step + 1] = Fault(scene.core.step + 1, effect=effect)
    scene.submit("R2", diverge(cached(128), "R2", 40), 8)
    scene.step(2)
    assert scene.core.metrics.failures == 1
    left = scene.tree.counters().kv_tokens
    scene.verify()
    scene.run()
    scene.settle()
    return left


def test_rows_that_a_step_without_effect_would_have_written_are_no_damage() -> None:
    assert left_behind_a_failed_prefill(Effect.NO_EFFECT) >= 128 > left_behind_a_failed_prefill(Effect.UNKNOWN)


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_random_worlds_survive_steps_that_fail_without_effect(seed: int, depth: int) -> None:
    class Mild(Faults):
        def strike(self, step: int) -> Fault | None:
            fault = super().strike(step)
            return None if fault is None else replace(fault, at="collect", effect=Effect.NO_EFFECT)

    policy = Policy(token_budget=48, max_running=6, steps_in_flight=depth, eager=bool(seed % 2))
    world = World(seed=seed, requests=60, states=3, pages=30, faults=Mild(rate=0.1, seed=seed), policy=policy,
                  window=1 + 3 * (seed % 2), longest=120, most_new=20).run()
    assert not world.failures and world.engine.stats()["failures"] > 3


# -- bits


@pytest.mark.parametrize("same", [True, False])
def test_deterministic_keeps_only_prefill_built_states_where_bits_differ(same: bool) -> None:
    engine = make(pages=80, deterministic=True)
    core = core_of(engine)
    core.capabilities = replace(core.capabilities, same_bits=same)
    engine.submit(Request("a", tokens(40), 60))
    text = tokens(40)
    while engine.has_work:
        plan = engine.plan()
        if plan is not None:
            assert same or all(plan.kind[row] == Row.PREFILL for row, _, _ in plan.snapshots.tolist())
            engine.launch(plan)
        if engine.flights and (plan is None or len(engine.flights) > 1):
            text += said(engine.commit(engine.flights[0], engine.collect(engine.flights[0])))
    engine.check()
    walk = core.cache.tree.walk()
    depths = sorted(walk.depth[walk.state >= 0].tolist())
    assert depths[-1] == (96 if same else 32)
    more = Request("b", text + tokens(5, 3), 4)
    engine.submit(more)
    assert said(finish(engine)["b"]) == truth(engine, more)
