"""Arrival-order replay: the rule itself, the account of misses, and the figures on real traces."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from k3mem.policy import Policy
from k3mem.radix import Lru
from k3mem.replay.arrival import ArrivalReplay, Ends, run_arrival
from k3mem.replay.hints import Hints
from k3mem.replay.options import BadOption, ReplayOptions
from k3mem.replay.report import build
from k3mem.replay.synth import synth
from k3mem.replay.trace import Trace, load
from k3mem.shape import Shape

BLOCK = 64
SMALL = Shape("small", state_bytes=6400, token_bytes=1, page_tokens=64)


def prompt(*blocks: int, tail: int = 1) -> np.ndarray:  # type: ignore[type-arg]
    """Whole blocks by id, and `tail` tokens after them."""
    return np.concatenate([np.repeat(np.array(blocks, np.int32), BLOCK), np.full(tail, 10**6, np.int32)])


def replay(states: int = 100, pages: int = 1000) -> ArrivalReplay:
    capacity = (states + 1) * SMALL.state_bytes + (pages + 1) * SMALL.page_bytes
    policy = Policy(eviction=Lru(superseded_first=()), ghost_tokens=None)
    return ArrivalReplay(SMALL, policy, math.ceil(capacity / 128) * 128, BLOCK)


def test_the_last_whole_block_below_the_last_token_is_kept() -> None:
    r = replay()
    assert r.request(prompt(1, 2, 3)) == 0
    assert r.request(prompt(1, 2, 3)) == 3 * BLOCK
    assert r.request(prompt(1, 2, 3, tail=0)) == 0, "its last token must be computed, and nothing stands at 128"
    assert r.request(prompt(1, 2, 3, tail=0)) == 2 * BLOCK


def test_a_fork_is_kept_where_a_prompt_leaves_known_nodes_even_evicted_ones() -> None:
    r = replay()
    r.request(prompt(1, 2, 3))
    assert r.request(prompt(1, 2, 4)) == 0
    assert r.request(prompt(1, 2, 5)) == 2 * BLOCK
    r.cache.give_back(r.cache.tree.drop(0))
    assert r.request(prompt(1, 2, 6)) == 0
    assert r.request(prompt(1, 2, 7)) == 2 * BLOCK, "ghosts remember the fork"


def test_only_the_consumed_checkpoint_is_touched() -> None:
    r = replay(states=4, pages=6)
    r.request(prompt(1, 2))
    r.request(prompt(1, 2, 3))
    r.request(prompt(9))
    r.request(prompt(1, 2, 3, 4))  # consumes the checkpoint at 3, and passes the one at 2
    r.request(prompt(8))  # no room for a fifth: the least recent is the one at 2
    assert r.cache.tree.counters().checkpoints == 4
    assert r.request(prompt(9)) == BLOCK
    assert r.cache.match(r.scope, prompt(1, 2), 2 * BLOCK, 1 << 60).depth == 0


def test_the_present_path_is_not_evicted_and_what_does_not_fit_is_skipped() -> None:
    r = replay(states=1, pages=4)
    r.request(prompt(1, 2))
    assert r.request(prompt(1, 2, 3)) == 2 * BLOCK
    assert r.skipped == 1
    assert r.request(prompt(1, 2, 3)) == 2 * BLOCK


def test_causes_and_hits_sum_to_the_input() -> None:
    r = replay(states=5, pages=40)
    rng = np.random.default_rng(0)
    for _ in range(400):
        blocks = [int(b) + 10 * i for i, b in enumerate(rng.integers(0, 3, rng.integers(1, 8)))]
        r.request(prompt(*blocks, tail=int(rng.integers(0, BLOCK))), shown=None)
    assert r.hit + sum(r.causes.values()) == r.input
    assert r.hit > 0
    r.cache.check()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(BadOption, match="gdsf"):
        run_arrival(synth(0, 1, scale=0.01), SMALL, ReplayOptions(policy="gdsf"), lambda done, total: None)


def rate(trace: Trace, pool_gb: float, split: float | None = None, policy: str = "lru", hints: tuple[str, ...] = ()
         ) -> float:
    options = ReplayOptions(pool_bytes=int(pool_gb * 1e9), split=split, policy=policy, hints=hints)
    return float(build(run_arrival(trace, Shape.kimi_k3(tp=8), options, lambda done, total: None))["hit_rate"])


def test_one_arena_beats_every_fixed_split_when_the_mix_flips() -> None:
    """First many short sessions, then few long ones: no share of a fixed split is right for both halves."""
    trace = synth(0, 60, mix="flip")
    one = rate(trace, 20)
    best = max(rate(trace, 20, split) for split in (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5))
    assert one > best + 0.015


SCRIPT = """
import sys
from k3mem.native import lib
from k3mem.replay.arrival import run_arrival
from k3mem.replay.options import ReplayOptions
from k3mem.replay.synth import synth
from k3mem.shape import Shape
lib.k3_mutant = int(sys.argv[1])
options = ReplayOptions(pool_bytes=4 * 10**9, policy="lru")
stats = run_arrival(synth(3, 40, scale=0.3), Shape.kimi_k3(tp=8), options, lambda *a: None)
print(stats["hit_tokens"], stats["input_tokens"])
"""


def test_a_planted_change_in_the_eviction_order_moves_the_figures() -> None:
    """The figures come from the C core's own eviction: with the most recent evicted first they fall."""
    rates = []
    for mutant in ("0", "1"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, mutant], env={**os.environ, "K3MEM_NATIVE": "mutants"},
                              capture_output=True, text=True, check=False)
        if "_core_mutants" in done.stderr:
            pytest.skip("the build with planted bugs is absent: K3MEM_MUTANTS=1 pip install -e .")
        assert done.returncode == 0, done.stderr
        hit, total = map(int, done.stdout.split())
        rates.append(hit / total)
    assert rates[1] < rates[0] - 0.02


FIGURES = [
    ("weka_cc_a_c32.arrivals.jsonl.gz", 40, 49.6), ("weka_cc_a_c32.arrivals.jsonl.gz", 80, 80.2),
    ("weka_cc_a_c32.arrivals.jsonl.gz", 160, 95.4), ("weka_cc_a_c32.arrivals.jsonl.gz", 0, 96.1),
    ("weka_cc_a_c16.arrivals.jsonl.gz", 40, 76.5), ("weka_cc_a_c16.arrivals.jsonl.gz", 80, 94.2),
    ("mooncake_conversation_trace.jsonl.gz", 40, 5.7), ("mooncake_conversation_trace.jsonl.gz", 80, 10.2),
    ("mooncake_conversation_trace.jsonl.gz", 160, 20.1), ("mooncake_conversation_trace.jsonl.gz", 320, 27.8),
    ("mooncake_conversation_trace.jsonl.gz", 640, 34.4),
]
"""(trace, pool in GB, hit rate in percent) of plain LRU, on which independent implementations agree."""


@pytest.mark.parametrize(("name", "pool", "percent"), FIGURES)
def test_hit_rates_on_real_traces(real: Callable[[str], Path], name: str, pool: int, percent: float) -> None:
    trace = load([real(name)])
    assert 100 * rate(trace, pool) == pytest.approx(percent, abs=0.15)


MUSTS = [
    ("weka_cc_a_c32.arrivals.jsonl.gz", 40, 54.0), ("weka_cc_a_c32.arrivals.jsonl.gz", 80, 81.5),
    ("weka_cc_a_c32.arrivals.jsonl.gz", 160, 95.4), ("weka_cc_a_c16.arrivals.jsonl.gz", 40, 78.0),
    ("weka_cc_a_c16.arrivals.jsonl.gz", 80, 94.4), ("mooncake_conversation_trace.jsonl.gz", 40, 8.0),
    ("mooncake_conversation_trace.jsonl.gz", 80, 11.5), ("mooncake_conversation_trace.jsonl.gz", 160, 21.0),
    ("mooncake_conversation_trace.jsonl.gz", 320, 28.2), ("mooncake_conversation_trace.jsonl.gz", 640, 34.3),
]
"""(trace, pool in GB, least hit rate in percent) of `auto`."""


@pytest.mark.parametrize(("name", "pool", "percent"), MUSTS)
def test_auto_keeps_what_is_worth_keeping(real: Callable[[str], Path], name: str, pool: int, percent: float) -> None:
    assert 100 * rate(load([real(name)]), pool, policy="auto") >= percent


@pytest.mark.parametrize(("mix", "pool"), [("agent", 5), ("agent", 20), ("agent", 160), ("flip", 5)])
def test_auto_never_loses_one_percent_to_lru(mix: Literal["agent", "flip"], pool: int) -> None:
    trace = synth(4, 40, mix=mix)
    assert rate(trace, pool, policy="auto") >= 0.99 * rate(trace, pool)


def test_what_callers_know_is_worth_something() -> None:
    trace = synth(1, 60)
    told = {hints: rate(trace, 20, policy="learned", hints=hints) for hints in ((), ("end",), ("tool",), ("fork",))}
    everything = rate(trace, 20, policy="learned", hints=("end", "tool", "fork"))
    assert everything > told["end",] > told[()]
    assert rate(trace, 20, hints=("end",)) > rate(trace, 20), "lru, too, lets go of what is over"


def test_a_stop_reason_is_not_seen_before_the_answer_has_ended() -> None:
    trace = synth(2, 4, scale=0.2)
    seen: list[tuple[float, float]] = []
    replayed = replay()
    ends = Ends(trace, Hints(trace, trace.turns, ()), replayed)
    replayed.finished = lambda left, ticket, note: seen.append((now, note))  # type: ignore[method-assign]
    for turn in trace.turns:
        assert turn.arrival is not None
        now = turn.arrival
        ends.until(now)
        ends.started(turn, now)
        before = [t for t in trace.turns[: turn.index] if t.arrival is not None]
        due = sum(t.arrival + (t.api or 0) <= now for t in before if t.arrival is not None)
        assert len(seen) <= due or turn.api is None
    assert seen


def test_unknown_hints_are_refused() -> None:
    with pytest.raises(BadOption, match="weather"):
        ReplayOptions(hints=("weather",))
