"""Token-id JSONL: `prompt` (ids, or text with a tokenizer), `output` or `output_len`, `timestamp` in seconds.

Optional: `session` (or `session_id`), `stream` (default "0"), `n`, `think`, `api`, `stop`. Rows without a session stand
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from k3mem.replay.formats.base import Format, Reject, Source
from k3mem.replay.formats.build import ID_LIMIT, Builder, Facts
from k3mem.replay.trace import Tokenizer
from k3mem.types import Int32

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Row(msgspec.Struct):
    prompt: list[int] | str
    output: list[int] | str | None = None
    output_len: Count | None = None
    timestamp: Seconds | None = None
    session: str | int | None = None
    session_id: str | int | None = None
    stream: str | int = "0"
    n: Count | None = None
    think: Seconds | None = None
    api: Seconds | None = None
    stop: str | None = None


def as_ids(value: Sequence[int] | str, tokenizer: Tokenizer | None, what: str) -> Int32:
    """Token ids as int32. Raises Reject for text without a tokenizer and for ids outside 0 .. 2**31 - 2."""
    if isinstance(value, str):
        if tokenizer is None:
            raise Reject(f"{what} is text: give a tokenizer (a Hugging Face tokenizer.json, or a callable)")
        value = tokenizer(value)
    try:
        ids = np.asarray(value, np.int64).reshape(-1)
    except OverflowError:
        raise Reject(f"{what} has a token id beyond 64 bits") from None
    if len(ids) and (ids.min() < 0 or ids.max() >= ID_LIMIT):
        wrong = ids[(ids < 0) | (ids >= ID_LIMIT)][0]
        raise Reject(f"{what} has token id {wrong}, outside 0 .. {ID_LIMIT - 1}")
    return ids.astype(np.int32)


def _matches(head: dict[str, Any]) -> bool:
    return "prompt" in head


def _read(source: Source, builder: Builder) -> None:
    for number, row in source.rows(Row):
        try:
            prompt = as_ids(row.prompt, source.tokenizer, "prompt")
            reply, length = _output(row, source.tokenizer)
            session, stream = row.session if row.session is not None else row.session_id, str(row.stream)
            if "/" in stream:
                raise Reject(f"stream {stream!r} contains a slash")
            if session is None:
                session, stream = f"row {len(builder.turns)}", "0"
            facts = Facts(n=row.n, arrival=row.timestamp, think=row.think, api=row.api, stop=row.stop, reply=reply)
            builder.check(len(prompt), length)
            builder.reserve(prompt, reply)
            builder.add_whole(str(session), stream, len(prompt), length, prompt, facts)
        except Reject as error:
            source.bad(number, str(error))


def _output(row: Row, tokenizer: Tokenizer | None) -> tuple[Int32 | None, int]:
    if row.output is None:
        if row.output_len is None:
            raise Reject("neither output nor output_len")
        return None, row.output_len
    reply = as_ids(row.output, tokenizer, "output")
    if row.output_len is not None and row.output_len != len(reply):
        raise Reject(f"output_len is {row.output_len}, but output has {len(reply)} ids")
    return reply, len(reply)


FORMAT = Format("tokens", "rows prompt output|output_len timestamp", _matches, _read, block=1,
                sessions=lambda head: head.get("session", head.get("session_id")) is not None)
