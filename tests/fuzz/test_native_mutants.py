"""Each planted bug of the C core is seen: by the stress tests and state machines, and by the C fuzz target alone."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from k3mem.fuzz.mutants_native import ARENA, MUTANTS, TREE, NativeMutant, planted
from k3mem.native import lib

ROOT = Path(__file__).resolve().parent.parent.parent
ENUM = re.compile(r"^\s+K3_MUTANT_(\w+) = (\d+),", re.M)
HOOK = re.compile(r"K3_MUTANT\(K3_MUTANT_(\w+)\)")
FUNCTION = re.compile(r"^[a-z][\w ]*?\**(\w+)\([^;]*?\) \{", re.M)
ALONE = TREE + ARENA
"""Those that need no world to be seen: the rest of the core's planted bugs is for `tests/fuzz/test_prove.py`."""
SHARES = 6
RUNS = 3000

needs_mutants = pytest.mark.skipif(
    importlib.util.find_spec("k3mem.native._core_mutants") is None,
    reason="k3mem.native._core_mutants is not built (K3MEM_MUTANTS=1)",
)
needs_compiler = pytest.mark.skipif(
    not (shutil.which("make") and shutil.which(os.environ.get("CC", "cc"))), reason="needs make and a C compiler")


def hooks() -> set[tuple[str, str, str]]:
    """(mutant's enum name, file, function) of every hook in the sources."""
    found = set()
    for path in sorted((ROOT / "native").glob("*.c")):
        if path.name.startswith("_core"):
            continue
        text = path.read_text()
        starts = [(m.start(), m[1]) for m in FUNCTION.finditer(text)]
        for hook in HOOK.finditer(text):
            function = max((s for s in starts if s[0] < hook.start()), key=lambda s: s[0])[1]
            found.add((hook[1], path.name, function))
    return found


def enum_name(mutant: NativeMutant) -> str:
    return mutant.name.split(".")[1].upper()


def test_the_registry_names_what_the_headers_number() -> None:
    declared = {name: int(number) for header in ("k3.h", "arena.h", "lanes.h")
                for name, number in ENUM.findall((ROOT / "native" / header).read_text()) if name != "NONE"}
    assert declared == {enum_name(m): m.id for m in MUTANTS}
    assert len(declared) >= 24 and len({m.name for m in MUTANTS}) == len(MUTANTS)


def test_every_hook_stands_where_the_registry_says() -> None:
    found = hooks()
    assert {name for name, _, _ in found} == {enum_name(m) for m in MUTANTS}
    for mutant in MUTANTS:
        assert (enum_name(mutant), *mutant.where.split(": ")) in found, mutant


def test_planting_needs_the_build_that_has_the_bugs() -> None:
    if not hasattr(lib, "k3_mutant"):
        with pytest.raises(RuntimeError, match="K3MEM_MUTANTS"), planted(MUTANTS[0]):
            pass


# -- by Python

def hunt(*names: str) -> dict[str, dict[str, str]]:
    env = {**os.environ, "K3MEM_NATIVE": "mutants", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, "-m", "tests.fuzz.hunt_native", *names], env=env, cwd=ROOT,
                          capture_output=True, text=True, check=True)
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


@needs_mutants
def test_without_a_planted_bug_nobody_sees_anything() -> None:
    assert hunt("none")["none"]["by"] is None


@needs_mutants
@pytest.mark.parametrize("share", range(SHARES))
def test_stress_and_state_machines_see_every_planted_bug(share: int) -> None:
    names = [m.name for m in ALONE[share::SHARES]]
    seen = hunt(*names)
    assert list(seen) == names
    assert not [name for name, found in seen.items() if not found["by"]]


# -- by the C fuzz target

def build(what: str, out: Path) -> Path:
    command = ["make", "-s", "-f", str(ROOT / "fuzz/native/Makefile"), what, f"OUT={out}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    return out / what


@needs_compiler
def test_the_fuzz_target_sees_every_planted_bug(tmp_path: Path) -> None:
    binary = build("mutants", tmp_path)

    def run(mutant: int) -> int:
        command = [str(binary), f"-mutant={mutant}", f"-runs={RUNS}", "-max_len=512"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    assert run(0) == 0
    assert not [m.name for m in ALONE if run(m.id) == 0]
    assert (tmp_path / "crash-input").stat().st_size > 0
    again = [str(binary), f"-mutant={ALONE[-1].id}", "crash-input"]
    assert subprocess.run(again, cwd=tmp_path, capture_output=True, check=False).returncode, "the input shows it again"


@needs_compiler
def test_the_fuzz_target_finds_nothing_under_the_sanitizers(tmp_path: Path) -> None:
    """A bounded share of `make fuzz-native`; K3MEM_FUZZ_RUNS=N for more, K3MEM_FUZZ_SEED=S for another one."""
    binary = build("driver", tmp_path)
    runs, seed = os.environ.get("K3MEM_FUZZ_RUNS", "300"), os.environ.get("K3MEM_FUZZ_SEED", "1")
    command = [str(binary), f"-runs={runs}", f"-seed={seed}", str(ROOT / "fuzz/native/seeds")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    assert done.returncode == 0, done.stderr
    assert f"{runs} runs" in done.stdout
