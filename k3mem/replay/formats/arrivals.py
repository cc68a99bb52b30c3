"""`arrivals`: delta rows of all streams in one file, in arrival order, with global block ids; a header line first."""

from __future__ import annotations

from typing import Any

from k3mem.replay.formats import delta
from k3mem.replay.formats.base import Format, Source
from k3mem.replay.formats.build import Builder, Facts


class Row(delta.Row, kw_only=True):
    keep: delta.Count
    t: delta.Seconds | None = None


def _matches(head: dict[str, Any]) -> bool:
    return "arrivals" in head


def _read(source: Source, builder: Builder) -> None:
    def intern(row: Row, keep: int) -> list[int]:
        return builder.intern(None, delta.runs(row.new))

    def facts(row: Row) -> Facts:
        parent = None
        if row.st and row.pt is None:
            # The file does not say where a sub-agent was spawned; the main stream's last turn so far was the spawner.
            main = builder.last(str(row.s))
            parent = main.index if main is not None else None
        return Facts(n=row.n, arrival=row.t, think=row.think, api=row.api, stop=row.stop, spawned_after=row.pt,
                     parent=parent)

    delta.read_rows(source, builder, Row, lambda row: row.keep, header=True, intern=intern, facts=facts)


FORMAT = Format("arrivals", "header with `arrivals`, rows t s st n in out keep new", _matches, _read, block=64,
                sessions=lambda head: head.get("sessions", 1) != 0)
