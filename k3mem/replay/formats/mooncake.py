"""Mooncake JSONL: independent requests with prefix-chained block ids, the last of which covers a partial block."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from k3mem.replay.formats.base import Format, Reject, Source, seconds
from k3mem.replay.formats.build import Builder, Facts

Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class Row(msgspec.Struct):
    input_length: Count
    output_length: Count
    hash_ids: list[int]
    timestamp: Milliseconds | None = None


def _matches(head: dict[str, Any]) -> bool:
    return {"hash_ids", "input_length"} <= head.keys()


def _read(source: Source, builder: Builder) -> None:
    for number, row in source.rows(Row):
        try:
            blocks = -(-row.input_length // builder.block)
            if len(row.hash_ids) != blocks:
                raise Reject(f"{len(row.hash_ids)} hash ids for {row.input_length} tokens: blocks of {builder.block} "
                             f"need {blocks} (give block= if blocks have another size)")
            builder.add_list(str(len(builder.turns)), 0, row.input_length, row.output_length, row.hash_ids,
                             Facts(arrival=seconds(row.timestamp)))
        except Reject as error:
            source.bad(number, str(error))


FORMAT = Format("mooncake", "rows timestamp input_length output_length hash_ids", _matches, _read, block=512,
                sessions=lambda head: False)
