"""The count of requests that speculate at once: found by the scheduler, and what arithmetic says."""

from __future__ import annotations

import pytest

from bench.concurrency import main, most, state_a_token
from k3mem.shape import Shape

WINDOW = 8


@pytest.mark.parametrize("context", [0, 4096])
def test_the_scheduler_admits_what_arithmetic_says(context: int) -> None:
    shape, capacity = Shape.kimi_k3(tp=8, window=WINDOW), 8 * 10**9
    for one in (shape, state_a_token(shape, WINDOW)):
        # a request: its state, its records, the pages of its context and of the window behind it; beside one sink each
        pages = -(-(max(1, context) + WINDOW) // shape.page_tokens)
        own = one.state_bytes + WINDOW * one.record_bytes + pages * one.page_bytes
        want = (capacity - one.state_bytes - one.page_bytes) // own
        assert most(one, WINDOW, capacity, context).running in (want - 1, want)


def test_replay_runs_six_times_as_many_without_context() -> None:
    shape, capacity = Shape.kimi_k3(tp=8, window=WINDOW), 30 * 10**9
    ours, theirs = most(shape, WINDOW, capacity, 0), most(state_a_token(shape, WINDOW), WINDOW, capacity, 0)
    assert ours.running >= 6 * theirs.running > 0


def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gb", "4"]) == 0
    assert "a state a token" in capsys.readouterr().out
