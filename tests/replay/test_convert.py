"""Traces written and read back, and synthetic ones."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.replay.convert import convert, runs
from k3mem.replay.synth import synth, write_synth
from k3mem.replay.trace import Trace, load


def assert_equal(a: Trace, b: Trace, facts: bool = True) -> None:
    assert len(a.turns) == len(b.turns)
    for x, y in zip(a.turns, b.turns, strict=True):
        assert np.array_equal(x.prompt(), y.prompt()) and np.array_equal(x.reply(), y.reply())
        assert x.arrival == y.arrival
        if facts:
            assert (x.session, x.stream, x.think, x.stop, x.n) == (y.session, y.stream, y.think, y.stop, y.n)


@pytest.fixture(scope="module")
def small() -> Trace:
    return synth(3, 6, scale=0.004, block=8)


def test_arrivals_is_an_exact_round_trip(small, tmp_path):
    convert(small, tmp_path / "x.jsonl.gz", "arrivals")
    back = load(tmp_path / "x.jsonl.gz")
    assert_equal(small, back)
    assert [turn.parent for turn in back.turns] == [turn.parent for turn in small.turns]
    assert any(turn.parent is not None for turn in back.turns)
    assert back.streams == small.streams and back.block == 8


def test_tokens_is_an_exact_round_trip(small, tmp_path):
    convert(small, tmp_path / "x.jsonl", "tokens")
    back = load(tmp_path / "x.jsonl")
    assert_equal(small, back)
    assert back.block == 1 and list(back.streams.values()) == list(small.streams.values())


def test_mooncake_to_every_format_and_back(write, tmp_path):
    rows = [(600, [7, 8]), (512, [7]), (5, [3]), (600, [7, 8]), (1024, [7, 9])]
    path = write("m.jsonl", *[
        {"timestamp": 1234 * i, "input_length": n, "output_length": 2, "hash_ids": ids}
        for i, (n, ids) in enumerate(rows)
    ])  # fmt: skip
    trace = load(path)
    for format in ("mooncake", "arrivals", "tokens"):
        convert(trace, tmp_path / format, format)
        back = load(tmp_path / format)
        assert_equal(trace, back, facts=False)
        assert not back.has_sessions
    assert load(tmp_path / "mooncake").format == "mooncake"


def test_mooncake_of_a_smaller_block_keeps_what_is_shared(small, tmp_path):
    convert(small, tmp_path / "x.jsonl", "mooncake", block=8)
    back = load(tmp_path / "x.jsonl", block=8)
    for i in range(1, len(small.turns), 7):
        a, b = small.turns[i - 1].prompt(), small.turns[i].prompt()
        c, d = back.turns[i - 1].prompt(), back.turns[i].prompt()
        assert [turn.arrival for turn in back.turns] == [turn.arrival for turn in small.turns]
        assert _shared(a, b) // 8 == _shared(c, d) // 8


def test_forks_of_forks_keep_their_parents(write, tmp_path):
    def chat(name: int, parent: int, ids: list[int]) -> dict:
        return {"chat_id": name, "parent_chat_id": parent, "timestamp": name, "input_length": 16 * len(ids) - 3,
                "output_length": 3, "hash_ids": ids}  # fmt: skip

    trace = load(write("b.jsonl", chat(1, -1, [1]), chat(2, 1, [2, 3]), chat(3, 1, [2, 4]), chat(4, 3, [2, 5, 6]),
                       chat(5, 3, [2, 5, 7]), chat(6, 5, [2, 5, 8, 9])))
    convert(trace, tmp_path / "x.jsonl", "arrivals")
    back = load(tmp_path / "x.jsonl")
    assert_equal(trace, back)
    assert [turn.parent for turn in back.turns] == [turn.parent for turn in trace.turns] == [None, None, 0, 0, 2, 2]


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def test_what_cannot_be_written_is_refused(write, small, tmp_path):
    tokens = load(write("t.jsonl", {"prompt": [1], "output_len": 1}))
    with pytest.raises(ValueError, match="token-id trace has no blocks"):
        convert(tokens, tmp_path / "x", "arrivals")
    with pytest.raises(ValueError, match="unknown format 'xml'"):
        convert(tokens, tmp_path / "x", "xml")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block must be 1 or more"):
        convert(small, tmp_path / "x", "mooncake", block=0)


def test_runs_are_maximal():
    assert runs(np.array([4, 5, 6, 1, 2, 9], np.int32)) == [[4, 3], [1, 2], [9, 1]]
    assert runs(np.zeros(0, np.int32)) == []


@pytest.mark.parametrize("mix", ["agent", "flip"])
def test_the_same_seed_gives_the_same_bytes(tmp_path, mix):
    for name, seed in (("a.gz", 5), ("b.gz", 5), ("c.gz", 6)):
        write_synth(tmp_path / name, seed, 20, scale=0.01, mix=mix)
    a, b, c = ((tmp_path / name).read_bytes() for name in ("a.gz", "b.gz", "c.gz"))
    assert a == b != c


def test_sessions_have_the_published_shapes():
    trace = synth(0, 120)
    pairs = [(trace.turns[i], trace.turns[j]) for s in trace.streams.values() for i, j in zip(s, s[1:], strict=False)]
    summary = trace.summary()
    assert 85e3 < summary["input_p50"] < 125e3 and 250 < summary["output_p50"] < 350
    assert 0.96 < np.mean([after.keep == len(before.blocks) for before, after in pairs]) < 0.985
    tool = [after.think for before, after in pairs if before.stop == "tool_use"]
    human = [after.think for before, after in pairs if before.stop == "end_turn"]
    assert 8 < np.median(tool) < 10 and 400 < np.percentile(tool, 99) < 900 and 150 < np.median(human) < 280
    heads = {turn.blocks[0] for turn in trace.turns}
    assert len(heads) == 4
    subs = [turn for turn in trace.turns if turn.sub != "0"]
    assert subs and all(turn.parent is not None and trace.turns[turn.parent].arrival < turn.arrival for turn in subs)


def test_scale_shrinks_lengths_alone():
    full, tiny = synth(1, 40).summary(), synth(1, 40, scale=0.01).summary()
    assert 0.007 < tiny["input_p50"] / full["input_p50"] < 0.013
    assert 0.7 < tiny["turns"] / full["turns"] < 1.4 and 0.5 < tiny["think_p50"] / full["think_p50"] < 2


def test_flip_changes_from_many_short_to_few_long_sessions():
    trace = synth(2, 64, scale=0.05, mix="flip")
    order = [turn for turn in trace.in_arrival_order() if turn.n == 0 and turn.sub == "0"]
    first, last = order[:64], order[64:]
    assert len(last) == 4
    peak = {turn.session: 0 for turn in order}
    for turn in trace.turns:
        peak[turn.session] = max(peak[turn.session], turn.input)
    assert max(peak[turn.session] for turn in first) < min(peak[turn.session] for turn in last)


def test_synth_refuses_nonsense():
    for arguments in ((0, 0), (0, 1)):
        with pytest.raises(ValueError):
            synth(*arguments, scale=1.0 if arguments[1] == 0 else -1.0)
    with pytest.raises(ValueError, match="unknown mix"):
        synth(0, 1, mix="other")  # type: ignore[arg-type]
