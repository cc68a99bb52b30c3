"""Per-request accounts: they add up to the report, name the worst, and say what would have saved them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from k3mem.cli import app
from k3mem.replay.arrival import run_arrival
from k3mem.replay.explain import REASONS, Record, lines, reasons, saved_by
from k3mem.replay.options import BadOption, ReplayOptions
from k3mem.replay.report import build
from k3mem.replay.synth import synth
from k3mem.replay.timed import run_timed
from k3mem.replay.trace import Trace, load
from k3mem.request import Hit
from k3mem.shape import Shape

SHAPE = Shape.kimi_k3(tp=8)
ALL = 10**6


def mooncake(path: Path) -> Trace:
    """Chats by block hashes: long prompts that share heads, some of them twice."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(120):
        chat = int(rng.integers(8))
        length = int(rng.integers(1, 9))
        hashes = [1000 * chat + j for j in range(length)] + [10**6 + i] * int(rng.integers(2))
        rows.append({"timestamp": 1000 * i, "input_length": 512 * len(hashes) - int(rng.integers(400)),
                     "output_length": 5, "hash_ids": hashes})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load(path)


def tokens(path: Path) -> Trace:
    """Token ids, some prompts twice, some a token longer."""
    rng = np.random.default_rng(4)
    heads = [rng.integers(0, 99, 700).tolist() for _ in range(5)]
    rows = [heads[int(rng.integers(5))][: int(rng.integers(1, 12)) * 64 + int(rng.integers(2))] for _ in range(150)]
    path.write_text("".join(json.dumps({"prompt": row, "output_len": 3}) + "\n" for row in rows))
    return load(path)


def report(trace: Trace, mode: str, pool: float, **options: Any) -> dict[str, Any]:
    run = run_timed if mode == "timed" else run_arrival
    chosen: dict[str, Any] = {"mode": mode, "pool_bytes": int(pool * 1e9), "explain": ALL, **options}
    return build(run(trace, SHAPE, ReplayOptions(**chosen), lambda done, total: None))


@pytest.mark.parametrize("mode", ["arrival", "timed"])
@pytest.mark.parametrize(("kind", "pool"), [("synth", 0.8), ("mooncake", 0.5), ("tokens", 0.3), ("synth", 0)])
def test_accounts_of_requests_add_up_to_the_report(kind: str, pool: float, mode: str, tmp_path: Path) -> None:
    trace = {"synth": lambda: synth(5, 6, scale=0.1), "mooncake": lambda: mooncake(tmp_path / "m.jsonl"),
             "tokens": lambda: tokens(tmp_path / "t.jsonl")}[kind]()
    for turn in trace.turns if kind == "synth" and mode == "timed" else ():
        turn.output = 1000  # outputs are not reserved for: some are retracted
    options: dict[str, Any] = {"gap_cap": 0.0, "concurrency": 12} if mode == "timed" else {}
    found = report(trace, mode, pool, **options)
    part, every = found["explain"], found["explain"]["requests"]
    again = found["again_tokens"]
    for one in every:
        assert one["hit"] + sum(one["causes"].values()) == one["input"]
        assert sum(one["reasons"].values()) == one["lost"] > 0
        assert one["recomputed"] == one["input"] - one["hit"]
    assert sum(one["lost"] for one in every) == part["lost_tokens"]
    assert part["lost_tokens"] == found["recomputed_tokens"] - found["unavoidable_tokens"] + again
    summary = {reason: some["tokens"] for reason, some in part["summary"].items()}
    assert list(summary) == list(REASONS) and sum(summary.values()) == part["lost_tokens"]
    assert summary["state_evicted"] + summary["no_checkpoint"] == found["causes"]["no_state"]
    assert summary["again"] == again
    for cause in ("kv_evicted", "off_grid", "other_scope", "last_token"):
        assert summary[cause] == found["causes"][cause]
    assert (again > 0) == (kind == "synth" and mode == "timed" and pool > 0)
    worst = [one["lost"] for one in every]
    assert worst == sorted(worst, reverse=True)


def test_the_worst_are_the_first_of_all() -> None:
    trace = synth(5, 6, scale=0.1)
    every, some = report(trace, "arrival", 0.8), report(trace, "arrival", 0.8, explain=3)
    assert some["explain"]["requests"] == every["explain"]["requests"][:3]
    assert some["explain"]["summary"] == every["explain"]["summary"]
    key = trace.turns[7].key
    one = report(trace, "timed", 0.8, explain=key)["explain"]["requests"]
    assert [line["request"] for line in one] == [key]


def record(hit: int, known: int, input: int = 1000, kv: int = 0, evicted: int = 0, **causes: int) -> Record:
    turn = synth(0, 1, scale=0.01).turns[0]
    return Record(turn, Hit(input, hit, max(kv, hit), known, -1, causes, evicted), 1.0)


@pytest.mark.parametrize(("given", "why", "text"), [
    (record(0, 640, kv=640, evicted=512, no_state=640, never_seen=360), {"state_evicted": 512, "no_checkpoint": 128},
     "56.2 MB more room: the checkpoint at 512 was evicted"),
    (record(0, 640, kv=0, evicted=512, kv_evicted=512, no_state=128, never_seen=360),
     {"kv_evicted": 512, "no_checkpoint": 128}, "70.3 MB more room: the checkpoint at 512 was evicted"),
    (record(64, 700, kv=700, no_state=576, off_grid=60, never_seen=300), {"no_checkpoint": 576, "off_grid": 60},
     "a checkpoint at 640: a hint or a turn start there, or intervals"),
    (record(640, 700, off_grid=60, never_seen=300), {"off_grid": 60},
     "a finer grid: checkpoints stand at multiples of 64, and at ends of answers"),
    (record(0, 0, other_scope=900, never_seen=100), {"other_scope": 900},
     "the same salt and adapter as those who computed it"),
    (record(640, 1000, last_token=360), {"last_token": 360},
     "a checkpoint further up: the one at the prompt's very end serves longer prompts only"),
])
def test_what_would_have_saved_a_request(given: Record, why: dict[str, int], text: str) -> None:
    assert reasons(given) == why
    saved = saved_by(given, SHAPE, 64)
    assert saved is not None and (saved["reason"], saved["text"]) == (next(iter(why)), text)


def test_who_lost_nothing_needs_no_saving() -> None:
    fresh = record(0, 0, never_seen=1000)
    assert fresh.lost == 0 and saved_by(fresh, SHAPE, 64) is None
    again = Record(fresh.turn, fresh.hit, None, again=500, retractions=2)
    saved = saved_by(again, SHAPE, 64)
    assert saved is not None and saved["text"].endswith("it was retracted 2 times")


def test_an_evicted_checkpoint_is_really_what_was_missing() -> None:
    """The room that the account asks for does save the worst request."""
    trace = synth(5, 6, scale=0.1)
    worst = report(trace, "arrival", 0.8, explain=1)["explain"]["requests"][0]
    assert worst["saved_by"]["reason"] == "kv_evicted" and worst["hit"] < worst["saved_by"]["depth"]
    after = report(trace, "arrival", 0, explain=worst["request"])["explain"]["requests"][0]
    assert after["hit"] >= worst["saved_by"]["depth"]


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_explain_on_the_command_line(tmp_path: Path) -> None:
    path, out = str(tmp_path / "t.jsonl"), tmp_path / "r.json"
    assert call("trace", "synth", path, "--sessions", "6", "--scale", "0.1").exit_code == 0
    for mode in ("arrival", "timed"):
        got = call("replay", path, "--mode", mode, "--pool", "800MB", "--explain", "2", "--json", str(out))
        assert got.exit_code == 0, got.output
        part = json.loads(out.read_text())["explain"]
        said = lines(part)
        assert len(said) == 2 and all(line in got.stdout.splitlines() for line in said)
        assert "Lost: known, and computed all the same" in got.stdout
    key = part["requests"][0]["request"]
    got = call("replay", path, "--pool", "0", "--explain", key)
    assert f"{key} at " in got.stdout
    got = call("replay", path, "--explain", "nobody#1")
    assert (got.exit_code, got.stdout) == (2, "") and "no request 'nobody#1' in t.jsonl; its first is" in got.stderr
    assert call("replay", path, "--explain", "0").exit_code == 2
    with pytest.raises(BadOption, match="explain must be >= 1"):
        ReplayOptions(explain=0)
