"""arrivals, k3trace and Weka: what rows keep and add, tails, and bad rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3mem.replay.formats.build import Builder
from k3mem.replay.trace import BadTrace, load

HEADER = {"arrivals": 1, "block": 4, "clock": "s", "id_scope": "global"}


def row(s: str, n: int, in_: int, out: int, keep: int, new: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"s": s, "n": n, "in": in_, "out": out, "keep": keep, "new": new, "t": float(n), **more}


def test_a_tail_and_a_reply_are_what_the_next_row_shows(write):
    path = write("t.jsonl", HEADER, row("a", 0, 6, 5, 0, [[100, 1]]), row("a", 1, 18, 1, 1, [[200, 3]]))
    first, second = load(path).turns
    assert first.prompt().tolist() == [0, 0, 0, 0, 1, 1]
    assert first.reply().tolist() == [1, 1, 2, 2, 2]
    assert (first.grid_known, first.shown) == (4, 6)
    assert (second.grid_known, second.shown) == (16, 16)
    own = second.prompt()[16:].tolist() + second.reply().tolist()
    assert own == [own[0]] * 3 and own[0] not in (0, 1, 2, 3)


def test_a_tail_inside_the_next_rows_tail_is_asked_of_the_row_after_it(write):
    path = write("t.jsonl", HEADER, row("a", 0, 5, 1, 0, [[1, 1]]), row("a", 1, 7, 1, 1, []),
                 row("a", 2, 8, 1, 1, [[9, 1]]))
    first, second, third = load(path).turns
    assert third.prompt().tolist() == [0] * 4 + [1] * 4
    assert second.prompt().tolist() == [0] * 4 + [1] * 3 and second.reply().tolist() == [1]
    assert first.prompt().tolist() == [0] * 4 + [1] and first.reply().tolist() == [1]


def test_output_past_the_next_prompt_is_the_turns_own(write):
    path = write("t.jsonl", HEADER, row("a", 0, 4, 9, 0, [[1, 1]]), row("a", 1, 8, 1, 1, [[2, 1]]))
    trace = load(path)
    own = trace.tokens - 2
    assert trace.turns[0].reply().tolist() == [1] * 4 + [own] * 5


def test_a_row_that_leaves_the_path_shows_nothing_of_the_row_before(write):
    path = write("t.jsonl", HEADER, row("a", 0, 9, 3, 0, [[1, 2]]), row("a", 1, 12, 1, 1, [[7, 2]]))
    trace = load(path)
    first, second = trace.turns
    assert first.shown == first.grid_known == 8
    assert first.prompt()[8] not in second.prompt()
    assert second.keep == 1 and second.blocks.tolist() == [0, 2, 3]


def test_blocks_given_again_after_keep_count_as_kept(write):
    path = write("t.jsonl", HEADER, row("a", 0, 8, 1, 0, [[1, 2]]), row("a", 1, 12, 1, 0, [[1, 3]]))
    assert load(path).turns[1].keep == 2


def test_negative_runs_count_down_and_are_shared(write):
    path = write("t.jsonl", HEADER, row("a", 0, 8, 1, 0, [[-5, 2]]), row("b", 0, 12, 1, 0, [[-5, 1], [-6, 1], [7, 1]]))
    a, b = load(path).turns
    assert a.blocks.tolist() == b.blocks[:2].tolist() == [0, 1]


def test_streams_parents_and_facts(write):
    path = write(
        "t.jsonl", HEADER,
        row("a", 0, 4, 0, 0, [[1, 1]], stop="tool_use", think=None, api=2.5),
        row("a", 0, 4, 1, 0, [[2, 1]], st=1),
        row("a", 1, 4, 1, 1, [], think=3, t=0.5),
        row("a", 1, 4, 1, 1, [], st=1, pt=1),
    )  # fmt: skip
    trace = load(path)
    assert trace.streams == {"a/0": [0, 2], "a/1": [1, 3]}
    assert [turn.parent for turn in trace.turns] == [None, 0, None, 2]
    assert [turn.key for turn in trace.turns] == ["a/0#0", "a/1#0", "a/0#1", "a/1#1"]
    first = trace.turns[0]
    assert (first.output, first.stop, first.think, first.api) == (1, "tool_use", 0.0, 2.5)
    assert [turn.index for turn in trace.in_arrival_order()] == [0, 1, 2, 3]
    assert trace.has_arrivals and trace.has_sessions


def test_a_negative_gap_means_no_wait(write):
    path = write("t.jsonl", HEADER, row("a", 0, 4, 1, 0, [[1, 1]]), row("a", 1, 4, 1, 1, [], think=-2.5))
    assert load(path).turns[1].think == 0.0


def test_arrival_order_is_stable_and_by_time(write):
    path = write("t.jsonl", HEADER, row("a", 0, 4, 1, 0, [[1, 1]], t=5), row("b", 0, 4, 1, 0, [[1, 1]], t=1),
                 row("c", 0, 4, 1, 0, [[1, 1]], t=5))
    assert [turn.session for turn in load(path).in_arrival_order()] == ["b", "a", "c"]


def test_k3trace_has_gaps_and_no_common_clock(write):
    header = {"k3trace": 1, "block": 4, "id_scope": "global"}
    path = write("t.jsonl", header, row("a", 0, 4, 1, 0, [[1, 1]]), row("a", 1, 8, 1, 1, [[2, 1]], gap=6),
                 row("b", 0, 4, 1, 0, [[1, 1]]))
    trace = load(path)
    assert trace.format == "k3trace" and not trace.has_arrivals
    assert [turn.think for turn in trace.turns] == [0.0, 6.0, 0.0]
    assert trace.turns[2].blocks.tolist() == [0]


def test_k3trace_local_ids_are_shared_within_a_session_only(write):
    header = {"k3trace": 1, "block": 4, "id_scope": "local"}
    path = write("t.jsonl", header, row("a", 0, 4, 1, 0, [[1, 1]]), row("b", 0, 4, 1, 0, [[1, 1]]))
    assert [turn.blocks.tolist() for turn in load(path).turns] == [[0], [1]]


def weka(s: str, n: int, in_: int, lcp: int, new: list[list[int]], **more: Any) -> dict[str, Any]:
    return {"s": s, "st": 0, "n": n, "t": 0.0, "in": in_, "out": 1, "lcp": lcp, "new": new, **more}


def test_weka_sessions_with_equal_tool_tokens_share_the_tool_part(write):
    path = write("w.jsonl.gz", weka("a", 0, 192, 0, [[1, 3]]), weka("b", 0, 192, 0, [[1, 3]]),
                 weka("c", 0, 192, 0, [[1, 3]]), weka("a", 0, 64, 0, [[9, 1]], st=1, pt=0))
    meta = [{"id": name, "tool_tokens": 130} for name in "ab"] + [{"id": "c", "tool_tokens": 64}]
    write("w_meta.json", json.dumps(meta))
    a, b, c, sub = (turn.blocks.tolist() for turn in load(path).turns)
    assert a[:2] == b[:2] and a[2] != b[2]
    assert not set(c) & set(a + b)
    assert sub == a[:1]
    assert load(path).turns[3].parent == 0


def test_weka_without_a_meta_file_shares_nothing_between_sessions(write):
    path = write("w.jsonl", weka("a", 0, 64, 0, [[1, 1]]), weka("b", 0, 64, 0, [[1, 1]]))
    assert [turn.blocks.tolist() for turn in load(path).turns] == [[0], [1]]


def test_a_broken_weka_meta_file_is_named(write):
    path = write("w.jsonl", weka("a", 0, 64, 0, [[1, 1]]))
    write("w_meta.json", '[{"id": "a", "tool_tokens": -1}]')
    with pytest.raises(BadTrace, match=r"w_meta\.json: Expected `int` >= 0"):
        load(path)


BAD = [
    ("{", "Input data was truncated"),
    ("[1]", "Expected `object`, got `array`"),
    ({"s": "a", "n": 1}, "Object missing required field `in`"),
    (row("a", 1, 8, 1, 1, [[2, 1]]) | {"in": "8"}, "Expected `int`, got `str` - at `$.in`"),
    (row("a", 1, 8, -1, 1, [[2, 1]]), "Expected `int` >= 0 - at `$.out`"),
    (row("a", 1, 8, 1, -1, [[2, 3]]), "Expected `int` >= 0 - at `$.keep`"),
    (row("a", 1, 8, 1, 1, [[2, -1]]), "Expected `int` >= 0 - at `$.new`"),
    (row("a", 1, 8, 1, 1, [[2, 1]], t=-1), "Expected `float` >= 0.0 - at `$.t`"),
    (row("a", 1, 8, 1, 2, []), "keeps 2 blocks, but the previous row of its stream has 1"),
    (row("a", 1, 9, 1, 1, []), "keep and new give 1 blocks, but 9 tokens have 2 of 4"),
    (row("a", 1, 8, 1, 1, [[2, 2**40]]), f"keep and new give {2**40 + 1} blocks, but 8 tokens have 2 of 4"),
    (row("a", 1, 0, 1, 0, []), "input of 0 tokens: a request has at least one"),
    (row("a", 1, 2**31, 1, 1, [[2, 1]]), f"input + output = {2**31 + 1} tokens do not fit 32 bits"),
    (row("a", 1, 8, 1, 1, [[2, 1]], st=1, parent=7), "keeps 1 blocks, but the previous row of its stream has 0"),
    (row("a", 0, 4, 1, 0, [[2, 1]], st=1, parent=7), "parent is row 7, which no earlier line has"),
    (row("a", 1, 8, 1, 1, [[2, 1]], tail=3), "tail, but 8 tokens end with a whole block"),
]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=range(len(BAD)))
def test_a_bad_row_names_file_line_and_reason(write, line, reason):
    path = write("t.jsonl", HEADER, row("a", 0, 4, 1, 0, [[1, 1]]), line, row("b", 0, 4, 1, 0, [[1, 1]]))
    with pytest.raises(BadTrace) as caught:
        load(path)
    assert (caught.value.file, caught.value.line) == (str(path), 3)
    # How deep paths are spelled differs between versions of msgspec.
    assert caught.value.reason.partition("[")[0].rstrip("`") == reason.rstrip("`")
    assert str(caught.value) == f"{path}:3: {caught.value.reason}"
    trace = load(path, skip_bad=True)
    assert trace.skipped == 1 and [turn.session for turn in trace.turns] == ["a", "b"]


def test_rows_that_depend_on_a_bad_one_go_with_it(write):
    path = write(
        "t.jsonl", HEADER,
        row("a", 0, 4, 1, 0, [[1, 1]]), row("b", 0, 4, 1, 0, [[1, 1]]),
        row("a", 1, 8, -3, 1, [[2, 1]]),
        row("a", 2, 12, 1, 2, [[3, 1]]), row("b", 1, 8, 1, 1, [[5, 1]]),
        row("a", 3, 4, 1, 0, [[1, 1]]), row("a", 4, 8, 1, 1, [[2, 1]]),
    )  # fmt: skip
    trace = load(path, skip_bad=True)
    assert [problem.line for problem in trace.problems] == [4, 5]
    assert trace.problems[1].reason == "depends on the bad row of line 4"
    assert [turn.key for turn in trace.turns] == ["a/0#0", "b/0#0", "b/0#1", "a/0#1", "a/0#2"]


def test_a_row_of_unreadable_stream_breaks_the_stream_whose_number_is_missing(write):
    path = write(
        "t.jsonl", HEADER,
        row("a", 0, 4, 1, 0, [[1, 1]]), row("b", 0, 4, 1, 0, [[1, 1]]),
        "{garbage",
        row("b", 1, 8, 1, 1, [[2, 1]]), row("a", 2, 4, 1, 1, []), row("a", 3, 4, 1, 1, []),
    )  # fmt: skip
    trace = load(path, skip_bad=True)
    assert [problem.line for problem in trace.problems] == [4, 6, 7]
    assert [turn.key for turn in trace.turns] == ["a/0#0", "b/0#0", "b/0#1"]


def test_a_malformed_line_before_the_header(write):
    path = write("t.jsonl", "oops", HEADER, row("a", 0, 4, 1, 0, [[1, 1]]))
    with pytest.raises(BadTrace, match=r"t\.jsonl:1: JSON is malformed"):
        load(path)
    trace = load(path, skip_bad=True)
    assert (len(trace.turns), trace.skipped, trace.block) == (1, 1, 4)


@pytest.mark.parametrize("block", [0, "x", 2.5, True])
def test_a_header_with_a_wrong_block(write, block):
    path = write("t.jsonl", HEADER | {"block": block}, row("a", 0, 4, 1, 0, [[1, 1]]))
    with pytest.raises(BadTrace, match="expected tokens a block"):
        load(path)


def spell(rows: list[tuple[int, int, list[int]]], i: int, position: int, block: int, ids: int) -> int:
    """The id at a position of turn i, by the rule as written: whole blocks, else the next row that keeps them."""
    whole = rows[i][0] // block
    if position // block < whole:
        return rows[i][2][position // block]
    j, own = i, ids + i
    while j + 1 < len(rows):
        mine, following = rows[j][2], rows[j + 1]
        if following[2][: len(mine)] != mine or position >= following[0]:
            return own
        if position // block < len(following[2]):
            return following[2][position // block]
        j += 1
    return own


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_id_is_what_the_rule_says(data):
    block = data.draw(st.integers(1, 5))
    builder, rows, ids, past = Builder(block), [], 0, []
    for _ in range(data.draw(st.integers(1, 7))):
        leaves = data.draw(st.integers(0, 3)) == 0
        kept = past[: data.draw(st.integers(0, len(past)))] if leaves else past
        grown = data.draw(st.integers(0, 2))
        past = kept + list(range(ids, ids + grown))
        ids += grown
        input = len(past) * block + data.draw(st.integers(0, block - 1))
        if input == 0:
            continue
        rows.append((input, data.draw(st.integers(1, 3 * block)), past))
    for input, output, blocks in rows:
        builder.add_list("s", 0, input, output, blocks)
    builder.ids = max(builder.ids, ids)
    trace = builder.finish("t", "test", has_sessions=True, wall_clock=False, problems=[])

    dense = builder._scopes.get(None, {})
    for i, turn in enumerate(trace.turns):
        got = np.concatenate((turn.prompt(), turn.reply())).tolist()
        wanted = [spell(rows, i, p, block, ids + 10**6) for p in range(turn.input + turn.output)]
        assert got == [dense.get(key, builder.ids + i) for key in wanted]
        assert turn.grid_known <= turn.shown <= turn.input
        assert max(got) < trace.tokens
