"""Virtual streams: order on a stream and events between streams hold; everything else is chance."""

from __future__ import annotations

from random import Random

import pytest

from k3mem.executors.mock.streams import Command, Streams


def recorded(seed: int) -> list[str]:
    """Two streams of three commands; the second one's last waits for the first one's second."""
    streams, out = Streams(Random(seed), shuffle=True), []
    for number in range(3):
        for name in ("a", "b"):
            waits = (7,) if (name, number) == ("b", 2) else ()
            signals = 7 if (name, number) == ("a", 1) else -1
            text = f"{name}{number}"
            streams.put(name, Command(lambda text=text: out.append(text), waits, signals))  # type: ignore[misc]
    streams.drain()
    return out


def test_stream_order_and_events_hold_in_every_interleaving() -> None:
    seen = {tuple(recorded(seed)) for seed in range(200)}
    for order in seen:
        assert [x for x in order if x[0] == "a"] == ["a0", "a1", "a2"]
        assert [x for x in order if x[0] == "b"] == ["b0", "b1", "b2"]
        assert order.index("a1") < order.index("b2")
    assert len(seen) > 5


def test_a_launch_runs_nothing_something_or_everything() -> None:
    ran = set()
    for seed in range(50):
        streams = Streams(Random(seed), shuffle=True)
        for _ in range(5):
            streams.put("a", Command(lambda: None))
        streams.some()
        ran.add(5 - streams.waiting)
    assert ran >= {0, 5} and len(ran) > 2


def test_without_shuffling_everything_runs_at_once() -> None:
    streams, out = Streams(Random(0), shuffle=False), []
    streams.put("a", Command(lambda: out.append(1)))
    streams.some()
    assert out == [1] and streams.waiting == 0


def test_until_runs_no_further_than_it_must() -> None:
    streams, out = Streams(Random(0), shuffle=True), []
    streams.put("a", Command(lambda: out.append(1), signals=1))
    streams.put("a", Command(lambda: out.append(2)))
    streams.until(1)
    assert out == [1]


def test_an_event_that_never_happens_is_an_error() -> None:
    streams = Streams(Random(0), shuffle=True)
    streams.put("a", Command(lambda: None, waits=(9,)))
    with pytest.raises(RuntimeError, match="stuck"):
        streams.until(9)
