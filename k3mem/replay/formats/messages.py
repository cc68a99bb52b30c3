"""OpenAI-style messages, one session an object: each assistant message is a turn, all messages before it its prompt.

Ids come from the messages' `ids`, or from their text through a tokenizer, without a chat template. `created` (or
`timestamp`, s) gives arrivals, counted from the file's first; a gap between two of them also stands for `think`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from k3mem.replay.formats.base import Format, Reject, Source
from k3mem.replay.formats.build import Builder, Facts
from k3mem.replay.formats.tokens import as_ids
from k3mem.replay.trace import Tokenizer
from k3mem.types import Int32


class Part(msgspec.Struct):
    text: str = ""


class Message(msgspec.Struct):
    role: str
    ids: list[int] | None = None
    content: str | list[Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"null")
    created: float | None = None
    timestamp: float | None = None
    finish_reason: str | None = None

    @property
    def time(self) -> float | None:
        return self.timestamp if self.created is None else self.created


class Session(msgspec.Struct):
    messages: list[Message]
    session_id: str | int | None = None
    id: str | int | None = None
    instance_id: str | int | None = None


def _matches(head: dict[str, Any]) -> bool:
    found = head.get("messages")
    return isinstance(found, list) and bool(found) and isinstance(found[0], dict) and "role" in found[0]


def _read(source: Source, builder: Builder) -> None:
    for number, session in source.rows(Session):
        names = (session.session_id, session.id, session.instance_id)
        name = str(next((given for given in names if given is not None), f"line {number}"))
        try:
            if builder.length(name) is not None:
                raise Reject(f"session {name!r} stands on an earlier line")
            ids = [_ids(message, at, source.tokenizer) for at, message in enumerate(session.messages)]
            roles = [message.role for message in session.messages]
            if "assistant" in roles and not any(map(len, ids[: roles.index("assistant")])):
                raise Reject("the first assistant message has no prompt before it")
            whole = np.concatenate(ids) if ids else np.zeros(0, np.int32)
            builder.check(len(whole), 0)
        except Reject as error:
            source.bad(number, str(error))
            continue
        builder.reserve(whole)
        _add(builder, name, session.messages, ids, whole)


def _add(builder: Builder, name: str, messages: list[Message], ids: list[Int32], whole: Int32) -> None:
    start, before = 0, None
    for message, own in zip(messages, ids, strict=True):
        if message.role == "assistant":
            length = builder.length(name) or 0
            think = message.time - before if message.time is not None and before is not None else None
            facts = Facts(arrival=message.time, think=think if think and think > 0 else None, reply=own,
                          stop=message.finish_reason)
            before = message.time
            builder.add(name, 0, start, len(own), length, whole[length:start], facts)
        start += len(own)


def _ids(message: Message, at: int, tokenizer: Tokenizer | None) -> Int32:
    if message.ids is not None:
        return as_ids(message.ids, None, f"message {at}")
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    calls = bytes(message.tool_calls)
    return as_ids(text + (calls.decode() if calls != b"null" else ""), tokenizer, f"message {at}")


FORMAT = Format("messages", "object with messages[role ids|content created]", _matches, _read, block=1,
                wall_clock=True)
