"""Traces out to files: token ids, `arrivals` delta rows, Mooncake."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from typing import IO, Any, Literal, cast

import msgspec
import numpy as np

from k3mem.replay.trace import Trace, Turn
from k3mem.types import Int32

FileFormat = Literal["tokens", "arrivals", "mooncake"]


def convert(trace: Trace, out_path: str | os.PathLike[str], format: FileFormat, *, block: int | None = None) -> None:
    """Write a trace; gzip if the name ends in .gz. The same trace gives the same bytes.

    `tokens`: every prompt and reply as ids: exact for any trace, large (the sum of all lengths).
    `arrivals`: what each row adds to its stream: exact for block formats. Raises ValueError for token-id traces.
    `mooncake`: hash ids of `block` tokens (default 512): exact if the trace came from Mooncake of that block, else it
    keeps sharing to whole blocks and forgets sessions, think times and replies.
    """
    if format == "tokens":
        rows = _tokens(trace)
    elif format == "arrivals":
        if trace.block == 1:
            raise ValueError(f"{trace.name}: a token-id trace has no blocks to write; convert to tokens or mooncake")
        rows = _arrivals(trace)
    elif format == "mooncake":
        rows = _mooncake(trace, 512 if block is None else block)
    else:
        raise ValueError(f"unknown format {format!r}: tokens, arrivals or mooncake")
    encoder = msgspec.json.Encoder()
    with _create(os.fspath(out_path)) as file:
        for row in rows:
            file.write(encoder.encode(row) + b"\n")


def runs(ids: Int32) -> list[list[int]]:
    """[first, count] of each ascending run of ids. O(len)."""
    if not len(ids):
        return []
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ids) != 1) + 1))
    counts = np.diff(np.concatenate((starts, [len(ids)])))
    return [[int(ids[start]), int(count)] for start, count in zip(starts, counts, strict=True)]


def _create(path: str) -> IO[bytes]:
    if not path.endswith(".gz"):
        return open(path, "wb")
    # No name and no date in the header: equal rows give equal bytes.
    return cast("IO[bytes]", _Zip(path))


class _Zip(gzip.GzipFile):
    def __init__(self, path: str) -> None:
        self._below = open(path, "wb")  # noqa: SIM115  (closed below)
        super().__init__(filename="", mode="wb", fileobj=self._below, mtime=0)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()


def _common(turn: Turn) -> dict[str, Any]:
    facts = {"think": turn.think or None, "api": turn.api, "stop": turn.stop or None}
    return {name: value for name, value in facts.items() if value is not None}


def _tokens(trace: Trace) -> Iterator[dict[str, Any]]:
    for turn in trace.turns:
        row: dict[str, Any] = {} if turn.arrival is None else {"timestamp": turn.arrival}
        if trace.has_sessions:
            row |= {"session": turn.session, "stream": turn.sub, "n": turn.n}
        yield row | _common(turn) | {"prompt": turn.prompt().tolist(), "output": turn.reply().tolist()}


def _arrivals(trace: Trace) -> Iterator[dict[str, Any]]:
    header = {"arrivals": 1, "block": trace.block, "clock": "s", "id_scope": "global", "order": "file"}
    yield header if trace.has_sessions else header | {"sessions": 0}
    for turn in trace.turns:
        row: dict[str, Any] = {} if turn.arrival is None else {"t": turn.arrival}
        row |= {"s": turn.session, "st": int(turn.sub), "n": turn.n, "in": turn.input, "out": turn.output}
        if turn.parent is not None:
            row["pt"] = trace.turns[turn.parent].n
        row |= _common(turn) | {"keep": turn.keep, "new": runs(turn.blocks[turn.keep :])}
        yield row if turn.tail is None else row | {"tail": turn.tail}


def _mooncake(trace: Trace, block: int) -> Iterator[dict[str, Any]]:
    if block < 1:
        raise ValueError(f"block must be 1 or more tokens, got {block}")
    chain: dict[tuple[int, bytes], int] = {}
    for turn in trace.turns:
        row: dict[str, Any] = {} if turn.arrival is None else {"timestamp": _milliseconds(turn.arrival)}
        prompt, ids, above = turn.prompt(), [], -1
        for start in range(0, turn.input, block):
            above = chain.setdefault((above, prompt[start : start + block].tobytes()), len(chain))
            ids.append(above)
        yield row | {"input_length": turn.input, "output_length": turn.output, "hash_ids": ids}


def _milliseconds(seconds: float) -> int | float:
    value = round(seconds * 1000, 6)
    return int(value) if value == int(value) else value
