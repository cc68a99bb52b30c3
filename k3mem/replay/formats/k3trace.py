"""`k3trace`: delta rows, session by session, each with its own clock; a header line first."""

from __future__ import annotations

from typing import Any

from k3mem.replay.formats import delta
from k3mem.replay.formats.base import Format, Source
from k3mem.replay.formats.build import Builder, Facts


class Row(delta.Row, kw_only=True):
    keep: delta.Count
    gap: delta.Seconds | None = None


def _matches(head: dict[str, Any]) -> bool:
    return "k3trace" in head


def _read(source: Source, builder: Builder) -> None:
    local = source.head().get("id_scope") == "local"

    def intern(row: Row, keep: int) -> list[int]:
        return builder.intern(str(row.s) if local else None, delta.runs(row.new))

    def facts(row: Row) -> Facts:
        return Facts(n=row.n, think=row.gap if row.think is None else row.think, api=row.api, stop=row.stop,
                     spawned_after=row.pt)

    delta.read_rows(source, builder, Row, lambda row: row.keep, header=True, intern=intern, facts=facts)


FORMAT = Format("k3trace", "header with `k3trace`, rows s n in out keep new", _matches, _read, block=64)
