"""What the pool holds over time: bounded samples, whole bytes, and no figure changed by looking."""

from __future__ import annotations

from typing import Any

import pytest

from k3mem.replay.options import ReplayOptions
from k3mem.replay.report import build, to_json
from k3mem.replay.series import FIRST_INTERVAL, Series
from k3mem.replay.synth import synth
from k3mem.replay.timed import run_timed
from k3mem.shape import Shape

SHAPE = Shape.kimi_k3(tp=8)
POOL = 10**9


def report(**options: Any) -> dict[str, Any]:
    trace = synth(5, 6, scale=0.1)
    chosen: dict[str, Any] = {"concurrency": 6, "pool_bytes": POOL, "gap_cap": 5.0, "limit": 200, **options}
    out = build(run_timed(trace, SHAPE, ReplayOptions(mode="timed", **chosen), lambda done, total: None))
    out.pop("wall_seconds")
    return out


def test_samples_are_bounded_and_spread_over_all_of_the_run() -> None:
    series = Series(32)
    asked = 0
    for step in range(20_000):
        now = step * 0.01 if step < 15_000 else 150 + (step - 15_000) * 0.3
        if now >= series.due:
            series.add(now, {"x": step, "none": 0})
            asked += 1
    found = series.stats()
    assert 16 <= len(found["t"]) <= 32 and asked < 32 * 20
    gaps = [b - a for a, b in zip(found["t"], found["t"][1:], strict=False)]
    assert max(gaps) < 2 * found["interval"] + 0.3
    assert found["t"][0] == 0 and found["t"][-1] > 1500
    assert list(found["bytes"]) == ["x"], "what is nothing throughout is left out"
    assert found["interval"] / FIRST_INTERVAL == 2 ** round(found["interval"] / FIRST_INTERVAL).bit_length() / 2


def test_where_little_happens_samples_are_kept() -> None:
    series = Series(8)
    for now in [*(i / 64 for i in range(7)), 1000.0, 2000.0, 3000.0]:
        series.add(now, {"x": 1})
    assert series.stats()["t"][-3:] == [1000.0, 2000.0, 3000.0]


def test_every_byte_of_the_pool_is_in_one_band() -> None:
    found = report(series=64)["series"]
    total = {sum(sizes) for sizes in zip(*found["bytes"].values(), strict=True)}
    assert total == {(POOL + SHAPE.page_bytes + SHAPE.state_bytes)}
    assert 2 < len(found["t"]) <= 64
    names = set(found["bytes"])
    assert {"kv pages", "working states", "free", "state: prompt_end", "state: answer_end"} <= names
    assert all(len(sizes) == len(found["t"]) and min(sizes) >= 0 for sizes in found["bytes"].values())


def test_looking_changes_no_figure() -> None:
    plain, sampled = report(), report(series=16)
    assert "series" not in plain and len(sampled.pop("series")["t"]) <= 16
    assert to_json(plain) == to_json(sampled)


def test_one_sample_is_no_series() -> None:
    with pytest.raises(ValueError, match="series must be 0 or >= 2 samples, got 1"):
        ReplayOptions(series=1)
