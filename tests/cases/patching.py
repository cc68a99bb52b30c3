"""How a planted bug of the C core runs: in a process of its own, on a build that has it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

MUTANT = """
import importlib, sys
from k3mem.native import lib
from tests.cases.helpers import what_is_wrong
module, name = sys.argv[2].split(":")
scenario = getattr(importlib.import_module(module), name)
lib.k3_mutant = int(sys.argv[1])
print(what_is_wrong(scenario))
"""

needs_mutants = pytest.mark.skipif(
    importlib.util.find_spec("k3mem.native._core_mutants") is None,
    reason="k3mem.native._core_mutants is not built (K3MEM_MUTANTS=1)",
)


def with_mutant(mutant: int, scenario: str) -> str:
    """What `module:function` finds wrong in a process whose C core has this planted bug; 0: none planted."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "K3MEM_NATIVE": "mutants", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, "-c", MUTANT, str(mutant), scenario]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


EVICT_LOCKED, LIMIT, STAMP, MOVES_LEASED = 2, 3, 4, 102

