"""List formats, token ids, messages; how a format is told; limits, progress, gzip."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from k3mem.errors import K3MemError
from k3mem.replay.trace import BadTrace, load


def moon(time: int, length: int, ids: list[int], out: int = 2) -> dict:
    return {"timestamp": time, "input_length": length, "output_length": out, "hash_ids": ids}


def test_mooncake_knows_the_whole_prompt_and_no_output(write):
    trace = load(write("m.jsonl", moon(1500, 600, [7, 8]), moon(2000, 512, [7]), moon(2500, 600, [7, 8])))
    first, second, third = trace.turns
    assert first.prompt().tolist() == [0] * 512 + [1] * 88
    assert (first.grid_known, first.shown, first.arrival) == (512, 600, 1.5)
    assert np.array_equal(first.prompt(), third.prompt())
    assert second.prompt().tolist() == [0] * 512
    own = [turn.reply().tolist() for turn in trace.turns]
    assert own == [[2, 2], [3, 3], [4, 4]] and trace.tokens == 5
    assert not trace.has_sessions and len(trace.streams) == 3 and trace.block == 512


def test_mooncake_of_another_block(write):
    path = write("m.jsonl", moon(0, 20, [1, 2]))
    with pytest.raises(BadTrace, match=r"m\.jsonl:1: 2 hash ids for 20 tokens: blocks of 512 need 1"):
        load(path)
    assert load(path, block=16).turns[0].blocks.tolist() == [0]


@pytest.mark.parametrize(("line", "reason"), [
    (moon(0, 513, [1]), "1 hash ids for 513 tokens: blocks of 512 need 2"),
    (moon(0, 513, [1, 2, 3]), "3 hash ids for 513 tokens"),
    (moon(-1, 5, [1]), "Expected `float` >= 0.0 - at `$.timestamp`"),
    (moon(0, -5, [1]), "Expected `int` >= 0 - at `$.input_length`"),
    (moon(0, 5, ["x"]), "Expected `int`, got `str` - at `$.hash_ids"),
    ('{"timestamp": 0, "input_length": 5', "Input data was truncated"),
    ('{"timestamp": 1e999, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "Number out of range"),
])  # fmt: skip
def test_mooncake_bad_lines(write, line, reason):
    path = write("m.jsonl", moon(0, 5, [1]), line, moon(0, 5, [1]))
    with pytest.raises(BadTrace) as caught:
        load(path)
    assert caught.value.line == 2 and caught.value.reason.startswith(reason)
    trace = load(path, skip_bad=True)
    assert (len(trace.turns), trace.skipped) == (2, 1)


def test_bytes_that_are_no_utf8(write, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(json.dumps(moon(0, 5, [1])).encode() + b'\n{"a": "\xff\xfe"}\n')
    with pytest.raises(BadTrace, match=r"m\.jsonl:2:"):
        load(path)
    assert load(path, skip_bad=True).skipped == 1


def test_token_rows(write):
    trace = load(write("t.jsonl", {"prompt": [5, 6], "output": [7], "timestamp": 2.5, "session": "a"},
                       {"prompt": [5, 6, 7, 9], "output_len": 2, "timestamp": 3, "session": "a"},
                       {"prompt": [5, 6, 7, 9, 4], "output_len": 3, "timestamp": 4, "session": "a"}))
    first, second, third = trace.turns
    assert first.prompt().tolist() == [5, 6] and first.reply().tolist() == [7]
    assert second.prompt().tolist() == [5, 6, 7, 9] and second.keep == 2
    assert second.reply().tolist() == [4, 11]
    assert third.reply().tolist() == [12, 12, 12] and trace.tokens == 13
    assert trace.block == 1 and trace.streams == {"a/0": [0, 1, 2]} and trace.has_sessions
    with pytest.raises(ValueError, match="read-only"):
        first.prompt()[0] = 1


def test_token_rows_without_sessions_stand_alone(write):
    trace = load(write("t.jsonl", {"prompt": [5], "output_len": 1}, {"prompt": [5, 6], "output_len": 0}))
    assert len(trace.streams) == 2 and not trace.has_sessions and not trace.has_arrivals
    assert trace.turns[0].reply().tolist() == [7] and trace.turns[1].output == 1


def test_token_rows_with_text(write):
    path = write("t.jsonl", {"prompt": "ab", "output": "c"})
    with pytest.raises(BadTrace, match="prompt is text: give a tokenizer"):
        load(path)
    turn = load(path, tokenizer=lambda text: [ord(c) for c in text]).turns[0]
    assert turn.prompt().tolist() == [97, 98] and turn.reply().tolist() == [99]


@pytest.mark.parametrize(("line", "reason"), [
    ({"prompt": [1]}, "neither output nor output_len"),
    ({"prompt": [], "output_len": 1}, "input of 0 tokens: a request has at least one"),
    ({"prompt": [1, -2], "output_len": 1}, "prompt has token id -2, outside 0 .. 2147483646"),
    ({"prompt": [2**70], "output_len": 1}, "prompt has a token id beyond 64 bits"),
    ({"prompt": [1], "output": [1], "output_len": 3}, "output_len is 3, but output has 1 ids"),
    ({"prompt": [1], "output_len": 1, "session": "a", "stream": "b/c"}, "stream 'b/c' contains a slash"),
])  # fmt: skip
def test_token_rows_that_are_wrong(write, line, reason):
    path = write("t.jsonl", {"prompt": [1], "output_len": 1}, line)
    with pytest.raises(BadTrace) as caught:
        load(path)
    assert (caught.value.line, caught.value.reason) == (2, reason)


def message(role: str, ids: list[int], created: float | None = None) -> dict:
    return {"role": role, "ids": ids} | ({} if created is None else {"created": created})


def test_each_assistant_message_is_a_turn(write):
    trace = load(write("m.jsonl", {"session_id": "x", "messages": [
        message("system", [1, 2]), message("user", [3]), message("assistant", [4], 1000), message("user", [5]),
        message("assistant", [6, 7], 1004), message("user", [8])]}))
    first, second = trace.turns
    assert first.prompt().tolist() == [1, 2, 3] and first.reply().tolist() == [4]
    assert second.prompt().tolist() == [1, 2, 3, 4, 5] and second.reply().tolist() == [6, 7]
    assert (first.arrival, second.arrival, second.think) == (0.0, 4.0, 4.0)
    assert trace.streams == {"x/0": [0, 1]}


def test_messages_with_text_need_a_tokenizer(write):
    record = {"id": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                                      {"role": "assistant", "content": "yo", "tool_calls": [{"f": 1}]}]}
    path = write("m.jsonl", record)
    with pytest.raises(BadTrace, match=r"m\.jsonl:1: message 0 is text: give a tokenizer"):
        load(path)
    turn = load(path, tokenizer=lambda text: list(text.encode())).turns[0]
    assert bytes(turn.prompt().tolist()) == b"hi" and bytes(turn.reply().tolist()) == b'yo[{"f": 1}]'


def test_a_session_over_several_lines_is_one_document(write):
    record = {"messages": [message("user", [1]), message("assistant", [2])], "info": {}}
    for indent in (0, 2):
        trace = load(write("x.traj.json", json.dumps(record, indent=indent)))
        assert trace.format == "messages" and len(trace.turns) == 1


def test_messages_that_are_wrong(write):
    good = {"session_id": "x", "messages": [message("user", [1]), message("assistant", [2])]}
    bad = {"session_id": "y", "messages": [message("assistant", [2])]}
    trace = load(write("m.jsonl", good, bad, good, {"messages": [{"ids": [1]}]}), skip_bad=True)
    assert [(problem.line, problem.reason.partition("[")[0]) for problem in trace.problems] == [
        (2, "the first assistant message has no prompt before it"),
        (3, "session 'x' stands on an earlier line"),
        (4, "Object missing required field `role` - at `$.messages"),
    ]


def chat(chat_id: int, parent: int, length: int, ids: list[int], time: float = 0.0) -> dict:
    return {"chat_id": chat_id, "parent_chat_id": parent, "timestamp": time, "input_length": length,
            "output_length": 3, "type": "text", "turn": 1, "hash_ids": ids}  # fmt: skip


def test_bailian_chats_make_streams_and_forks(write):
    trace = load(write("b.jsonl", chat(1, -1, 20, [1, 2], 1.0), chat(2, 1, 40, [1, 3, 4]), chat(3, 1, 33, [1, 5, 6]),
                       chat(4, 2, 48, [1, 3, 7]), chat(9, 77, 16, [1])))
    assert trace.block == 16 and trace.streams == {"1/0": [0, 1, 3], "1/1": [2], "9/0": [4]}
    assert [turn.parent for turn in trace.turns] == [None, None, 0, None, None]
    root, second = trace.turns[:2]
    assert root.prompt().tolist() == second.prompt()[:20].tolist()
    assert root.reply().tolist() == second.prompt()[20:23].tolist()
    assert root.shown == 20


def test_agentic_mooncake_follows_wait_for(write):
    def ask(name: str, length: int, ids: list[int], **more: object) -> dict:
        return {"request_id": name, "input_length": length, "output_length": 1, "hash_ids": ids, **more}

    trace = load(write("a.jsonl", ask("r0", 4, [1], timestamp=500, session_id="s"),
                       ask("r1", 8, [1, 2], wait_for=["r0"], delay=250, tool_wait_ms=750, session_id="s"),
                       ask("r2", 8, [1, 3], wait_for=["r0"], session_id="s", branches=["r3"]),
                       ask("r3", 8, [1, 3], wait_for=["r1", "r2"], prefix_reset=True)), block=4)
    assert trace.format == "agentic-mooncake" and trace.streams == {"s/0": [0, 1], "s/1": [2, 3]}
    assert [turn.parent for turn in trace.turns] == [None, None, 0, 0]
    assert (trace.turns[0].arrival, trace.turns[1].think, trace.has_arrivals) == (0.5, 1.0, False)


def test_agentic_mooncake_that_waits_for_nobody(write):
    row = {"request_id": "a", "input_length": 1, "output_length": 1, "hash_ids": [1], "wait_for": ["zz"]}
    with pytest.raises(BadTrace, match="waits for 'zz', which no earlier line has"):
        load(write("a.jsonl", row))


def test_raw_weka_sessions(write):
    def ask(length: int, ids: list[int]) -> dict:
        return {"t": 0.0, "type": "n", "in": length, "out": 2, "hash_ids": ids, "api_time": 1.5, "think_time": 0.5}

    def session(name: str) -> dict:
        return {"id": name, "block_size": 4, "hash_id_scope": "local", "tool_tokens": 5, "requests": [
            ask(9, [1, 2]), {"t": 1.0, "type": "subagent", "agent_id": "k", "requests": [ask(4, [7])]},
            ask(16, [1, 2, 3, 4])]}  # fmt: skip

    trace = load([write("1.json", json.dumps(session("x"), indent=1)), write("2.json", session("y"))])
    assert trace.streams == {"x/0": [0, 2], "x/1": [1], "y/0": [3, 5], "y/1": [4]}
    x0, sub, x1, y0 = trace.turns[:4]
    assert sub.parent == 0 and sub.blocks.tolist() == x0.blocks[:1].tolist() == y0.blocks[:1].tolist()
    assert x0.blocks[1] != y0.blocks[1] and x0.reply().tolist() == x1.prompt()[9:11].tolist()
    assert (x0.api, x0.think, trace.block) == (1.5, 0.5, 4)


def test_a_bad_raw_weka_session_is_dropped_whole(write):
    bad = {"id": "x", "requests": [{"in": 4, "out": 1, "hash_ids": []}, {"in": 200, "out": 1, "hash_ids": [1]}]}
    good = {"id": "y", "requests": [{"in": 4, "out": 1, "hash_ids": []}]}
    path = write("w.jsonl", bad, good)
    with pytest.raises(BadTrace, match=r"w\.jsonl:1: request 1: 1 hash ids for 200 tokens: blocks of 64 need 3"):
        load(path)
    assert [turn.session for turn in load(path, skip_bad=True).turns] == ["y"]


def test_tracelab_rounds_share_the_served_prefix(write):
    def turn(index: int, total: int, prefix: int, second: int) -> dict:
        time = f"2026-06-01T05:40:{second:02d}.500Z"
        return {"session_id": "s", "round_index": index, "input_tokens_total": total, "prefix_tokens": prefix,
                "output_tokens": 2, "timing_events": [{"timestamp": time}]}  # fmt: skip

    trace = load(write("r.jsonl", turn(0, 5, 4, 1), turn(1, 9, 7, 4), turn(2, 9, 2, 9)))
    first, second, third = (turn.prompt().tolist() for turn in trace.turns)
    assert first == [0] * 5 and second == [0] * 5 + [1] * 4 and third == [0] * 2 + [2] * 7
    assert [turn.arrival for turn in trace.turns] == [0.0, 3.0, 8.0] and trace.turns[1].think == 3.0
    assert trace.turns[0].reply().tolist() == [1, 1]


def test_an_unknown_format_names_what_was_tried(write):
    path = write("u.jsonl", {"foo": 1, "bar": 2})
    with pytest.raises(BadTrace, match=r"u\.jsonl: unknown format, first record has foo, bar; tried .*mooncake"):
        load(path)
    assert issubclass(BadTrace, K3MemError) and issubclass(BadTrace, ValueError)


def test_an_azure_csv_is_refused_with_the_reason(write):
    path = write("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44")
    with pytest.raises(BadTrace, match=r"a\.csv:1: an Azure CSV gives lengths and times but no token or block ids"):
        load(path)


def test_files_that_hold_nothing(write, tmp_path):
    with pytest.raises(BadTrace, match=r"e\.jsonl: empty file"):
        load(write("e.jsonl", ""))
    with pytest.raises(BadTrace, match="No such file"):
        load(tmp_path / "absent.jsonl")
    with pytest.raises(BadTrace, match="no turns in this arrivals trace"):
        load(write("h.jsonl", {"arrivals": 1, "block": 4}))
    with pytest.raises(ValueError, match="no trace files"):
        load([])


def test_gzip_is_told_by_its_bytes_and_damage_is_reported(write, tmp_path):
    lines = b"".join(json.dumps(moon(i, 600, [i, i + 1])).encode() + b"\n" for i in range(2000))
    zipped = tmp_path / "no_ending"
    zipped.write_bytes(gzip.compress(lines))
    assert len(load(zipped).turns) == 2000
    cut = tmp_path / "cut.gz"
    cut.write_bytes(zipped.read_bytes()[:-2000])
    with pytest.raises(BadTrace, match="damaged gzip stream"):
        load(cut)
    trace = load(cut, skip_bad=True)
    assert 0 < len(trace.turns) < 2000 and trace.skipped >= 1


def test_limit_and_progress(write):
    path = write("m.jsonl", *[moon(i, 5, [i]) for i in range(2500)])
    seen: list[int] = []
    assert len(load(path, progress=seen.append).turns) == 2500 and seen == [1000, 2000]
    assert len(load([path, path], limit=7).turns) == 7
    with pytest.raises(ValueError, match="limit must be 1 or more"):
        load(path, limit=0)


def test_several_files_are_one_trace_of_one_format(write):
    a, b = write("a.jsonl", moon(0, 5, [1])), write("b.jsonl", moon(1, 5, [1]))
    trace = load([a, b])
    assert len(trace.turns) == 2 and np.array_equal(trace.turns[0].prompt(), trace.turns[1].prompt())
    with pytest.raises(BadTrace, match="tokens with blocks of 1 after mooncake with blocks of 512"):
        load([a, write("c.jsonl", {"prompt": [1], "output_len": 1})])


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(moon(0, 5, [1])).encode())
    assert len(load(path).turns) == 1


def test_a_tokenizer_json(write, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    file = tmp_path / "tokenizer.json"
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.save(str(file))
    text = write("t.jsonl", {"prompt": "b a b", "output_len": 1})
    assert load(text, tokenizer=file).turns[0].prompt().tolist() == [1, 0, 1]
    with pytest.raises(BadTrace, match="not a tokenizer.json"):
        load(text, tokenizer=tmp_path / "absent.json")
