"""`k3mem bound`, and `k3mem replay --bound`: figures side by side, in tables and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from k3mem.cli import app
from k3mem.replay.bound import against_bound
from k3mem.replay.options import ReplayOptions
from k3mem.replay.synth import synth
from k3mem.shape import Shape


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = str(tmp_path / "t.jsonl")
    assert call("trace", "synth", path, "--sessions", "10", "--scale", "0.2").exit_code == 0
    return path


def test_bound_reports_the_bound_and_a_schedule(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    got = call("bound", trace, "--pool", "2GB", "--json", str(out))
    assert got.exit_code == 0, got.output
    data = json.loads(out.read_text())
    assert 0 < data["feasible_tokens"] <= data["bound_tokens"] < data["unlimited_tokens"] < data["input_tokens"]
    assert data["bound_hit_rate"] == data["bound_tokens"] / data["input_tokens"]
    assert (data["trace"], data["shape"], data["pool_bytes"]) == ("t.jsonl", "kimi-k3-tp8", 2 * 10**9)
    assert f"{data['bound_hit_rate']:.2%}" in got.stdout
    assert "belady_hit_rate" not in data
    alone = call("bound", trace, "--pool", "2GB", "--json", "-")
    assert json.loads(alone.stdout) == data | {"wall_seconds": json.loads(alone.stdout)["wall_seconds"]}


def test_belady_is_below_the_bound_and_above_lru(trace: str) -> None:
    got = call("bound", trace, "--pool", "2GB", "--belady", "--json", "-")
    lru = call("replay", trace, "--pool", "2GB", "--json", "-")
    data = json.loads(got.stdout)
    assert json.loads(lru.stdout)["hit_tokens"] < data["belady_tokens"] <= data["bound_tokens"]


def test_replay_puts_the_bound_beside_its_figures(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    got = call("replay", trace, "--policy", "lru", "--pool", "2GB", "--bound", "--json", str(out))
    assert got.exit_code == 0, got.output
    data = json.loads(out.read_text())
    assert data["lru_hit_rate"] == data["hit_rate"] < data["bound"]["bound_hit_rate"]
    assert data["gap_closed"] == 0
    assert "share of the gap closed" in got.stdout
    assert "Clairvoyant" not in call("replay", trace, "--pool", "2GB").stdout


def test_another_policys_share_is_of_the_gap_between_lru_and_the_bound() -> None:
    trace, shape = synth(1, 10, scale=0.2), Shape.kimi_k3(tp=8)
    options = ReplayOptions(pool_bytes=2 * 10**9, policy="lru")
    lru = against_bound(trace, shape, options, {"hit_tokens": 7, "input_tokens": 10},
                        lambda name: lambda done, total: None)
    assert lru["lru_hit_rate"] == 0.7, "the replay is LRU's own"
    other = against_bound(trace, shape, ReplayOptions(pool_bytes=2 * 10**9, policy="other"),
                          {"hit_tokens": 7, "input_tokens": 10}, lambda name: lambda done, total: None)
    low, high = other["lru_hit_rate"], other["bound"]["bound_hit_rate"]
    assert 0 < low < high < 1 and low != 0.7
    assert other["gap_closed"] == pytest.approx((0.7 - low) / (high - low))


def test_the_bound_is_one_of_arrival_order(trace: str) -> None:
    got = call("replay", trace, "--mode", "timed", "--bound")
    assert got.exit_code == 2 and "needs --mode arrival" in got.stderr
    small = call("bound", trace, "--pool", "1MB")
    assert small.exit_code == 2 and "too small" in small.stderr
