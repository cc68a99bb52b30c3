"""Traces as turns: which tokens each request had, when it came, and what its stream did next.

A trace names tokens by blocks. Equal blocks have equal tokens and different blocks differ in their first token, so a
prefix cache sees exactly the sharing that the file states:

      0                          grid_known            shown  input        input + output
      |-- whole blocks ---------------|-- tail -----------|------|-- output ----|
      |<------------- ids some row shows (`known`) ------------------->|<- own ->|

What lies past the last whole block of a turn is what the next row of the same stream shows there, provided that it
keeps all whole blocks of this turn; what no row shows gets one id of the turn's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from k3mem.errors import K3MemError
from k3mem.types import Int32

Tokenizer = Callable[[str], Sequence[int]]


class BadTrace(K3MemError, ValueError):
    """A file that is no trace, or a line of it that is wrong. `line` counts from 1; 0 means the file as a whole."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class Turn:
    """One request of a trace. Lengths in tokens, times in seconds. Made by loaders only; immutable by convention."""

    __slots__ = (
        "index", "key", "session", "stream", "n", "arrival", "think", "api", "input", "output", "stop", "parent",
        "keep", "grid_known", "shown", "_ids", "_known", "_tail", "_own", "_block", "_reply",
    )  # fmt: skip

    index: int
    """Position in `Trace.turns`, which is file order."""
    key: str
    """Unique in the trace: stream, "#", ordinal in the stream."""
    session: str
    stream: str
    """Session, "/", sub-agent (0 is the main stream)."""
    n: int
    """The file's own number of this turn in its stream."""
    arrival: float | None
    """On a clock common to the whole trace; None where the file has none."""
    think: float
    """Client time between the previous response of the stream and this request; 0.0 where unknown."""
    api: float | None
    """Server time that the file recorded for this request."""
    input: int
    output: int
    stop: str
    """Why the answer ended, in the file's own word; empty where unknown."""
    parent: int | None
    """Sub-agents: index of the main stream's turn after which this stream was spawned."""
    keep: int
    """Leading whole blocks shared with the previous turn of the stream; 0 for the first."""
    grid_known: int
    """Prompt tokens in whole blocks."""
    shown: int
    """Leading prompt tokens whose ids some row shows; grid_known <= shown <= input."""
    _ids: Int32
    _known: int
    _tail: int
    _own: int
    _block: int
    _reply: Int32 | None

    @property
    def sub(self) -> str:
        """The stream's name within its session."""
        return self.stream[len(self.session) + 1 :]

    @property
    def blocks(self) -> Int32:
        """Int32[grid_known // block], read-only: ids of the prompt's whole blocks. O(1)."""
        return self._ids[: self.grid_known // self._block]

    @property
    def tail(self) -> int | None:
        """Id that the row itself gives for the partial block at the prompt's end, or None."""
        return None if self._tail == self._own else self._tail

    def prompt(self) -> Int32:
        """Int32[input] token ids, possibly a read-only view of shared memory. O(input), about a memcpy."""
        known = min(self._known, self.input)
        if self._block == 1 and known == self.input:
            return self._ids[: self.input]
        out = np.empty(self.input, np.int32)
        self._spell(out, 0, known)
        out[known:] = self._tail
        return out

    def reply(self) -> Int32:
        """Int32[output] token ids. O(output)."""
        if self._reply is not None:
            return self._reply
        out = np.empty(self.output, np.int32)
        known = max(0, min(self._known - self.input, self.output))
        self._spell(out, self.input, known)
        out[known:] = self._own
        return out

    def _spell(self, out: Int32, start: int, count: int) -> None:
        """Write the tokens at positions start .. start + count - 1, all known, to the head of `out`."""
        block, ids = self._block, self._ids
        lead = min(-start % block, count)
        if lead:
            out[:lead] = ids[start // block]
        first = (start + lead) // block
        whole, rest = divmod(count - lead, block)
        if whole:
            out[lead : lead + whole * block].reshape(whole, block)[...] = ids[first : first + whole, None]
        if rest:
            out[count - rest : count] = ids[first + whole]

    def __repr__(self) -> str:
        return f"Turn({self.index}, {self.key!r}, input={self.input}, output={self.output}, arrival={self.arrival})"


@dataclass(eq=False)
class Trace:
    """Turns in file order, and what is true of all of them."""

    name: str
    format: str
    turns: list[Turn]
    block: int
    """Tokens a block; 1 where the file gives token ids."""
    tokens: int
    """Every id of every prompt and reply is below this."""
    streams: dict[str, list[int]]
    """Turn indexes of each stream, in its order; streams in the order of their first turn."""
    has_sessions: bool
    """Turns of one stream follow each other; False: every request stands alone."""
    has_arrivals: bool
    """Every turn has an `arrival`."""
    problems: list[BadTrace] = field(default_factory=list)
    """One entry for each line dropped under `skip_bad`."""

    @property
    def skipped(self) -> int:
        """Lines dropped under `skip_bad`, those dropped because they depend on a bad one included."""
        return len(self.problems)

    def in_arrival_order(self) -> list[Turn]:
        """Turns by arrival, ties in file order; file order where the trace has no arrivals. O(n log n)."""
        if not self.has_arrivals:
            return list(self.turns)
        return sorted(self.turns, key=lambda turn: (turn.arrival, turn.index))

    def summary(self) -> dict[str, Any]:
        """Counts, token sums, and p50 / p99 of input, output (tokens) and think (s, turns that have one)."""
        turns = self.turns
        out: dict[str, Any] = {
            "name": self.name,
            "format": self.format,
            "turns": len(turns),
            "sessions": len({turn.session for turn in turns}),
            "streams": len(self.streams),
            "skipped": self.skipped,
            "input_tokens": sum(turn.input for turn in turns),
            "output_tokens": sum(turn.output for turn in turns),
        }
        columns: dict[str, list[float]] = {
            "input": [turn.input for turn in turns],
            "output": [turn.output for turn in turns],
            "think": [turn.think for turn in turns if turn.think > 0],
        }
        for column, values in columns.items():
            for q in (50, 99):
                out[f"{column}_p{q}"] = float(np.percentile(values, q)) if values else 0.0
        return out


def load(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    skip_bad: bool = False,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
    block: int | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Read one trace from one file or several of one format, plain or gzip; the format is told from the content.

    skip_bad: drop malformed lines, and rows that depend on them, into `Trace.problems`, instead of raising.
    tokenizer: for text without ids: path of a Hugging Face tokenizer.json (needs `tokenizers`), or str -> ids.
    block: tokens a block, for formats that do not state it (Mooncake: 512, Bailian: 16 unless given).
    limit: stop after this many turns. progress: called with the number of turns read, every 1,000.
    Raises BadTrace. O(bytes); memory is 4 bytes for each block that a row adds to its stream, not for each token.
    """
    from k3mem.replay.formats import read  # the formats build the records above

    return read(paths, skip_bad=skip_bad, tokenizer=tokenizer, block=block, limit=limit, progress=progress)
