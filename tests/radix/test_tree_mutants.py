"""Each planted bug of the tree must be seen by the random actors; needs the build with planted bugs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HUNT = """
import sys
from k3mem.errors import Corrupted
from k3mem.native import lib
from k3mem.fuzz.alone.tree import World

lib.k3_mutant = int(sys.argv[1])
for page in (1, 2, 4, 16):
    for seed in range(6):
        try:
            World(seed, page, None, True).run(120)
        except (AssertionError, Corrupted):
            print("seen")
            sys.exit()
print("not seen")
"""


def hunt(mutant: int) -> str:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "K3MEM_NATIVE": "mutants", "PYTHONPATH": path}
    command = [sys.executable, "-c", HUNT, str(mutant)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("k3mem.native._core_mutants") is None,
    reason="k3mem.native._core_mutants is not built (K3MEM_MUTANTS=1)",
)


def test_without_a_planted_bug_nothing_is_seen() -> None:
    assert hunt(0) == "not seen"


@pytest.mark.parametrize("mutant", range(1, 9))
def test_planted_bug_is_seen(mutant: int) -> None:
    assert hunt(mutant) == "seen"
