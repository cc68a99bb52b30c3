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


def serve(e: Engine, session: str, first: int, tokens: int = 130) -> list[int]:
    """One turn of a session; all its tokens, and one more: what its next turn starts with."""
    prompt = np.arange(first, first + tokens, dtype=np.int32) % 1000
    e.submit(Request(session, prompt, 2, session=session))
    answer = [token for out in e.run() for token in out.tokens]
    return [*prompt.tolist(), *answer, 1]


def note_of(e: Engine, session: str) -> int:
    place = e.scheduler.core.pins.newest(session)
    assert place is not None
    return e.scheduler.core.cache.tree.info(place.node).note


@pytest.mark.parametrize("policy", [Lru(), Learned(), Auto()], ids=lambda p: type(p).__name__)
def test_an_ended_session_goes_before_older_ones(policy: EvictionPolicy) -> None:
    e = engine(policy)
    next_turns = {session: serve(e, session, 200 * i) for i, session in enumerate("abcd")}

    def kept() -> set[str]:
        return {session for session, prompt in next_turns.items() if e.probe(prompt).hit > 128}

    assert kept() == set("abcd")
    assert e.hint("c", over=True)
    for i in range(20):
        if "c" not in kept():
            break
        serve(e, "e", 800 + 7 * i)
    assert kept() == set("abd")
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
