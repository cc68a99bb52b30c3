"""Recordings: what an executor was told and what it answered, in order, as a stream.

    Recorder(executor, Writer(file))    an executor that writes everything down on its way
    read(file)                          the records again, one at a time

A recording is a stream of msgpack binaries, each a msgpack map whose key `_` names what it is: `Layout`, `Plan`,
`Result` (both as `k3mem.plan.to_bytes` has them) or `Failure`. Anything with `put` can take records, so a judge can
listen while a world runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, BinaryIO, Literal, Protocol

import msgspec

from k3mem.errors import Effect, InvalidShape, K3MemError, StepFailed
from k3mem.executor import Capabilities, Executor, Layout, Ticket
from k3mem.plan import Plan, Result, from_bytes, to_bytes

HEAD = 5
"""Bytes before a record: msgpack's mark of a long binary, then its length, big-endian."""
BINARY = 0xC6
MOST_BYTES = 1 << 30
"""Largest record that is believed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that did not complete, and with it (at collect) all that were launched after it."""

    step: int
    at: Literal["launch", "collect"]
    effect: Effect


Record = Layout | Plan | Result | Failure
"""Layout: attached. Plan: on its way to `launch`. Result: collected, for the oldest plan that has none yet. Failure at
launch: of the newest plan; at collect: of the oldest open one and of all after it."""


class Sink(Protocol):
    """Whatever takes records."""

    def put(self, record: Record) -> None: ...


class BadRecording(K3MemError, ValueError):
    """A stream that is no recording, is cut short, or holds records in an order that no executor can show."""


class Recorder:
    """An executor around another: everything passes through, and every sink is told. Holds nothing but the numbers of
    steps in flight."""

    def __init__(self, executor: Executor, *sinks: Sink) -> None:
        self._inner, self._sinks = executor, sinks
        self._steps: deque[int] = deque()

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def attach(self, layout: Layout) -> None:
        self._steps.clear()
        self._tell(layout)
        self._inner.attach(layout)

    def launch(self, plan: Plan) -> Ticket:
        self._tell(plan)
        try:
            ticket = self._inner.launch(plan)
        except StepFailed as e:
            self._tell(Failure(plan.step, "launch", e.effect))
            raise
        self._steps.append(plan.step)
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        try:
            result = self._inner.collect(ticket)
        except StepFailed as e:
            if self._steps:
                self._tell(Failure(self._steps[0], "collect", e.effect))
            self._steps.clear()
            raise
        self._steps.popleft()
        self._tell(result)
        return result

    def _tell(self, record: Record) -> None:
        for sink in self._sinks:
            sink.put(record)

    def __getattr__(self, name: str) -> Any:
        """What the protocol does not know (`fast_forward`, `sleep`, a mock's `violations`)."""
        return getattr(self._inner, name)


class Writer:
    """A sink that writes a recording to a file of its own, or to an open binary one."""

    def __init__(self, file: str | PathLike[str] | BinaryIO) -> None:
        self._own = isinstance(file, (str, PathLike))
        self._out: BinaryIO = open(file, "wb") if isinstance(file, (str, PathLike)) else file  # noqa: SIM115 - see close

    def put(self, record: Record) -> None:
        data = pack(record)
        self._out.write(bytes([BINARY]) + len(data).to_bytes(HEAD - 1, "big") + data)

    def close(self) -> None:
        """Close the file, if it is its own."""
        if self._own:
            self._out.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(record: Record) -> bytes:
    """One record as bytes. O(size)."""
    if isinstance(record, (Plan, Result)):
        return to_bytes(record)
    return msgspec.msgpack.encode({**asdict(record), "_": type(record).__name__})


def unpack(data: bytes) -> Record:
    """Inverse of `pack`. Raises msgspec.DecodeError, msgspec.ValidationError, ValueError or TypeError."""
    raw = msgspec.msgpack.decode(data)
    kind = raw.pop("_", None) if isinstance(raw, dict) else None
    if kind == "Layout":
        return msgspec.convert(raw, Layout)
    if kind == "Failure":
        return msgspec.convert(raw, Failure)
    return from_bytes(data)


def read(file: str | PathLike[str] | BinaryIO) -> Iterator[Record]:
    """The records of a recording, one in memory at a time. Raises BadRecording naming file and record."""
    with ExitStack() as stack:
        own = isinstance(file, (str, PathLike))
        source: BinaryIO = stack.enter_context(open(file, "rb")) if isinstance(file, (str, PathLike)) else file
        name = str(file) if own else getattr(source, "name", "recording")
        number = 0
        while head := source.read(HEAD):
            number += 1
            where = f"{name}: record {number}"
            size = int.from_bytes(head[1:], "big")
            if len(head) < HEAD or head[0] != BINARY or size > MOST_BYTES:
                raise BadRecording(f"{where}: no record begins here; is this a recording?")
            data = source.read(size)
            if len(data) < size:
                raise BadRecording(f"{where}: cut short, {len(data)} of {size} bytes")
            try:
                yield unpack(data)
            except (msgspec.MsgspecError, InvalidShape, ValueError, TypeError, KeyError, AttributeError) as e:
                raise BadRecording(f"{where}: {e}") from e
