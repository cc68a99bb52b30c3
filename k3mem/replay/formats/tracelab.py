"""TraceLab rounds: lengths, and how many leading tokens the provider's cache served; no ids.

The served prefix is taken as all that a round shares with the round before it (prompt and output) of its session: a
lower bound, since a provider's cache also forgets. Sessions share nothing, since nothing says which would.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import numpy as np

from k3mem.replay.formats.base import Format, Reject, Source
from k3mem.replay.formats.build import Builder, Facts

Count = Annotated[int, msgspec.Meta(ge=0)]


class Event(msgspec.Struct):
    timestamp: datetime


class Round(msgspec.Struct):
    session_id: str
    input_tokens_total: Count
    prefix_tokens: Count
    output_tokens: Count
    round_index: Count | None = None
    timing_events: list[Event] = []


def _matches(head: dict[str, Any]) -> bool:
    return {"session_id", "input_tokens_total", "prefix_tokens"} <= head.keys()


def _read(source: Source, builder: Builder) -> None:
    ended: dict[str, float] = {}
    for number, row in source.rows(Round):
        try:
            builder.check(row.input_tokens_total, row.output_tokens)
            if row.prefix_tokens > row.input_tokens_total:
                raise Reject(f"prefix of {row.prefix_tokens} tokens in an input of {row.input_tokens_total}")
            times = [event.timestamp.timestamp() for event in row.timing_events]
            start = min(times, default=None)
            before = ended.get(row.session_id)
            think = max(0.0, start - before) if start is not None and before is not None else None
            keep = min(row.prefix_tokens, builder.length(row.session_id) or 0)
            fresh = builder.intern(None, [len(builder.turns)])[0]
            new = np.full(row.input_tokens_total - keep, fresh, np.int32)
            if times:
                ended[row.session_id] = max(times)
            builder.add(row.session_id, 0, row.input_tokens_total, row.output_tokens, keep, new,
                        Facts(n=row.round_index, arrival=start, think=think))
        except Reject as error:
            source.bad(number, str(error))


FORMAT = Format("tracelab", "rows session_id input_tokens_total prefix_tokens output_tokens", _matches, _read, block=1,
                wall_clock=True)
