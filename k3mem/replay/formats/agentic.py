"""Agentic Mooncake: Mooncake rows with a workflow above them; times in milliseconds.

`wait_for` names requests that must have completed, `delay` + `tool_wait_ms` passes after that. A row continues the
stream of the last request that it waits for; a second row waiting for the same one, or one of another `session_id`,
starts a stream of its own, whose `parent` is that request. `branches` repeats `wait_for` from the other end, and
`prefix_reset` shows in the ids.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from k3mem.replay.formats.base import Format, Reject, Source, seconds
from k3mem.replay.formats.build import Builder, Facts
from k3mem.replay.formats.forks import Forks

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class Row(msgspec.Struct):
    request_id: str
    input_length: Count
    output_length: Count
    hash_ids: list[int]
    session_id: str | None = None
    timestamp: Milliseconds | None = None
    delay: Milliseconds | None = None
    tool_wait_ms: Milliseconds | None = None
    wait_for: list[str] = []


def _matches(head: dict[str, Any]) -> bool:
    return {"request_id", "hash_ids"} <= head.keys()


def _read(source: Source, builder: Builder) -> None:
    forks = Forks()
    dropped: set[str] = set()
    for number, row in source.rows(Row):
        try:
            if row.request_id in forks:
                raise Reject(f"request_id {row.request_id!r} stands on an earlier line")
            for name in row.wait_for:
                if name not in forks and name not in dropped and not source.problems:
                    raise Reject(f"waits for {name!r}, which no earlier line has")
            after = next((name for name in reversed(row.wait_for) if name in forks), None)
            seat = forks.seat(row.request_id, after, row.session_id)
            think = seconds((row.delay or 0.0) + (row.tool_wait_ms or 0.0))
            turn = builder.add_list(seat.session, seat.sub, row.input_length, row.output_length, row.hash_ids,
                                    Facts(arrival=seconds(row.timestamp), think=think, parent=seat.parent))
            forks.take(row.request_id, after, seat, turn.index)
        except Reject as error:
            dropped.add(row.request_id)
            source.bad(number, str(error))


FORMAT = Format("agentic-mooncake", "rows request_id wait_for input_length output_length hash_ids", _matches, _read,
                block=512)
