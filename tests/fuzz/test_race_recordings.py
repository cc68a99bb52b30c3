"""Recordings of any executor, in files: the judge reads them back, and names what is no recording."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from k3mem.errors import Effect
from k3mem.fuzz.race import Judge, judge
from k3mem.fuzz.record import BadRecording, Failure, Record, Recorder, Writer, read
from k3mem.fuzz.spoils import page_in_use_is_zeroed
from k3mem.plan import Plan, Result
from k3mem.replay.options import ReplayOptions
from k3mem.replay.synth import synth
from k3mem.replay.timed import TimedReplay
from k3mem.shape import Shape
from tests.fuzz.race_cases import LAYOUT, decodes, scene, seat
from tests.fuzz.spoilt_worlds import Mutant, judged, listening
from tests.fuzz.test_race_mutants import tight
from tests.fuzz.test_record import Kept


def test_a_file_is_judged_as_the_run_was(tmp_path: Path) -> None:
    live = Judge()
    with Writer(tmp_path / "run") as writer, listening(live, writer):
        world = tight(2)
        world.run()
    report = judge(tmp_path / "run")
    assert report.as_dict() == live.finish().as_dict()
    assert report.steps == world.engine.scheduler.core.metrics.steps
    with (tmp_path / "run").open("rb") as file:
        assert judge(file).as_dict() == report.as_dict()


def test_a_race_in_a_file_is_found_as_in_the_run(tmp_path: Path) -> None:
    mutant = Mutant(page_in_use_is_zeroed, first=9)
    with Writer(tmp_path / "run") as writer:
        _, live = judged(lambda: tight(1), mutant, writer)
    report = judge(tmp_path / "run")
    assert report.races == live.races
    assert report.races[0].kind == "lost_write"


@pytest.mark.parametrize("fast_forward", [False, True])
def test_a_replay_on_the_sim_executor_is_clean(fast_forward: bool) -> None:
    """Scripted tokens, and plans that stand for many steps."""
    replay = TimedReplay(synth(5, 6, scale=0.05), Shape.kimi_k3(tp=8), ReplayOptions(
        mode="timed", loop="closed", concurrency=6, pool_bytes=int(0.8e9), gap_cap=0.0, limit=60,
        fast_forward=fast_forward))
    live = Judge()
    replay.engine.executor = Recorder(replay.sim, live)
    replay.engine._attach()
    replay.run(lambda done, total: None)
    report = live.finish()
    assert report.steps == replay.engine.scheduler.core.metrics.steps > 100
    assert not report.races, report.races[0]


def result(step: int) -> Result:
    plan = scene()[1][0].build()
    return Result(step=step, lane=plan.lane, generation=plan.generation, accepted=plan.lane * 0,
                  tokens=plan.tokens[:0], done=plan.kind * 0, written=plan.sample[:0])


@pytest.mark.parametrize(("records", "what"), [
    ([scene()[1][0].build()], "record 1: a plan or a command comes before any layout"),
    ([LAYOUT, result(1)], "record 2: a result of step 1 where none was to come"),
    ([LAYOUT, scene()[1][0].build(), result(2)], "record 3: a result of step 2 where that of step 1"),
    ([LAYOUT, Failure(1, "collect", Effect.UNKNOWN)], "record 2: step 1 fails, and no plan is open"),
])
def test_records_that_no_executor_can_show_are_named(records: list[object], what: str) -> None:
    with pytest.raises(BadRecording, match=what):
        judge(records)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [
    {"start": np.zeros(3, np.int32)}, {"token_offset": np.array([0, 9, 3], np.int32)}, {"repeat": 0},
    {"moves": np.zeros((1, 3), np.int32)}, {"length": np.array([1 << 30, 1], np.int32)},
    {"start": np.array([-1, 0], np.int32)},
])
def test_a_plan_whose_arrays_do_not_fit_is_named(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRecording, match="record 2: plan 1: "):
        judge([LAYOUT, replace(scene()[1][0].build(), **changes)])


def test_lanes_and_ids_outside_the_layout_are_races_not_errors() -> None:
    wild = 2**31 - 1
    host, plans = scene()
    plan = host.plan().add("seats", seat(wild, 1)).add("lane_pages", (wild, 0, 1), (0, wild, 1), (0, -1, 1))
    plan.add("zero_pages", wild, -1).add("zero_states", wild).add("moves", (0, 2, 1, 3), (0, 0, wild, 1))
    plan.add("page_table", (wild, 1), (1, wild)).add("restores", (wild, 1)).add("page_copies", (1, wild, 99))
    plan.decode(wild, 6).decode(0, 6).snapshot(7, wild)
    report = judge([LAYOUT, plans[0].build(), plan.build()])
    assert {"stale_lane", "stale_entry", "foreign_write"} <= set(report.kinds)


@pytest.mark.parametrize("seed", range(100))
def test_no_number_in_a_plan_or_result_breaks_the_judge(seed: int, recorded: list[Record]) -> None:
    rng = Random(seed)
    spoilt, at = list(recorded), rng.randrange(1, len(recorded))
    record = spoilt[at]
    assert isinstance(record, (Plan, Result))
    names = [f.name for f in fields(record) if np.size(getattr(record, f.name)) and f.name not in ("seats", "times")]
    name = rng.choice(names)
    value: Any = getattr(record, name)
    if isinstance(value, np.ndarray):
        value = value.copy()
        info = np.iinfo(value.dtype) if value.dtype.kind in "iu" else None
        value.flat[rng.randrange(value.size)] = rng.choice([0, 1, 7, *([info.min, info.max] if info else [])])
    spoilt[at] = replace(record, **{name: value})
    with suppress(BadRecording):
        judge(spoilt)


@pytest.fixture(scope="module")
def recorded() -> list[Record]:
    kept = Kept()
    with listening(kept):
        tight(2, 25).run()
    return kept.records


def test_attaching_again_forgets_everything() -> None:
    host, plans = scene(lanes=1)
    again = [LAYOUT, plans[0].build(), LAYOUT, decodes(host, lanes=[0]).build()]
    assert set(judge(again).kinds) == {"stale_lane"}  # type: ignore[arg-type]


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    with pytest.raises(BadRecording, match="x: record 1"):
        judge(tmp_path / "x")
    assert not list(read(_empty(tmp_path)))
    assert judge(_empty(tmp_path)).steps == 0


def _empty(folder: Path) -> Path:
    (folder / "empty").write_bytes(b"")
    return folder / "empty"
