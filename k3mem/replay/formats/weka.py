"""Weka delta rows: sessions of coding agents, block ids local to a session.

Beside `X.jsonl[.gz]`, `X_meta.json[.gz]` may give each session's `tool_tokens`: the leading tool_tokens // block blocks
of every prompt of the session are the tool definitions, common to all sessions with the same `tool_tokens`.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import msgspec

from k3mem.replay.formats import delta
from k3mem.replay.formats.base import Format, Source
from k3mem.replay.formats.build import Builder, Facts
from k3mem.replay.trace import BadTrace


class Row(delta.Row, kw_only=True):
    lcp: delta.Count


class Meta(msgspec.Struct):
    id: str | int
    tool_tokens: delta.Count = 0


def tool_tokens(path: str) -> dict[str, int]:
    """`tool_tokens` by session from the sibling meta file; empty if there is none. Raises BadTrace."""
    stem = re.sub(r"(\.jsonl?)?(\.gz)?$", "", Path(path).name)
    for ending in ("_meta.json", "_meta.json.gz"):
        meta = Path(path).with_name(stem + ending)
        if not meta.exists():
            continue
        try:
            data = meta.read_bytes()
            text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            return {str(item.id): item.tool_tokens for item in msgspec.json.decode(text, type=list[Meta])}
        except (OSError, EOFError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadTrace(str(meta), 0, str(error)) from error
    return {}


def intern_local(builder: Builder, session: str, tools: int, start: int, ids: list[int]) -> list[int]:
    """Dense ids of a session's local ids at block positions start, start + 1, ...: the tool part by position."""
    shared = max(0, min(tools // builder.block - start, len(ids)))
    head = builder.intern(("tools", tools), range(start, start + shared))
    return head + builder.intern(("session", session), ids[shared:])


def _matches(head: dict[str, Any]) -> bool:
    return {"s", "lcp", "new", "in"} <= head.keys()


def _read(source: Source, builder: Builder) -> None:
    tools = tool_tokens(source.path)

    def intern(row: Row, keep: int) -> list[int]:
        session = str(row.s)
        return intern_local(builder, session, tools.get(session, 0), keep, list(delta.runs(row.new)))

    def facts(row: Row) -> Facts:
        return Facts(n=row.n, think=row.think, api=row.api, stop=row.stop, spawned_after=row.pt)

    delta.read_rows(source, builder, Row, lambda row: row.lcp, header=False, intern=intern, facts=facts)


FORMAT = Format("weka", "rows s st n in out lcp new", _matches, _read, block=64)
