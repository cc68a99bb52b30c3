"""Installs the peers: runs setup_peers.sh of the shared data. Usage: python -m bench.setup_peers"""

from __future__ import annotations

import subprocess
import sys

from bench.shared import Absent, scripts


def main() -> int:
    """The script's exit code; 2 where it is absent."""
    try:
        script = scripts() / "setup_peers.sh"
    except Absent as e:
        print(e, file=sys.stderr)
        return 2
    return subprocess.run(["bash", str(script)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
