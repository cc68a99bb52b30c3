"""Bailian JSONL: chat requests that name the request they continue; block ids of 16 tokens, seconds.

A session is a tree of chats. The first chat that continues another stays in its stream; a further one forks a stream
of its own, whose `parent` is the chat it continues.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from k3mem.replay.formats.base import Format, Reject, Source
from k3mem.replay.formats.build import Builder, Facts
from k3mem.replay.formats.forks import Forks

Count = Annotated[int, msgspec.Meta(ge=0)]


class Row(msgspec.Struct):
    chat_id: int | str
    input_length: Count
    output_length: Count
    hash_ids: list[int]
    parent_chat_id: int | str = -1
    timestamp: Annotated[float, msgspec.Meta(ge=0)] | None = None


def _matches(head: dict[str, Any]) -> bool:
    return {"chat_id", "hash_ids"} <= head.keys()


def _read(source: Source, builder: Builder) -> None:
    forks = Forks()
    for number, row in source.rows(Row):
        try:
            if row.chat_id in forks:
                raise Reject(f"chat_id {row.chat_id!r} stands on an earlier line")
            # A parent that the file does not hold (its window opened later) makes the chat a root.
            seat = forks.seat(row.chat_id, row.parent_chat_id)
            turn = builder.add_list(seat.session, seat.sub, row.input_length, row.output_length, row.hash_ids,
                                    Facts(arrival=row.timestamp, parent=seat.parent))
            forks.take(row.chat_id, row.parent_chat_id, seat, turn.index)
        except Reject as error:
            source.bad(number, str(error))


FORMAT = Format("bailian", "rows chat_id parent_chat_id timestamp input_length output_length hash_ids", _matches,
                _read, block=16)
