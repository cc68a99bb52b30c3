"""Small trace files by hand, and the shared real ones where they exist."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name, *records): a JSON-lines file; a str record is written as it is."""

    def make(name: str, *records: Any) -> Path:
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        data = ("\n".join(lines) + "\n").encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return make


@pytest.fixture
def real() -> Callable[[str], Path]:
    """real(name): a file of the shared traces; skips where it is absent."""
    default = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("K3MEM_SHARED", default)) / "traces"

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"{path} is absent: set K3MEM_SHARED to the folder of shared data")
        return path

    return find
