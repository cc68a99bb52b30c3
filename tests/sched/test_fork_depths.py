"""Interior checkpoints where earlier prompts left a shared document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import k3mem
from k3mem.executors.mock import MockExecutor
from k3mem.radix import Lru
from k3mem.replay.options import ReplayOptions
from k3mem.replay.report import build
from k3mem.replay.synth import Mix, Readers, synth
from k3mem.replay.timed import run_timed
from k3mem.shape import Shape

SHAPE = Shape("small", state_bytes=640, token_bytes=8, page_tokens=64, vocab_size=1000)
DOCUMENT = np.random.default_rng(0).integers(0, 1000, 4096).astype(np.int32)


def engine(**policy: Any) -> k3mem.Engine:
    chosen = k3mem.Policy(eviction=Lru(), chunk_ends=False, answer_ends=False, max_running=4, **policy)
    return k3mem.Engine(SHAPE, MockExecutor(), 1 << 20, chosen)


def read(e: k3mem.Engine, depth: int, question: int) -> int:
    """A reader of the document's head; what it hit."""
    prompt = np.concatenate([DOCUMENT[:depth], np.full(100, question, np.int32)])
    hit = e.probe(prompt).hit
    e.submit(k3mem.Request(question, prompt, 2))
    e.run()
    e.check()
    return hit


def forget_checkpoints(e: k3mem.Engine) -> None:
    """All bytes go; what was seen is remembered."""
    e.resize(1 << 20)


def checkpoints(e: k3mem.Engine) -> set[int]:
    tree = e.scheduler.core.cache.tree
    walk = tree.walk()
    return {int(depth) for depth, state in zip(walk.depth, walk.state, strict=True) if state >= 0}


PLACES = (512, 1024, 1536, 2048, 2560)


def seen(**policy: Any) -> k3mem.Engine:
    """Readers came to each place, most of them to 1536 and 2048; then everything was lost."""
    e = engine(**policy)
    question = 0
    for place, readers in zip(PLACES, (1, 1, 6, 6, 1), strict=True):
        for _ in range(readers):
            question += 1
            read(e, place, question)
    read(e, 3072, 99)
    forget_checkpoints(e)
    return e


def test_a_prefill_leaves_checkpoints_where_most_readers_left() -> None:
    e = seen(fork_depths=2)
    assert read(e, 3072, 100) == 0
    assert {1536, 2048} <= checkpoints(e) and not {512, 1024, 2560} & checkpoints(e)
    assert read(e, 2048, 101) == 2048
    assert read(e, 1536, 102) == 1536
    assert read(e, 2560, 103) == 2048


def test_they_reach_to_where_the_prompt_itself_leaves_and_no_further() -> None:
    e = seen(fork_depths=8)
    assert read(e, 1600, 100) == 0
    assert {512, 1024, 1536, 1600} <= checkpoints(e) and not {2048, 2560} & checkpoints(e)


def test_only_what_is_computed_anyway_is_captured() -> None:
    e = seen(fork_depths=8)
    read(e, 1600, 100)
    before = checkpoints(e)
    assert read(e, 3072, 101) == 1600
    assert {2048, 2560} <= checkpoints(e) - before


def test_without_the_option_there_are_none() -> None:
    e = seen()
    read(e, 3072, 100)
    assert not set(PLACES) & checkpoints(e)


def test_intervals_are_for_what_nobody_has_read() -> None:
    e = seen(fork_depths=1, interval=640)
    prompt = np.concatenate([DOCUMENT[:3072], np.arange(1400, dtype=np.int32) % 1000])
    e.submit(k3mem.Request("x", prompt, 2))
    e.run()
    found = checkpoints(e)
    assert not {640, 1280, 1920, 2560} & found, "along the document the one place"
    assert {3200, 3840, 4416} <= found, "multiples of 640 beyond it, and the prompt's end"
    assert len({1536, 2048} & found) == 1


@pytest.mark.parametrize(("value", "reason"), [
    (-1, "fork_depths is too small: -1"), (1.5, "must be an integer or None"),
])
def test_policy_checks_it(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        k3mem.Policy(fork_depths=value)


def test_on_shared_documents_they_beat_intervals_with_more_states() -> None:
    trace = synth(2, 150, scale=0.25, mix="document")

    def run(**options: Any) -> tuple[int, int]:
        """(tokens recomputed, checkpoints inside prompts)."""
        report = build(run_timed(trace, Shape.kimi_k3(tp=8), ReplayOptions(
            mode="timed", concurrency=2, pool_bytes=3 * 10**9, gap_cap=0.0, policy="lru", **options), lambda *_: None))
        made = report["checkpoints"]["created"]
        return report["recomputed_tokens"], made.get("branch", 0) + made.get("interval", 0)

    none, depths = run(), run(fork_depths=8)
    for interval in (2048, 4096):
        some = run(interval=interval)
        assert depths[0] < 0.9 * some[0] and depths[1] <= some[1]
    assert depths[0] < 0.9 * none[0]


def test_synthetic_readers_share_documents_to_common_places() -> None:
    mix: Mix = "document"
    trace = synth(3, 120, scale=0.1, mix=mix)
    again = synth(3, 120, scale=0.1, mix=mix)
    assert [t.prompt().tobytes() for t in trace.turns] == [t.prompt().tobytes() for t in again.turns]
    assert len(trace.turns) == 120 and trace.has_sessions and trace.has_arrivals
    documents = {int(turn.blocks[0]) for turn in trace.turns}
    assert len(documents) == 120 // Readers().a_document
    with pytest.raises(ValueError, match="unknown mix 'x': agent, flip, document"):
        synth(1, 1, mix="x")  # type: ignore[arg-type]
