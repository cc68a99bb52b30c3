"""Timed replay through the real scheduler: nothing lost, overlap, and fast-forward that changes no figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3mem.executors.cost import nominal
from k3mem.replay.metrics import session_of
from k3mem.replay.options import BadOption, ReplayOptions
from k3mem.replay.report import build
from k3mem.replay.synth import synth
from k3mem.replay.timed import TimedReplay, run_timed
from k3mem.replay.trace import Trace, load
from k3mem.shape import Shape


def quiet(done: int, total: int) -> None:
    """No progress."""


def timed(trace: Trace, **options: Any) -> dict[str, Any]:
    return build(run_timed(trace, Shape.kimi_k3(tp=8), ReplayOptions(mode="timed", **options), quiet))


@pytest.fixture(scope="module")
def agents() -> Trace:
    return synth(5, 12, scale=0.1)


@pytest.mark.parametrize(("loop", "pool", "split"), [
    ("closed", 1.0, None), ("closed", 2.5, None), ("open", 1.2, None), ("closed", 2.5, 0.5),
])
@pytest.mark.parametrize("policy", ["lru", "learned"])
def test_fast_forward_changes_no_figure(agents: Trace, loop: str, pool: float, split: float | None, policy: str
                                        ) -> None:
    options: dict[str, Any] = {"loop": loop, "concurrency": 12, "pool_bytes": int(pool * 1e9), "split": split,
                               "gap_cap": 2.0, "limit": 300, "policy": policy}
    fast, slow = timed(agents, **options), timed(agents, **options, fast_forward=False)
    fast.pop("wall_seconds"), slow.pop("wall_seconds")
    assert fast == slow


@pytest.mark.parametrize(("admission", "bound", "loop"), [
    ("on", 1800.0, "closed"), ("on", 20.0, "closed"), ("auto", 60.0, "closed"), ("on", 60.0, "open"),
])
def test_fast_forward_changes_no_figure_while_sessions_are_held(agents: Trace, admission: str, bound: float,
                                                                loop: str) -> None:
    options: dict[str, Any] = {"loop": loop, "concurrency": 12, "pool_bytes": int(1e9), "limit": 400,
                               "admission": admission, "admission_bound": bound}
    fast, slow = timed(agents, **options), timed(agents, **options, fast_forward=False)
    fast.pop("wall_seconds"), slow.pop("wall_seconds")
    assert fast == slow
    assert fast["admission"]["held"] > 0 or admission == "auto"


def test_sessions_are_let_in_when_they_fit_and_nobody_waits_for_longer_than_the_bound(agents: Trace) -> None:
    options: dict[str, Any] = {"loop": "closed", "concurrency": 12, "pool_bytes": int(2e9)}
    off, on = timed(agents, **options), timed(agents, **options, admission="on", admission_bound=100.0)
    assert on["recomputed_tokens"] < off["recomputed_tokens"]
    assert on["requests"] == off["requests"] == len(agents.turns)
    held = on["admission"]
    assert held["wait"]["count"] == held["held"] > 0 and held["bound"] == 100.0
    step = 2.0  # seconds; no step of this model and pool is longer
    assert held["wait"]["max"] == held["longest_wait"] <= 100.0 + step
    assert off["admission"]["held"] == 0 and off["admission"]["bound"] is None


def test_sessions_that_are_held_save_most_of_the_recomputation_of_real_agents(real: Callable[[str], Path]) -> None:
    trace = load([real("weka_cc_a.jsonl.gz")])
    options: dict[str, Any] = {"loop": "closed", "concurrency": 32, "pool_bytes": int(40e9), "limit": 3000}
    off = timed(trace, **options, policy="lru")
    on = timed(trace, **options, policy="lru", admission="on")
    assert on["recomputed_tokens"] <= 0.6 * off["recomputed_tokens"]
    assert on["output_tokens_per_second"] >= off["output_tokens_per_second"]


def test_sessions_complete_sub_agents_included(agents: Trace) -> None:
    replay = TimedReplay(agents, Shape.kimi_k3(tp=8), ReplayOptions(mode="timed", concurrency=3, pool_bytes=0,
                                                                    admission="on"))
    ended: list[object] = []
    end = replay.engine.end_session
    replay.engine.end_session = lambda session: (ended.append(session), end(session))  # type: ignore[assignment]
    replay.run(quiet)
    assert replay.sessions is not None
    assert len(replay.sessions.took) == len({turn.session for turn in agents.turns})
    assert sorted(map(str, ended)) == sorted({session_of(turn)[0] for turn in agents.turns})
    sessions = replay.engine.scheduler.core.sessions
    assert sessions is not None and sessions.stats()["active"] == 0, "all have ended"


def test_under_pressure_every_request_finishes_and_nothing_leaks() -> None:
    trace = synth(5, 12, scale=0.1)
    for turn in trace.turns:
        turn.output = 1500  # outputs are not reserved for: retraction pays for them
    replay = TimedReplay(trace, Shape.kimi_k3(tp=8), ReplayOptions(
        mode="timed", loop="closed", concurrency=12, pool_bytes=int(0.8e9), gap_cap=0.0, limit=300))
    replay.run(quiet)
    engine = replay.engine
    engine.check()
    core, metrics = engine.scheduler.core, engine.scheduler.core.metrics
    assert replay.times.finished == metrics.requests == 300
    assert metrics.rejected == 0
    assert metrics.retractions > 0
    assert metrics.move_count > 0
    assert metrics.overlapped / metrics.steps > 0.9
    assert metrics.hit_tokens + sum(metrics.causes.values()) == metrics.input_tokens
    engine.flush()
    usage = core.cache.arena.usage()
    assert (usage.live_pages, usage.live_states, core.lanes.running, len(core.jobs)) == (0, 0, 0, 0)


def test_a_turn_starts_after_the_answer_before_it(agents: Trace) -> None:
    """Closed loop, one session at a time, no thinking: latencies add up to the whole virtual time."""
    report = timed(agents, loop="closed", concurrency=1, gap_cap=0.0, pool_bytes=0, limit=40)
    assert report["peak_running"] <= 4, "a session and its sub-agents"
    assert report["ttft"]["count"] == report["requests"] == 40


def test_an_open_loop_needs_arrivals() -> None:
    trace = synth(0, 2, scale=0.02)
    for turn in trace.turns:
        turn.arrival = None
    trace.has_arrivals = False
    with pytest.raises(BadOption, match="closed"):
        timed(trace, loop="open")


def test_a_request_that_can_never_fit_is_counted_and_its_stream_goes_on(agents: Trace) -> None:
    report = timed(agents, loop="closed", concurrency=4, pool_bytes=int(0.45e9), gap_cap=0.0)
    assert report["rejected"] > 0
    assert report["requests"] + report["rejected"] == len(agents.turns)


def test_the_cost_model_is_named_in_the_report(agents: Trace) -> None:
    report = timed(agents, limit=4, pool_bytes=0)
    assert report["cost"] == {"name": nominal().name, "hash": nominal().hash}


def test_a_real_agent_trace_under_pressure(real: Callable[[str], Path]) -> None:
    trace = load([real("weka_cc_a_c32.arrivals.jsonl.gz")], limit=1500)
    report = timed(trace, loop="closed", concurrency=32, pool_bytes=40 * 10**9)
    assert report["requests"] == 1500
    assert report["rejected"] == 0
    assert report["overlapped_share"] > 0.9
    assert report["moves"]["count"] > 0
