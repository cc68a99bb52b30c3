"""Raw Weka JSON: one session an object (a file, or a line of a JSONL), every request with all its block ids.

Requests of type `subagent` hold requests of their own: a further stream, spawned after the main turn before it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from k3mem.replay.formats.base import Format, Reject, Source
from k3mem.replay.formats.build import Builder, Facts
from k3mem.replay.formats.weka import intern_local

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Request(msgspec.Struct):
    type: str = "n"
    in_: Count | None = msgspec.field(name="in", default=None)
    out: Count = 0
    hash_ids: list[int] = []
    stop: str | None = None
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    requests: list[Request] = []


class Session(msgspec.Struct):
    id: str | int
    requests: list[Request]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64
    tool_tokens: Count = 0
    hash_id_scope: str = "local"


def _matches(head: dict[str, Any]) -> bool:
    return isinstance(head.get("requests"), list) and "id" in head


def _read(source: Source, builder: Builder) -> None:
    for number, session in source.rows(Session):
        try:
            if session.block_size != builder.block:
                raise Reject(f"block_size {session.block_size} after {builder.block}: one trace has one block size")
            if builder.length(str(session.id)) is not None:
                raise Reject(f"session {session.id!r} stands on an earlier line")
            flat = _flatten(session, builder)
        except Reject as error:
            source.bad(number, str(error))
            continue
        for sub, request, facts in flat:
            _add(builder, session, sub, request, facts)


def _flatten(session: Session, builder: Builder) -> list[tuple[int, Request, Facts]]:
    """The session's requests with their streams, all checked: a session is added whole or not at all."""
    flat: list[tuple[int, Request, Facts]] = []
    subs, main = 0, -1

    def take(requests: list[Request], sub: int) -> None:
        nonlocal subs, main
        for request in requests:
            if request.requests or request.type == "subagent":
                subs += 1
                take(request.requests, subs)
                continue
            where = f"request {len(flat)}: "
            if request.in_ is None:
                raise Reject(where + "no `in`")
            builder.check(request.in_, request.out)
            whole = request.in_ // builder.block
            if not whole <= len(request.hash_ids) <= whole + bool(request.in_ % builder.block):
                raise Reject(f"{where}{len(request.hash_ids)} hash ids for {request.in_} tokens: "
                             f"blocks of {builder.block} need {whole}")
            main += sub == 0
            flat.append((sub, request, Facts(think=request.think_time, api=request.api_time, stop=request.stop,
                                             spawned_after=max(main, 0) if sub else None)))

    take(session.requests, 0)
    return flat


def _add(builder: Builder, session: Session, sub: int, request: Request, facts: Facts) -> None:
    assert request.in_ is not None
    whole = request.in_ // builder.block
    name = str(session.id)
    if session.hash_id_scope == "local":
        dense = intern_local(builder, name, session.tool_tokens, 0, request.hash_ids)
    else:
        dense = builder.intern(None, request.hash_ids)
    tail = dense[whole] if len(dense) > whole else None
    builder.add_whole(name, sub, request.in_, request.out, np.asarray(dense[:whole], np.int32), facts, tail=tail)


FORMAT = Format("weka-raw", "object with id block_size requests[in out hash_ids]", _matches, _read, block=64,
                block_field="block_size")
