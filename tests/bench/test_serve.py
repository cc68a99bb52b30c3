"""Whole workloads through the engine, and through the cache alone."""

from __future__ import annotations

import numpy as np
import pytest

from bench import shared
from bench.direct import Direct
from bench.serve import K3, same_bytes, serve
from bench.shared import Pair
from k3mem import Policy


def turns(sessions: int, count: int) -> list[Pair]:
    """Sessions that take turns; each prompt is all before it and 100 new tokens."""
    rng = np.random.default_rng(0)
    past = [rng.integers(0, 1000, 200, np.int32) for _ in range(sessions)]
    out = []
    for _ in range(count):
        for s in range(sessions):
            prompt = np.concatenate([past[s], rng.integers(0, 1000, 100, np.int32)])
            answer = rng.integers(0, 1000, 50, np.int32)
            out.append((prompt, answer))
            past[s] = np.concatenate([prompt, answer])
    return out


def unavoidable(pairs: list[Pair], sessions: int) -> int:
    """Tokens that no cache could have: first prompts, the 100 new ones of each later turn, and the last token of an
    answer, which was never absorbed."""
    return sum(len(p) for p, _ in pairs[:sessions]) + 101 * (len(pairs) - sessions)


def test_with_room_for_all_only_new_tokens_are_computed() -> None:
    pairs = turns(3, 5)
    done = serve(pairs, 64 << 30, 1)
    assert done.requests == len(pairs)
    assert done.total_tokens - done.hit_tokens == unavoidable(pairs, 3)


def test_the_cache_alone_hits_as_the_engine_does() -> None:
    pairs = turns(3, 5)
    cost = Direct(K3, Policy(), 64 << 30).run(pairs, 1)
    assert cost.total_tokens - cost.hit_tokens == unavoidable(pairs, 3)
    assert len(cost.request) == len(cost.match) == len(pairs)


@pytest.mark.parametrize("running", [1, 4])
def test_outputs_are_the_scripts_and_no_more_run_than_asked(running: int) -> None:
    pairs = turns(6, 2)
    done = serve(pairs, 64 << 30, running)
    assert done.stats["output_tokens"] == sum(len(output) for _, output in pairs)
    assert done.stats["peak_running"] == running


@pytest.mark.parametrize("running", [1, 3])
def test_a_small_cache_ends_consistent(running: int) -> None:
    pairs = turns(8, 4)
    direct = Direct(K3, Policy(), same_bytes(10_000, 8))
    direct.run(pairs, running)
    direct.cache.check()
    count = direct.cache.tree.counters()
    assert count.locks == 0
    assert direct.cache.arena.usage().live_states == count.checkpoints


def test_a_prompt_that_never_fits_is_said() -> None:
    with pytest.raises(MemoryError, match="does not fit"):
        Direct(K3, Policy(), same_bytes(128, 2)).run([(np.zeros(9000, np.int32), np.zeros(1, np.int32))], 1)


def test_same_bytes_are_net_of_the_sinks() -> None:
    assert same_bytes(640, 2) == 11 * K3.page_bytes + 3 * K3.state_bytes


def test_workloads_are_the_shared_ones() -> None:
    try:
        pairs = shared.make_agentic()
    except shared.Absent as e:
        pytest.skip(str(e))
    assert (len(pairs), sum(len(p) for p, _ in pairs)) == (512, 5_807_722)
