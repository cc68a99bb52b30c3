"""The shared real traces: counts, and what their own descriptions promise."""

from __future__ import annotations

import numpy as np

from k3mem.replay.convert import convert
from k3mem.replay.trace import load


def test_mooncake_conversation(real, tmp_path):
    trace = load(real("mooncake_conversation_trace.jsonl.gz"))
    assert len(trace.turns) == 12_031 and trace.skipped == 0 and trace.format == "mooncake"
    assert trace.has_arrivals and 3500 < max(turn.arrival for turn in trace.turns) < 3700
    assert sum(turn.output for turn in trace.turns) == 4_122_048
    convert(trace, tmp_path / "again.jsonl", "mooncake")
    back = load(tmp_path / "again.jsonl", limit=1000)
    for turn, again in zip(trace.turns, back.turns, strict=False):
        assert turn.arrival == again.arrival and np.array_equal(turn.prompt(), again.prompt())


def test_weka_and_its_arrival_layout_are_the_same_sessions(real):
    arrivals, weka = (load(real(name)) for name in ("weka_cc_a_c32.arrivals.jsonl.gz", "weka_cc_a.jsonl.gz"))
    assert arrivals.format == "arrivals" and weka.format == "weka"
    for trace in (arrivals, weka):
        summary = trace.summary()
        assert (summary["turns"], summary["sessions"], summary["streams"]) == (25_579, 355, 376)
        assert round(summary["input_tokens"] / 1e9, 2) == 3.07
    assert arrivals.has_arrivals and not weka.has_arrivals
    assert arrivals.tokens == weka.tokens
    other = {turn.key: turn for turn in weka.turns}
    there = np.full(arrivals.tokens, -1, np.int32)
    for turn in arrivals.turns:
        twin = other[turn.key]
        assert (turn.input, turn.output, turn.shown, turn.keep) == (twin.input, twin.output, twin.shown, twin.keep)
        assert (turn.parent is None) == (twin.parent is None)
        if turn.parent is not None:
            assert arrivals.turns[turn.parent].key == weka.turns[twin.parent].key
        ours, theirs = turn.blocks[turn.keep :], twin.blocks[twin.keep :]
        known = there[ours] >= 0
        assert np.array_equal(there[ours][known], theirs[known])
        there[ours] = theirs
    used = there[there >= 0]
    assert len(np.unique(used)) == len(used)


def test_arrivals_round_trip(real, tmp_path):
    trace = load(real("weka_cc_a_c16.arrivals.jsonl.gz"), limit=3000)
    convert(trace, tmp_path / "again.jsonl", "arrivals")
    back = load(tmp_path / "again.jsonl")
    for turn, again in zip(trace.turns, back.turns, strict=True):
        assert (turn.arrival, turn.think, turn.api, turn.key) == (again.arrival, again.think, again.api, again.key)
        assert np.array_equal(turn.blocks, again.blocks) and turn.shown == again.shown
    for i in range(0, 3000, 97):
        assert np.array_equal(trace.turns[i].prompt(), back.turns[i].prompt())
        assert np.array_equal(trace.turns[i].reply(), back.turns[i].reply())


def test_swe_mini_block_ids(real):
    trace = load(real("swe_mini_k3trace_b64.jsonl.gz"))
    assert (len(trace.turns), len(trace.streams), trace.block) == (20_163, 500, 64)
    assert all(turn.keep == len(trace.turns[i].blocks) for s in trace.streams.values()
               for i, turn in zip(s, (trace.turns[j] for j in s[1:]), strict=False))  # fmt: skip


def test_swe_mini_token_ids(real):
    trace = load(real("swe_mini_a_o200k.jsonl.gz"))
    assert (len(trace.turns), len(trace.streams), trace.format, trace.block) == (4_949, 125, "messages", 1)
    for stream in list(trace.streams.values())[:10]:
        for i, j in zip(stream, stream[1:], strict=False):
            one, two = trace.turns[i], trace.turns[j]
            whole = np.concatenate((one.prompt(), one.reply()))
            assert np.array_equal(two.prompt()[: len(whole)], whole)


def test_tracelab_samples(real):
    for name in ("sanitized_round_trace.jsonl", "derived_round_trace.jsonl"):
        trace = load(real(name))
        assert (trace.format, len(trace.turns), len(trace.streams)) == ("tracelab", 19, 2)
