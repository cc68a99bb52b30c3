"""What a second hostile reading of the engine's face found: streams, probes, the latch, inputs, flights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.errors import Corrupted, InvalidRequest, RequestTooLarge, StepFailed
from k3mem.executors.mock import Fault, Faults, MockExecutor
from k3mem.plan import Plan
from k3mem.policy import Policy
from k3mem.request import Output, Request
from k3mem.types import Int32
from tests.engine.test_hardening import core_of, drain, end_of
from tests.engine.test_review import finish, make, said, tokens, truth
from tests.world import STATE, VOCAB, shape

# -- streams


def test_closing_a_stream_aborts_its_request_and_leaves_nothing() -> None:
    engine = make()

    async def one() -> None:
        stream = engine.stream(Request("a", tokens(20), 60))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(one())
    assert engine.stats()["aborts"] == 1 and not engine._inboxes
    assert finish(engine) == {} and not engine.has_work


def test_a_stream_read_to_its_end_or_ended_by_another_aborts_nothing() -> None:
    engine = make()

    async def one(id: str, abort: bool) -> list[Output]:
        got: list[Output] = []
        async for out in engine.stream(Request(id, tokens(20), 4)):
            if abort and not got:
                engine.abort(id)
            got.append(out)
        return got

    assert [out.finished for out in asyncio.run(one("a", False))][-1]
    assert asyncio.run(one("b", True))[-1].reason == "abort"
    assert engine.stats()["aborts"] == 1 and finish(engine) == {}


def test_outputs_of_others_wait_for_whoever_takes_them() -> None:
    engine = make()
    other, streamed = Request("other", tokens(30, 1), 6), Request("a", tokens(20), 12)
    engine.submit(other)

    async def one() -> list[int]:
        return [token async for out in engine.stream(streamed) for token in out.tokens]

    assert asyncio.run(one()) == truth(engine, streamed)
    assert engine.has_work
    taken = engine.take_outputs()
    assert said(taken) == truth(engine, other) and end_of(taken).id == "other"
    assert finish(engine) == {}


def test_steps_of_others_feed_a_stream() -> None:
    engine = make()
    other, streamed = Request("other", tokens(30, 1), 6), Request("a", tokens(20), 12)

    async def both() -> tuple[list[int], list[int]]:
        stream = engine.stream(streamed)
        got = (await anext(stream)).tokens
        engine.submit(other)
        theirs = engine.run()
        return got + [token async for out in stream for token in out.tokens], said(theirs)

    assert asyncio.run(both()) == (truth(engine, streamed), truth(engine, other))


def test_a_stream_that_is_closed_late_leaves_the_next_request_of_its_id_alone() -> None:
    engine = make()
    again = Request("a", tokens(30, 1), 5)

    async def one() -> list[int]:
        stream = engine.stream(Request("a", tokens(20), 60))
        await anext(stream)
        engine.abort("a")
        drain(engine)
        engine.submit(again)
        got = engine.step()
        await stream.aclose()  # type: ignore[attr-defined]
        return said(got + engine.run())

    assert asyncio.run(one()) == truth(engine, again)
    assert engine.stats()["aborts"] == 1


# -- probes


def test_a_probe_makes_no_scope_and_says_what_a_submit_would_find() -> None:
    engine = make()
    engine.submit(Request("a", tokens(60), 4, salt="known"))
    finish(engine)
    core = core_of(engine)
    before, numbers = dict(core.cache._scopes), dict(engine._media)
    media = [(2, 4, b"cat")]
    said_of = {
        (salt, bool(m)): engine.probe(tokens(60), salt=salt, media=m)
        for salt in ("known", "new") for m in ((), media)
    }
    assert core.cache._scopes == before and engine._media == numbers
    assert said_of["known", False].hit > 0 and said_of["new", False].causes["other_scope"] > 0
    for i, ((salt, with_media), expected) in enumerate(said_of.items()):
        engine = make()
        engine.submit(Request("a", tokens(60), 4, salt="known"))
        finish(engine)
        engine.submit(Request(i, tokens(60), 4, salt=salt, media=media if with_media else ()))
        job = core_of(engine).jobs[i]
        finish(engine)
        assert job.hit == expected


@pytest.mark.parametrize("wrong, options", [
    ([VOCAB], {}), ([-1], {}), ([1], {"salt": 5}), ([1], {"media": [(0, 2, b"x")]}), ([], {}), ([1], {"adapter": 1}),
])
def test_a_probe_refuses_what_submit_refuses(wrong: list[int], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        make().probe(wrong, **options)


def test_a_probe_without_caching_promises_nothing() -> None:
    engine = make(caching=False)
    hit = engine.probe(tokens(40))
    assert hit.hit == 0 and hit.causes == {"never_seen": 40}


def test_a_refused_request_leaves_no_media() -> None:
    engine = make()
    with pytest.raises(RequestTooLarge):
        engine.submit(Request("a", tokens(40), 4000, media=[(2, 4, b"cat")]))
    assert not engine._media


# -- the latch


def latched_calls(engine: Engine, plan: Plan) -> dict[str, Callable[[], object]]:
    core = core_of(engine)
    return {
        "submit": lambda: engine.submit(Request("b", tokens(5), 2)), "abort": lambda: engine.abort("a"),
        "plan": engine.plan, "check": engine.check, "launch": lambda: engine.launch(plan),
        "cancel": lambda: engine.cancel(plan), "commit": lambda: engine.commit(core.flights[0], None),  # type: ignore[arg-type]
        "failed": lambda: engine.failed(core.flights[0]), "flush": engine.flush, "sleep": engine.sleep,
        "resize": lambda: engine.resize(1 << 20), "wake": engine.wake, "step": engine.step,
        "pin": lambda: engine.pin("s", 1), "unpin": lambda: engine.unpin("s"), "probe": lambda: engine.probe([1]),
    }


@pytest.mark.parametrize("name, inner", [
    ("submit", "submit"), ("abort", "abort"), ("plan", "plan"), ("check", "check"), ("launch", "launched"),
    ("cancel", "cancel"), ("commit", "commit"), ("failed", "fail"), ("flush", "flush"), ("sleep", "empty"),
    ("resize", "empty"), ("pin", "pin"), ("probe", "probe"),
])
def test_whatever_finds_an_invariant_broken_latches_the_engine(
        name: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    engine.submit(Request("a", tokens(20), 30))
    engine.step()
    plan = engine.plan()
    assert plan is not None

    def broken(*a: object, **k: object) -> None:
        raise Corrupted("a word is wrong")

    monkeypatch.setattr(engine.scheduler, inner, broken)
    with pytest.raises(Corrupted, match="a word is wrong"):
        latched_calls(engine, plan)[name]()
    monkeypatch.undo()
    for call in latched_calls(engine, plan).values():
        with pytest.raises(Corrupted, match="latched after: a word is wrong"):
            call()


def test_a_failed_launch_that_finds_an_invariant_broken_latches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    engine.submit(Request("a", tokens(20), 30))
    engine.step()

    def broken(*a: object) -> None:
        raise Corrupted("a word is wrong")

    def fails(plan: Plan) -> None:
        raise StepFailed("at launch")

    monkeypatch.setattr(engine.executor, "launch", fails)
    monkeypatch.setattr(engine.scheduler, "fail", broken)
    with pytest.raises(Corrupted):
        engine.step()
    with pytest.raises(Corrupted, match="latched"):
        engine.check()


# -- inputs


@pytest.mark.parametrize("options, word", [
    ({"priority": "high"}, "priority"), ({"priority": 1.5}, "priority"), ({"priority": None}, "priority"),
    ({"deadline": "soon"}, "deadline"), ({"deadline": float("nan")}, "deadline"), ({"session": []}, "session"),
    ({"parent_session": {}}, "parent_session"), ({"media": 5}, "media"), ({"media": [(0, 1)]}, "media"),
    ({"media": [(0, 1, "text")]}, "digest"), ({"media": [("0", 1, b"x")]}, "media"),
    ({"media": [(0, 0, b"x")]}, "media"), ({"hints": 3}, "hints"), ({"turn_starts": ["a"]}, "turn_starts"),
    ({"stop": "END"}, "stop"), ({"sampling": {"top_k": 1}}, "sampling"), ({"salt": "\ud800"}, "UTF-8"),
    ({"adapter": "\ud800"}, "UTF-8"), ({"adapter_version": 2}, "adapter_version"),
])
def test_a_field_of_a_wrong_type_is_refused_by_name(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        Request("a", tokens(5), 3, **options)


@pytest.mark.parametrize("id", [[], {}, {"a"}])
def test_an_id_that_cannot_be_a_key_is_refused(id: Any) -> None:
    with pytest.raises(InvalidRequest, match="id must be hashable"):
        Request(id, tokens(5), 3)


def test_a_field_assigned_after_construction_is_checked_at_submit() -> None:
    engine = make()
    for name, value in (("priority", "x"), ("id", []), ("media", [(90, 1, b"x")]), ("max_new_tokens", 0),
                        ("prompt", np.zeros((2, 2), np.int32))):
        request = Request("a", tokens(5), 3)
        setattr(request, name, value)
        with pytest.raises(InvalidRequest):
            engine.submit(request)
    assert not engine.has_work


def test_numbers_of_numpy_are_numbers() -> None:
    request = Request("a", tokens(5), np.int64(3), priority=np.int32(2), deadline=np.float32(1.5),
                      hints=np.array([1, 2]), media=[(np.int64(0), np.int64(2), b"x")])
    assert (request.priority, request.deadline, request.hints, request.media) == (2, 1.5, (1, 2), ((0, 2, b"x"),))
    assert type(request.priority) is int and type(request.media[0][0]) is int


class Drafts:
    """Gives what it is told, once."""

    def __init__(self, given: Any) -> None:
        self.given, self.seen = given, []

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Any:
        self.seen.append(tokens.tolist())
        given, self.given = self.given, np.zeros(0, np.int32)
        if isinstance(given, Exception):
            raise given
        return given(tokens) if callable(given) else given


def drafted(given: Any, prompt: list[int] | None = None, **options: Any) -> tuple[Engine, Request]:
    geometry = shape(16)
    engine = Engine(geometry, MockExecutor(seed=1), 9 * STATE + 41 * geometry.page_bytes + 200,
                    Policy(token_budget=64, max_running=6, steps_in_flight=0), drafter=Drafts(given), window=4,
                    clock=lambda: 0.0)
    request = Request("a", prompt or tokens(20), 8, **options)
    engine.submit(request)
    return engine, request


@pytest.mark.parametrize("given, error", [
    *((wrong, InvalidRequest) for wrong in (
        [VOCAB], [-1], [2**40], [0.5], "text", [[1, 2]], None, np.array([True]), [1, VOCAB])),
    (KeyError("drafts"), KeyError), (lambda tokens: tokens.fill(0), ValueError),
])
def test_drafts_that_are_no_tokens_cancel_the_plan_and_say_so(given: Any, error: type[Exception]) -> None:
    engine, request = drafted(given)
    got = engine.step()
    before = engine.stats()
    with pytest.raises(error, match="abort the request" if error is InvalidRequest else None):
        engine.step()
    assert core_of(engine).open is None
    after = engine.stats()
    assert {k: v for k, v in after.items() if k != "arena"} == {k: v for k, v in before.items() if k != "arena"}
    engine.check()
    assert said(got + finish(engine)["a"]) == truth(engine, request)


def test_a_medium_copied_from_the_prompt_is_no_draft() -> None:
    engine, request = drafted(lambda tokens: [3, *tokens[2:5]], media=[(2, 4, b"cat")])
    engine.step()
    plan = engine.plan()
    assert plan is not None and plan.tokens.tolist() == [3]
    engine.launch(plan)
    drain(engine)
    finish(engine)


# -- flights


def test_flights_are_the_launched_steps_in_order_also_after_a_failed_launch() -> None:
    faults = Faults()
    geometry = shape(16)
    engine = Engine(geometry, MockExecutor(seed=1, faults=faults), 9 * STATE + 41 * geometry.page_bytes,
                    Policy(token_budget=64, max_running=6, steps_in_flight=3), clock=lambda: 0.0)
    engine.submit(Request("a", tokens(20), 30))
    launched = []
    for _ in range(3):
        plan = engine.plan()
        assert plan is not None
        launched.append(engine.launch(plan))
    assert engine.flights == tuple(launched)
    faults.script[4] = Fault(4, at="launch")
    plan = engine.plan()
    assert plan is not None and engine.launch(plan) is None
    assert engine.flights == ()
    assert said(engine.take_outputs() + finish(engine)["a"]) == truth(engine, Request("a", tokens(20), 30))
