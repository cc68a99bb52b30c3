"""Outcomes of cells in a folder: one JSON line each, written the moment it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from k3mem.replay.sweep.cells import Cell, Outcome

NAME = "cells.jsonl"


class Store:
    """The file `cells.jsonl` of a folder, which is made. Lines are only added: of two of one key the later counts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep an outcome; it is on its way to the disk when this returns."""
        line = json.dumps({"key": key, **outcome.as_dict()}) + "\n"
        with self.path.open("ab+") as file:
            if file.tell() and not _ends_line(file):
                line = "\n" + line
            file.write(line.encode())

    def finished(self, cells: dict[str, Cell]) -> dict[str, Outcome]:
        """Of these cells by key, those that ended without error. A line cut short by an interrupt is no line."""
        found: dict[str, Outcome] = {}
        if not self.path.exists():
            return found
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                key, report, seconds = row["key"], row["report"], float(row["cpu_seconds"])
            except (ValueError, KeyError, TypeError):
                continue
            if key in cells and isinstance(report, dict):
                found[key] = Outcome(cells[key], report, None, seconds)
        return found


def _ends_line(file: Any) -> bool:
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")
