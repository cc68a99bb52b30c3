"""Session admission inside an engine: held requests hold nothing, block nobody, and come out right."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.errors import ExecutorFailed
from k3mem.executors.mock import Fault, Faults, MockExecutor
from k3mem.fuzz import sessions as habits
from k3mem.policy import Policy, SessionAdmission
from k3mem.request import Output, Request
from tests.engine.test_review import said, tokens, truth
from tests.world import STATE, World, shape


class Clinic:
    """An engine that lets in few sessions, and a clock to set."""

    def __init__(self, pages: int = 12, states: int = 3, faults: Faults | None = None, **policy: Any) -> None:
        self.now = 0.0
        admission = SessionAdmission(**{"share": 1.0, "bound": 100.0, "idle": 50.0} | policy.pop("admission", {}))
        geometry = shape(16)
        self.engine = Engine(
            geometry, MockExecutor(seed=1, faults=faults), (states + 1) * STATE + (pages + 1) * geometry.page_bytes,
            Policy(**{"token_budget": 64, "max_running": 6, "admission": admission} | policy), clock=lambda: self.now)
        self.core = self.engine.scheduler.core
        self.out: dict[Hashable, list[Output]] = {}
        self.submitted: dict[Hashable, Request] = {}

    def submit(self, id: Hashable, count: int = 96, new: int = 4, **more: Any) -> Request:
        request = self.submitted[id] = Request(id, tokens(count, hash(str(id)) % 1000), new, **more)
        self.engine.submit(request)
        self.engine.check()
        return request

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            for out in self.engine.step():
                self.out.setdefault(out.id, []).append(out)
            self.engine.check()

    def drain(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("no end in sight")

    @property
    def held(self) -> list[Hashable]:
        return [job.request.id for job in self.core.sessions.held]

    def reason(self, id: Hashable) -> str | None:
        return self.out[id][-1].reason

    def right(self, id: Hashable) -> bool:
        return said(self.out[id]) == truth(self.engine, self.submitted[id])


def two(**more: Any) -> Clinic:
    """Session a runs, and the request of session b is held."""
    clinic = Clinic(**more)
    clinic.submit("a", session="a", new=30)
    clinic.submit("b", session="b")
    clinic.step(3)
    assert clinic.held == ["b"] and clinic.core.lanes.running == 1
    return clinic


def test_a_held_request_holds_nothing_and_blocks_nobody() -> None:
    clinic = two(pages=20, admission={"share": 0.7})
    clinic.submit("none", count=32)
    clinic.step(4)
    assert {seat.job.request.id for seat in clinic.core.lanes.taken()} == {"a", "none"}
    assert clinic.engine.stats()["waiting"] == 1 and not clinic.core.queue
    clinic.drain()
    assert all(clinic.right(i) for i in ("a", "b", "none"))


def test_it_goes_in_when_the_server_would_idle_though_the_other_session_is_active() -> None:
    clinic = two()
    clinic.drain()
    assert clinic.right("a") and clinic.right("b") and clinic.now == 0.0


def test_it_goes_in_once_it_has_waited_for_the_bound_under_pressure() -> None:
    clinic = Clinic(pages=30, admission={"bound": 5.0, "share": 0.3})
    clinic.submit(0, session=0, new=1)
    clinic.submit("b", session="b")
    let_in = None
    for i in range(1, 200):  # session 0 never pauses
        clinic.submit(i, session=0, new=2)
        clinic.step(2)
        clinic.now += 0.1
        if let_in is None and "b" not in clinic.held:
            let_in = clinic.now
    assert let_in is not None and 4.9 <= let_in <= 5.3
    clinic.drain()
    assert clinic.right("b")


def test_children_pass_while_others_are_held_and_never_wait_for_their_parents() -> None:
    clinic = two()
    clinic.submit("a.child", count=32, session="a.child", parent_session="a")
    clinic.submit("b.child", count=32, session="b.child", parent_session="b")
    assert clinic.held == ["b", "b.child"]
    clinic.drain()
    first = {event.id: event.seq for event in clinic.engine.events() if event.kind == "admit"}
    assert first["a.child"] < first["b"]
    assert all(clinic.right(i) for i in clinic.submitted)


def test_a_held_request_can_be_aborted() -> None:
    clinic = two()
    clinic.engine.abort("b")
    clinic.engine.check()
    assert clinic.held == []
    clinic.drain()
    assert clinic.reason("b") == "abort" and clinic.right("a")
    clinic.submit("b", session="b")  # its id is free again
    clinic.drain()


def test_a_deadline_passes_while_a_request_is_held() -> None:
    clinic = Clinic()
    clinic.submit("a", session="a", new=30)
    clinic.submit("b", session="b", deadline=1.0)
    clinic.step(3)
    assert clinic.held == ["b"]
    clinic.now = 1.0
    clinic.step()
    assert clinic.held == [] and clinic.reason("b") == "deadline"
    clinic.drain()
    assert clinic.right("a")


def test_ending_a_session_lets_the_next_one_in_and_drops_its_pin() -> None:
    clinic = Clinic(pages=20, admission={"share": 0.6})
    clinic.submit("a", session="a")
    clinic.drain()
    clinic.engine.pin("a", 1e6)
    assert clinic.core.pins.nodes
    clinic.submit("none", count=20, new=40)
    clinic.step(2)
    clinic.submit("b", session="b")
    clinic.step()
    assert clinic.held == ["b"], "a has only paused"
    clinic.engine.end_session("a")
    assert not clinic.core.pins.nodes
    clinic.step()
    assert clinic.held == []
    clinic.drain()
    assert clinic.right("b")


@pytest.mark.parametrize("then", ["nothing", "another", "abort"])
def test_a_session_may_end_while_its_last_request_is_held(then: str) -> None:
    clinic = two()
    clinic.engine.end_session("b")
    clinic.engine.check()
    if then == "another":
        clinic.submit("b2", session="b", count=32)  # so it had not
    elif then == "abort":
        clinic.engine.abort("b")
        clinic.engine.check()
        clinic.submit("b2", session="b", count=32)
    clinic.drain()
    clinic.step()
    assert clinic.core.sessions is not None
    assert ("b" in clinic.core.sessions._roots) == (then != "nothing")


def test_a_cancelled_plan_leaves_sessions_in_that_it_let_in() -> None:
    clinic = Clinic()
    clinic.submit("a", session="a")
    clinic.submit("b", session="b")
    plan = clinic.engine.plan()
    assert plan is not None
    clinic.engine.cancel(plan)
    clinic.engine.check()
    assert clinic.held == ["b"] and [job.request.id for job in clinic.core.queue] == ["a"]
    plan = clinic.engine.plan()
    assert plan is not None
    clinic.engine.abort("a")  # admitted by the open plan
    clinic.engine.cancel(plan)
    clinic.engine.check()
    clinic.drain()
    assert clinic.right("b")


def test_a_plan_is_cancelled_while_requests_are_held() -> None:
    clinic = two()
    for _ in range(3):
        plan = clinic.engine.plan()
        assert plan is not None
        clinic.engine.cancel(plan)
        clinic.engine.check()
    assert clinic.held == ["b"]
    clinic.drain()
    assert clinic.right("a") and clinic.right("b")


def commit_all(clinic: Clinic) -> None:
    while clinic.engine.flights:
        flight = clinic.engine.flights[0]
        for out in clinic.engine.commit(flight, clinic.engine.collect(flight)):
            clinic.out.setdefault(out.id, []).append(out)


@pytest.mark.parametrize("what", ["flush", "resize", "smaller", "sleep"])
def test_held_requests_survive_what_an_operator_does(what: str) -> None:
    clinic = two(pages=14)
    commit_all(clinic)
    engine, pages = clinic.engine, 14
    capacity = clinic.core.cache.arena.capacity_bytes
    if what == "flush":
        engine.flush()
    elif what == "sleep":
        engine.sleep()
        clinic.now += 1000.0
        engine.wake()
    else:
        pages = 40 if what == "resize" else 10
        engine.resize(capacity + (pages - 14) * shape(16).page_bytes)
    engine.check()
    clinic.step()
    assert (clinic.held == []) == (what in ("resize", "sleep")), "a larger arena, or a time past the bound, lets it in"
    clinic.drain()
    assert clinic.right("a") and clinic.right("b")


def test_an_executor_that_gives_up_ends_held_requests_too() -> None:
    clinic = two(faults=Faults([Fault(step, "collect") for step in range(4, 12)]))
    with pytest.raises(ExecutorFailed):
        clinic.drain()
    clinic.engine.check()
    ends = {out.id: out.reason for out in clinic.engine.take_outputs()}
    assert ends == {"a": "failed", "b": "failed"} and clinic.held == [] and not clinic.engine.has_work


def test_what_is_pinned_beyond_a_share_gives_way_and_what_is_within_does_not() -> None:
    def pinned_after(share: float) -> list[Hashable]:
        clinic = Clinic(pages=8, states=6, pin_share=share)
        for i in range(2):
            clinic.submit(i, session=i, count=80, new=2)
            clinic.drain()
            clinic.engine.pin(i, 1e6)
        clinic.submit("runs", count=16, new=60)
        clinic.step(2)
        clinic.submit("large", count=128)
        clinic.step(4)
        left = [s for s, pin in clinic.core.pins._pins.items() if pin.node is not None]
        clinic.drain()
        assert clinic.right("large")
        return left

    assert pinned_after(1.0) == [0, 1], "a request that others run beside waits for pins"
    assert pinned_after(0.3) == [1], "the oldest gave way"


# -- anything goes


@dataclass(kw_only=True)
class Town(World):
    """Random sessions, with sub-agents, ends and plans that are cancelled, before a door that is narrow."""

    door: habits.Door = field(default_factory=habits.Door)

    def new_request(self) -> Request:
        rng, request = self.rng, super().new_request()
        session, parent = habits.family(rng)
        request.session, request.parent_session = session or None, parent or None
        if rng.random() < 0.1:
            request.deadline = self.now + rng.random() * 6
        self.door.submitted(request, self.now)
        return request

    def act(self) -> None:
        super().act()
        if self.rng.random() < 0.1:
            self.happen()
        if self.rng.random() < 0.15:
            plan = self.engine.plan()
            wrong = self.door.trouble(self.engine.scheduler.core, self.now)
            self.failures += [wrong] if wrong else []
            if plan is not None:
                self.engine.cancel(plan)
            self.engine.check()

    def happen(self) -> None:
        """A caller says that a session has ended, rightly or not, or aborts somebody who is held."""
        sessions = self.engine.scheduler.core.sessions
        if sessions is not None and sessions.held and self.rng.random() < 0.3:
            self.engine.abort(self.rng.choice(list(sessions.held)).request.id)
        else:
            self.engine.end_session(over := self.rng.randrange(1, habits.SESSIONS + 1))
            self.door.ended(over)

    def take(self, out: Output) -> None:
        if out.reason == "deadline":
            self.expected[out.id].tokens = self.expected[out.id].got + out.tokens
        super().take(out)


@pytest.mark.parametrize("seed", range(10))
def test_random_sessions_under_pressure(seed: int) -> None:
    rng = random.Random(seed)
    bound = rng.choice([0.5, 3.0, 30.0])
    faults = Faults(seed=seed, rate=0.03) if seed % 4 == 3 else None
    policy = Policy(
        token_budget=48, max_running=6, steps_in_flight=seed % 3, pin_share=0.2, eager=seed % 2 == 0,
        admission=SessionAdmission(bound=bound, idle=rng.choice([0.2, 2.0]), auto=seed % 5 == 4,
                                   share=rng.choice([0.1, 0.4])))
    town = Town(seed=seed, requests=120, states=rng.choice([3, 12]), pages=30, policy=policy, faults=faults,
                window=1 if seed % 2 else 4).run()
    assert not town.failures
    sessions = town.engine.scheduler.core.sessions
    assert sessions is not None and not len(sessions.held)
    assert sessions.counts["held"] > 0 or policy.admission is not None and policy.admission.auto
    assert sessions.longest <= bound + 0.2 + 1e-9, "a plan comes every tenth of a second"
    assert np.all(np.array(sessions.waits) > 0)
