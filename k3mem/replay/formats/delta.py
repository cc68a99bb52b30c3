"""Rows that say what they add to the previous row of their stream: shared by `arrivals`, `k3trace` and Weka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec

from k3mem.replay.formats.base import Reject, Source, as_object
from k3mem.replay.formats.build import Builder, Facts

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Row(msgspec.Struct, kw_only=True):
    """Fields that all delta formats share. A run [first, count] with a negative first counts down."""

    s: str | int
    n: Count
    in_: Count = msgspec.field(name="in")
    out: Count
    new: list[tuple[int, Count]]
    st: Count = 0
    pt: Count | None = None
    stop: str | None = None
    api: Seconds | None = None
    think: Seconds | None = None
    tail: int | None = None
    """Id of the partial block at the prompt's end (an extension; the real files have none)."""


class _Who(msgspec.Struct):
    s: str | int
    st: Count = 0


def runs(new: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The ids of runs."""
    for first, count in new:
        yield from range(first, first + count) if first >= 0 else range(first, first - count, -1)


class Chains:
    """Which streams can still be followed: after a bad row its stream's rows mean nothing until one keeps nothing."""

    def __init__(self, source: Source, builder: Builder) -> None:
        self.source = source
        self.builder = builder
        self._broken: dict[tuple[str, int], int] = {}
        self._lost = 0
        """Line of the last bad row of which not even the stream could be read."""

    def lose(self, number: int, line: bytes) -> None:
        """The row of this line was dropped."""
        try:
            who = msgspec.json.decode(line, type=_Who)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._lost = number
        else:
            self._broken[str(who.s), who.st] = number

    def why_not(self, row: Row, keep: int) -> str | None:
        """Why a row that keeps blocks of its stream's last row cannot be used; None if it can."""
        stream = str(row.s), row.st
        if keep == 0:
            self._broken.pop(stream, None)
            return None
        at = self._broken.get(stream)
        if at is None and self._lost:
            last = self.builder.last(*stream)
            if last is None or row.n != last.n + 1:
                at = self._broken[stream] = self._lost
        return f"depends on the bad row of line {at}" if at is not None else None


def read_rows(source: Source, builder: Builder, kind: type[Any], keep_of: Callable[[Any], int], *,
              header: bool, intern: Callable[[Any, int], list[int]], facts: Callable[[Any], Facts]) -> None:
    """Add all rows of a file. keep_of: the row's kept blocks; intern(row, keep): dense ids of its new blocks.

    header: the first well-formed line is no row.
    """
    decoder = msgspec.json.Decoder(kind)
    chains = Chains(source, builder)
    for number, line in source.lines():
        if header:
            record, reason = as_object(line)
            header = record is None
            if header:
                source.bad(number, reason)
            continue
        try:
            row = decoder.decode(line)
            keep = keep_of(row)
            if why := chains.why_not(row, keep):
                raise Reject(why)
            _check(row, keep, builder)
            builder.add(str(row.s), row.st, row.in_, row.out, keep, intern(row, keep), facts(row),
                        tail=_tail(row, builder))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Reject) as error:
            source.bad(number, str(error))
            chains.lose(number, line)


def _check(row: Row, keep: int, builder: Builder) -> None:
    """All that must hold before a run is spelled out: a wrong count must not cost memory."""
    builder.check(row.in_, row.out)
    before = builder.length(str(row.s), row.st) or 0
    if keep > before:
        raise Reject(f"keeps {keep} blocks, but the previous row of its stream has {before}")
    blocks, whole = keep + sum(count for _, count in row.new), row.in_ // builder.block
    if blocks != whole:
        raise Reject(f"keep and new give {blocks} blocks, but {row.in_} tokens have {whole} of {builder.block}")


def _tail(row: Row, builder: Builder) -> int | None:
    if row.tail is None:
        return None
    if row.in_ % builder.block == 0:
        raise Reject(f"tail, but {row.in_} tokens end with a whole block")
    return builder.intern(None, [row.tail])[0]
