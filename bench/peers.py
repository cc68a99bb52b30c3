"""k3mem beside SGLang 0.5.23 and vLLM 0.33: every target in one run, on the same requests and the same bytes.

    python -m bench.peers --json out.json
    python -m bench.peers --alone          without the peers; musts as they were set

Some minutes. Exit code 0: measured (whether or not a row is met, see `met`), or skipped because the peers are absent,
which is said; 1: the run is void, because SGLang did not reproduce its hits or a peer failed; 2: wrong arguments.

Times are medians of wall time where one operation is measured, and CPU time where a mean or a sum is (machines are
noisy). Hit rates are deterministic. SGLang runs its default (Rust) core; vLLM its best match unit, hashing counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench import ours, rivals
from bench.rows import Row, build
from bench.shared import Absent

MEASURES = ("requests", "edge", "publish", "evict", "lock", "decode_step", "events", "replay_arrival", "replay_timed",
            "metadata", "hits")
"""Functions of `bench.ours`, by name."""


def main(arguments: list[str] | None = None) -> int:
    """See the module's text for the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        ours.require()
        peers = None if chosen.alone else rivals.measure()
        figures = {name: _measured(name) for name in MEASURES}
    except Absent as e:
        print(f"skipped: {e}", file=sys.stderr)
        return 0
    except rivals.Broken as e:
        print(f"void: {e}", file=sys.stderr)
        return 1
    void = rivals.void(peers["sglang"]) if peers is not None else None
    rows = build(figures, peers)
    if chosen.json is not None:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(
            {"void": void, "machine": machine(), "rows": rows, "k3mem": figures, "peers": peers}), indent=1))
    show(rows)
    if void is not None:
        print(f"void: {void}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write rows and all figures to this file")
    parser.add_argument("--alone", action="store_true", help="measure k3mem only")
    return parser


def _measured(name: str) -> Any:
    print("measuring", name, file=sys.stderr, flush=True)
    return getattr(ours, name)()


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {"cores": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version(),
            "system": platform.platform()}


def show(rows: list[Row]) -> None:
    """A table on stdout."""
    table = Table("target", "unit", "k3mem", "peers", "must", "met")
    for row in rows:
        peers = "\n".join(f"{name}: {value:,.4g}" for name, value in row.peers.items())
        table.add_row(row.id, row.unit, f"{row.k3mem:,.5g}", peers, f"{row.must:,.4g}\n{row.rule}",
                      "yes" if row.met else "NO")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    sys.exit(main())
