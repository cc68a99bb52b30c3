"""What a caller says of a session's next use, through the engine."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem import Engine, Policy, Request, Shape
from k3mem.executors.mock import MockExecutor
from k3mem.radix import Auto, EvictionPolicy, Learned, Lru, Note

SHAPE = Shape("small", state_bytes=640, token_bytes=1, page_tokens=64)


def engine(policy: EvictionPolicy, states: int = 12) -> Engine:
    capacity = (states + 4) * SHAPE.state_bytes + 40 * SHAPE.page_bytes
    return Engine(SHAPE, MockExecutor(), capacity, Policy(eviction=policy), clock=lambda: 1.0)


def serve(e: Engine, session: str, first: int, tokens: int = 130) -> None:
    prompt = np.arange(first, first + tokens, dtype=np.int32) % 1000
    e.submit(Request(session, prompt, 2, session=session))
    e.run()


def hit(e: Engine, first: int, tokens: int = 130) -> int:
    return e.probe(np.arange(first, first + tokens, dtype=np.int32) % 1000).hit


def note_of(e: Engine, session: str) -> int:
    place = e.scheduler.core.pins.newest(session)
    assert place is not None
    return e.scheduler.core.cache.tree.info(place.node).note


@pytest.mark.parametrize("policy", [Lru(), Learned(), Auto()], ids=lambda p: type(p).__name__)
def test_an_ended_session_goes_before_older_ones(policy: EvictionPolicy) -> None:
    e = engine(policy)
    for i, session in enumerate("abcd"):
        serve(e, session, 200 * i)
    assert e.hint("c", over=True)
    before = [hit(e, 200 * i) > 0 for i in range(4)]
    serve(e, "e", 800)
    while hit(e, 400):
        serve(e, "e", 800 + 7 * len(e.events()), 64 * 3 + 2)
    assert before == [True] * 4
    assert hit(e, 0) and hit(e, 200) and hit(e, 600)
    e.check()


def test_a_hint_is_kept_with_the_sessions_newest_checkpoint() -> None:
    e = engine(Learned())
    serve(e, "a", 0)
    assert note_of(e, "a") == Note.UNKNOWN
    assert e.hint("a", stop="tool") and note_of(e, "a") == Note.TOOL
    assert e.hint("a", stop="end") and note_of(e, "a") == Note.END
    assert e.hint("a", stop="tool", returns_in=8.0) and note_of(e, "a") == Note.DUE + 3
    assert not e.hint("nobody", over=True)
    e.flush()
    assert not e.hint("a", over=True)


@pytest.mark.parametrize("wrong", [{"stop": "bored"}, {"returns_in": -1.0}, {"returns_in": float("nan")}])
def test_a_wrong_hint_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="hint"):
        engine(Lru()).hint("a", **wrong)  # type: ignore[arg-type]
