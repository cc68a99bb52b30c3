"""Reports and the collector that feeds them: definitions, saturation, sums."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from k3mem.metrics import Metrics
from k3mem.pool import Arena
from k3mem.radix import Kind
from k3mem.replay import report
from k3mem.replay.arrival import pool_bytes
from k3mem.replay.metrics import Times, memory_stats
from k3mem.replay.options import BadOption, ReplayOptions
from k3mem.shape import Shape


def stats(**changes: Any) -> dict[str, Any]:
    return {"requests": 2, "input_tokens": 1000, "hit_tokens": 640, "unavoidable_tokens": 300,
            "causes": {"never_seen": 300, "no_state": 58, "last_token": 2}, **changes}


def text_of(data: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=120)
    for table in report.tables(data):
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_rates_and_causes() -> None:
    got = report.build(stats())
    assert (got["hit_rate"], got["recomputed_tokens"], got["amplification"]) == (0.64, 360, 1.2)
    assert got["causes"] == {"never_seen": 300, "no_state": 58, "kv_evicted": 0, "off_grid": 0, "other_scope": 0,
                             "last_token": 2}
    assert set(got) >= {"requests", "unavoidable_tokens", "checkpoints", "moves", "retractions", "rejected",
                        "overlapped_share", "peak_running", "wall_seconds", "answer_end_hit_share"}
    assert "ttft" not in got
    assert json.loads(report.to_json(got)) == got


def test_causes_must_add_up() -> None:
    with pytest.raises(ValueError, match="causes explain 359 tokens, 360 were computed"):
        report.build(stats(causes={"never_seen": 359}))
    with pytest.raises(ValueError, match="unknown causes of misses: bad_luck"):
        report.build(stats(causes={"bad_luck": 360}))


def test_empty_replay_has_no_rates() -> None:
    got = report.build({"requests": 0, "input_tokens": 0, "hit_tokens": 0})
    assert (got["hit_rate"], got["amplification"]) == (0.0, None)
    assert "0.00%" in text_of(got)


def test_the_header_says_what_was_asked_for() -> None:
    asked = {"trace": "x.jsonl", "shape": "kimi-k3-tp8", "mode": "arrival", "pool_bytes": 0, "split": None,
             "policy": "lru"}
    assert report.header(report.build(stats(**asked))) == (
        "trace x.jsonl | shape kimi-k3-tp8 | mode arrival | pool unlimited | split none | policy lru")
    asked |= {"mode": "timed", "loop": "open", "pool_bytes": 80 * 10**9, "split": 0.25}
    got = report.build(memory_stats(counted()) | timed().stats() | asked)
    assert report.header(got) == ("trace x.jsonl | shape kimi-k3-tp8 | mode timed, open loop | pool 80 GB | "
                                  "split 0.25 for states | policy lru")


def test_arrival_mode_leaves_out_what_only_running_requests_have() -> None:
    only_timed = ("hits from answer ends", "overlapped", "peak running", "retractions")
    arrival, other = (text_of(report.build(memory_stats(counted()) | {"mode": mode})) for mode in ("arrival", "timed"))
    assert not any(name in arrival for name in only_timed)
    assert all(name in other for name in only_timed)


def test_sessions_are_reported_with_how_long_they_were_held() -> None:
    held = {"held": 3, "overdue": 1, "suspended": 2, "bound": 1800.0, "wait": [1.0, 2.0, 1801.0]}
    base = memory_stats(counted()) | timed().stats() | {"mode": "timed", "loop": "closed"}
    got = report.build(base | {"sessions": [10.0, 30.0], "admission": held, "admission_mode": "on"})
    assert (got["session_completion"]["p50"], got["session_completion"]["count"]) == (20.0, 2)
    assert (got["admission"]["wait"]["p50"], got["admission"]["wait"]["max"]) == (2.0, 1801.0)
    assert json.loads(report.to_json(got)) == got
    text = text_of(got)
    assert "completion" in text and "3 requests held" in text and "1,800 s" in text
    assert "output tokens per virtual second" in text and "admission on" in report.header(got)
    off = text_of(report.build(base | {"sessions": [10.0], "admission": {}}))
    assert "completion" in off and "held" not in off
    assert "Sessions" not in text_of(report.build(base | {"sessions": [], "admission": {}}))


def test_skipped_snapshots_are_shown() -> None:
    (line,) = (line for line in text_of(report.build(stats(checkpoints={"skipped": 1234}))).splitlines()
               if "snapshots skipped" in line)
    assert "1,234" in line


def test_further_keys_pass_through() -> None:
    got = report.build(stats(trace="x.jsonl", pages=np.int64(7)))
    assert got["trace"] == "x.jsonl"
    assert json.loads(report.to_json(got))["pages"] == 7


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_json_refuses_what_is_no_number(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        report.to_json({"x": value})


def test_distribution_interpolates() -> None:
    got = report.distribution([float(n) for n in range(1, 102)])
    assert got == {"count": 101, "mean": 51.0, "p50": 51.0, "p90": 91.0, "p95": 96.0, "p99": 100.0, "min": 1.0,
                   "max": 101.0}
    assert report.distribution([])["p50"] is None
    assert report.distribution([])["count"] == 0


def test_mean_over_a_step_function() -> None:
    t, v = np.array([1.0, 2.0, 4.0]), np.array([3.0, 0.0, 6.0])
    assert report.mean_over(t, v, 0.0, 5.0) == pytest.approx((3 + 6) / 5)
    assert report.mean_over(t, v, 1.5, 2.5) == pytest.approx(1.5)
    assert report.mean_over(t, v, 4.0, 6.0) == pytest.approx(6.0)
    assert report.mean_over(t, v, 6.0, 8.0) == pytest.approx(6.0)
    assert report.mean_over(t, v, 2.0, 2.0) == 0.0


def test_saturation_open_loop_is_a_growing_queue() -> None:
    t = np.arange(0.0, 90.0)
    assert report.saturated_open(t, t, 0.0, 90.0)
    assert not report.saturated_open(t, np.full(90, 50.0), 0.0, 90.0)
    assert not report.saturated_open(t, np.minimum(t, 30.0), 0.0, 90.0)
    assert not report.saturated_open(t, t % 2, 0.0, 90.0)


def test_saturation_closed_loop_is_full_most_of_the_time() -> None:
    t, running = np.array([0.0, 4.0]), np.array([8.0, 7.0])
    waiting = np.array([1.0, 1.0])
    assert report.saturated_closed(t, running, waiting, 0.0, 7.0, 8)
    assert not report.saturated_closed(t, running, waiting, 0.0, 9.0, 8)
    assert not report.saturated_closed(t, running, np.zeros(2), 0.0, 7.0, 8)


def test_gap_closed() -> None:
    assert report.gap_closed(0.6, 0.5, 0.9) == pytest.approx(0.25)
    assert report.gap_closed(0.6, 0.5, 0.5) is None


def counted() -> Metrics:
    m = Metrics(requests=2, input_tokens=150, hit_tokens=64, hits=1, consumed=1, output_tokens=6, evicted_unused=1,
                move_count=3, move_bytes=300, retractions=1, rejected=1, resumed_tokens=37, steps=4, overlapped=3,
                peak_running=1)
    m.hits_by_kind[Kind.ANSWER_END] = 1
    m.causes.update({"never_seen": 85, "last_token": 1})
    m.created["prompt_end"] = 2
    return m


def timed() -> Times:
    t = Times()
    t.on_submit("a", 1.0)
    t.on_queue(1.0, 0, 1)
    t.on_queue(1.0, 1, 0)
    t.on_queue(1.5, 1, 0)
    t.on_first("a", 3.0)
    t.on_first("a", 4.0)
    t.on_finish("a", 5.0, 5)
    t.on_submit("b", 2.0)
    t.on_first("b", 6.0)
    t.on_finish("b", 6.0, 1)
    return t


def test_counters_and_times_follow_the_definitions() -> None:
    got = report.build(memory_stats(counted()) | timed().stats() | {"cost": {"name": "n", "hash": "h"}})
    assert (got["requests"], got["rejected"], got["retractions"]) == (2, 1, 1)
    assert (got["input_tokens"], got["hit_tokens"], got["again_tokens"], got["output_tokens"]) == (150, 64, 37, 6)
    assert (got["unavoidable_tokens"], got["amplification"]) == (85, 86 / 85)
    assert got["ttft"]["count"] == got["latency"]["count"] == 2
    assert (got["ttft"]["min"], got["ttft"]["max"]) == (2.0, 4.0)
    assert (got["latency"]["min"], got["latency"]["max"]) == (4.0, 4.0)
    assert (got["itl"]["count"], got["itl"]["mean"]) == (1, 0.5)
    assert got["checkpoints"]["created"] == {"prompt_end": 2}
    assert (got["checkpoints"]["consumed"], got["checkpoints"]["evicted_unused"]) == (1, 1)
    assert got["moves"] == {"count": 3, "bytes": 300}
    assert (got["overlapped_share"], got["answer_end_hit_share"], got["peak_running"]) == (0.75, 1.0, 1)
    assert (got["virtual_seconds"], got["requests_per_second"]) == (5.0, 0.4)
    assert got["saturated"] is False
    text = text_of(got)
    assert "64 (42.67%)" in text
    assert "3,000.00" in text
    assert "cost model n h" in text
    assert "SATURATED" not in text


def test_queue_keeps_changes_only() -> None:
    t = timed()
    assert t.queue_t.tolist() == [1.0]
    assert (t.queue_running.tolist(), t.queue_waiting.tolist()) == ([1], [0])


def test_times_refuse_a_request_twice() -> None:
    t = Times()
    t.on_submit(1, 0.0)
    with pytest.raises(ValueError, match="already open"):
        t.on_submit(1, 0.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"mode": "fast"}, "mode"), ({"loop": "half"}, "loop"), ({"concurrency": 0}, "concurrency"),
     ({"gap_cap": -1.0}, "gap cap"), ({"pool_bytes": -1}, "pool"), ({"split": 1.0}, "split"),
     ({"split": 0.5, "pool_bytes": 0}, "limited"), ({"page_tokens": 513}, "page"), ({"limit": 0}, "limit")],
)
def test_bad_options_are_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadOption, match=reason):
        ReplayOptions(**changes)


@pytest.mark.parametrize("split", [None, 0.2, 0.9, 0.999])
def test_the_least_pool_that_an_error_names_is_enough_and_no_byte_less(split: float | None) -> None:
    shape = Shape.kimi_linear_48b()
    with pytest.raises(BadOption) as error:
        ReplayOptions(split=split, pool_bytes=1).check_fit(shape)
    least = int(str(error.value).split()[-1].rstrip("B"))
    if split is not None:  # that one was for one arena
        with pytest.raises(BadOption, match=f"--split {split} leaves") as error:
            ReplayOptions(split=split, pool_bytes=least).check_fit(shape)
        least = int(str(error.value).split()[-1].rstrip("B"))
    options = ReplayOptions(split=split, pool_bytes=least)
    options.check_fit(shape)
    Arena(capacity_bytes=pool_bytes(options, shape), page_bytes=shape.page_bytes, state_bytes=shape.state_bytes,
          align=shape.align, split=split)
    with pytest.raises(BadOption):
        ReplayOptions(split=split, pool_bytes=least - 1).check_fit(shape)
