"""Recordings: every record comes back as it was, and a broken stream is named by file and record."""

from __future__ import annotations

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3mem.errors import Effect, StepFailed
from k3mem.executor import Executor, Layout
from k3mem.executors.mock import Fault, Faults, MockExecutor
from k3mem.fuzz.record import BadRecording, Failure, Record, Recorder, Writer, read
from k3mem.plan import Plan, Result, Row
from tests.plans import Host, layout_of, small_shape


class Kept:
    """A sink that keeps records."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def put(self, record: Record) -> None:
        self.records.append(record)


def run_two_steps(executor: Executor, layout: Layout) -> None:
    host = Host(layout)
    executor.attach(layout)
    builder = host.plan()
    host.seat(builder, 0, prompt=6, limit=10)
    executor.collect(executor.launch(builder.prefill(0, 0, [1, 2, 3, 4, 5, 6], True).build()))
    executor.collect(executor.launch(host.plan().decode(0, 6).build()))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (Plan, Result)):
        return type(one) is type(other) and all(
            np.array_equal(getattr(one, name), getattr(other, name)) if isinstance(getattr(one, name), np.ndarray)
            else getattr(one, name) == getattr(other, name) for name in type(one).__slots__)
    return bool(one == other)


def recorded(path: Path, *, faults: Faults | None = None) -> list[Record]:
    kept, layout = Kept(), layout_of(small_shape())
    with Writer(path) as writer, suppress(StepFailed):
        run_two_steps(Recorder(MockExecutor(faults=faults), writer, kept), layout)
    return kept.records


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    records = recorded(tmp_path / "a")
    again = list(read(tmp_path / "a"))
    assert [type(r) for r in again] == [Layout, Plan, Result, Plan, Result]
    assert all(same(one, other) for one, other in zip(records, again, strict=True))
    first = again[1]
    assert isinstance(first, Plan)
    assert first.kind.tolist() == [Row.PREFILL]


@pytest.mark.parametrize("at", ["launch", "collect"])
def test_failures_are_recorded_where_they_happen(tmp_path: Path, at: Any) -> None:
    records = recorded(tmp_path / "a", faults=Faults([Fault(2, at, Effect.NO_EFFECT)]))
    assert records[-1] == Failure(2, at, Effect.NO_EFFECT)
    assert list(read(tmp_path / "a"))[-1] == records[-1]


def test_a_failure_at_collect_takes_the_steps_after_it_along() -> None:
    kept, layout = Kept(), layout_of(small_shape())
    executor = Recorder(MockExecutor(faults=Faults([Fault(1, "collect")])), kept)
    executor.attach(layout)
    host = Host(layout)
    tickets = [executor.launch(host.plan().build()) for _ in range(2)]
    with pytest.raises(StepFailed):
        executor.collect(tickets[0])
    executor.collect(executor.launch(host.plan(resync=True).build()))
    assert [type(r).__name__ for r in kept.records] == ["Layout", "Plan", "Plan", "Failure", "Plan", "Result"]


def test_what_the_protocol_does_not_know_passes_through() -> None:
    executor = Recorder(MockExecutor(seed=1))
    assert isinstance(executor, Executor)
    assert executor.violations == []
    assert executor.capabilities == MockExecutor().capabilities


@pytest.mark.parametrize("cut", [1, 4, 6, 40])
def test_a_stream_that_is_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    recorded(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(data[:-cut])
    seen = []
    with pytest.raises(BadRecording, match=r"b: record 5: "):
        for record in read(tmp_path / "b"):
            seen.append(record)
    assert len(seen) == 4


@pytest.mark.parametrize("data", [b"not a recording", b"\xc6\xff\xff\xff\xff", b"\xc6\0\0\0\1\xc0", b"\xc6\0\0\0\2\x81",
                                  b"\xc6\0\0\0\1\x80", b"\xc6\0\0\0\x0a\x81\xa1_\xa6Layout"])
def test_what_is_no_recording_is_named(data: bytes) -> None:
    with pytest.raises(BadRecording, match="recording: record 1: "):
        list(read(io.BytesIO(data)))
