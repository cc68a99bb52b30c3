"""mypy over the whole package as it is installed, `executors/`, `native/` and `fuzz/` seen as `k3mem.*`, and `bench/`.

The checkout keeps these packages beside `k3mem/` and pyproject.toml maps them into it; mypy knows no such mapping. So
this lays the package out in a temporary directory, as links, and checks that. Usage: python tools/typecheck.py [mypy
arguments]. Exit code: mypy's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("executors", "native", "fuzz")


def lay_out(at: Path) -> None:
    """`at`/k3mem: links to every entry of k3mem/ and to the mapped packages; `at`/bench."""
    package = at / "k3mem"
    package.mkdir()
    for entry in (ROOT / "k3mem").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for name in MAPPED:
        (package / name).symlink_to(ROOT / name)
    (at / "bench").symlink_to(ROOT / "bench")


def main() -> int:
    """Run mypy from the layout, so that messages name files as an import would."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"),
                   "--cache-dir", str(ROOT / ".mypy_cache"), "-p", "k3mem", "-p", "bench", *sys.argv[1:]]
        return subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": folder}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
