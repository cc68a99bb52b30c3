"""What every format shares: how it is told, how its lines are read, how a wrong one is reported."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, TypeVar, cast

import msgspec

from k3mem.replay.trace import BadTrace, Tokenizer

T = TypeVar("T")

HEAD_LINES = 50
"""Lines among which the first well-formed one tells the format."""


class Reject(Exception):
    """A row is wrong; the message says why. Readers turn it into `Source.bad`."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format: `matches(first record)` tells it, `read(source, builder)` adds its turns."""

    name: str
    fields: str
    """What a record of it looks like, for the message when nothing matches."""
    matches: Callable[[dict[str, Any]], bool]
    read: Callable[[Any, Any], None]
    block: int
    """Tokens a block unless the file or the caller says otherwise."""
    block_field: str = "block"
    """Where the first record may state it."""
    sessions: Callable[[dict[str, Any]], bool] = lambda head: True
    """Whether turns of one stream follow each other, told from the first record."""
    wall_clock: bool = False
    """Arrivals are dates: they are counted from the trace's first."""


class Source:
    """One file: its lines, and the policy for bad ones."""

    def __init__(self, path: str | os.PathLike[str], *, skip_bad: bool, tokenizer: Tokenizer | None = None) -> None:
        self.path = os.fspath(path)
        self.skip_bad = skip_bad
        self.tokenizer = tokenizer
        self.problems: list[BadTrace] = []
        self._whole = False

    def bad(self, line: int, reason: str) -> None:
        """Raise BadTrace, or count it under `skip_bad`."""
        problem = BadTrace(self.path, line, reason)
        if not self.skip_bad:
            raise problem
        self.problems.append(problem)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Non-empty lines with their numbers from 1; the whole file as line 1 if it is one JSON document."""
        number = 0
        try:
            with self._open() as file:
                if self._whole:
                    yield 1, file.read()
                    return
                for number, line in enumerate(file, 1):
                    if number == 1:
                        line = line.removeprefix(b"\xef\xbb\xbf")
                    if line.strip():
                        yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.bad(number + 1, f"damaged gzip stream: {error}")
        except OSError as error:
            raise BadTrace(self.path, 0, error.strerror or str(error)) from error

    def rows(self, kind: type[T]) -> Iterator[tuple[int, T]]:
        """Lines decoded as `kind`; malformed ones go to `bad`."""
        decoder = msgspec.json.Decoder(kind)
        for number, line in self.lines():
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self.bad(number, str(error))
                continue
            yield number, row

    def head(self) -> dict[str, Any]:
        """The first well-formed JSON object, which tells the format. Raises BadTrace if there is none."""
        try:
            return self._head()
        finally:
            self.problems.clear()  # the reader meets them again

    def _head(self) -> dict[str, Any]:
        first, reason = b"", "empty file"
        for _, line in islice(self.lines(), HEAD_LINES):
            record, why = as_object(line)
            if record is not None:
                return record
            if not first:
                first, reason = line, why
        if first.lstrip()[:1] in (b"{", b"["):
            self._whole = True
            for _, text in self.lines():
                record, _ = as_object(text)
                if record is not None:
                    return record
            self._whole = False
        if first.startswith(b"TIMESTAMP,ContextTokens"):
            reason = ("an Azure CSV gives lengths and times but no token or block ids, "
                      "so it says nothing about prefixes; convert it to a format that has ids")
        raise BadTrace(self.path, 1 if first else 0, reason)

    def _open(self) -> IO[bytes]:
        with open(self.path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        return cast("IO[bytes]", gzip.open(self.path, "rb")) if zipped else open(self.path, "rb")


def as_object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """A line's JSON object, or None and why it is none."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, str(error)
    if isinstance(record, dict):
        return record, ""
    return None, f"expected a JSON object, got {type(record).__name__}"


def seconds(milliseconds: float | None) -> float | None:
    """ms -> s, None stays None."""
    return None if milliseconds is None else milliseconds / 1000
