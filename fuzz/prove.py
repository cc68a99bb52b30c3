"""The proof that the fuzzer bites: every planted bug is found, and the code without one survives the same seeds.

One way to draw worlds for all; the seeds of a mutant come from its name, so that nobody chose them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from k3mem.fuzz.mutants import MUTANTS, Mutant
from k3mem.fuzz.patching import Plant
from k3mem.fuzz.runner import run_seed

SECONDS = 60.0
"""CPU time that a mutant has to live: on one core of its own as long by any clock."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    name: str
    where: str
    breaks: str
    killed: bool
    seed: int
    """Of the world that killed it, else the last one tried."""
    worlds: int
    seconds: float
    by: str
    what: str
    clean: bool
    """The code without it survived the same seeds."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seeds_of(name: str) -> Iterator[int]:
    """Seeds without end, from a name."""
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    while True:
        yield first
        first += 1


def hunt(name: str, plant: Callable[[], Plant], seconds: float = SECONDS) -> tuple[list[int], str, str, float]:
    """(seeds tried, by whom it was killed or "", what was found, seconds)."""
    began = time.process_time()
    tried: list[int] = []
    for seed in seeds_of(name):
        tried.append(seed)
        with plant():
            outcome = run_seed(seed, deadline=began + seconds)
        if outcome.found is not None:
            return tried, outcome.found.by, outcome.found.what, time.process_time() - began
        if time.process_time() - began > seconds:
            break
    return tried, "", "", time.process_time() - began


def survives(seeds: list[int], seconds: float = SECONDS) -> str:
    """What the code without planted bugs shows on these seeds; "" for nothing, which is right."""
    end = time.process_time() + seconds
    for seed in seeds:
        found = run_seed(seed, deadline=end).found
        if found is not None:
            return f"seed {seed}: {found}"
        if time.process_time() > end:
            break
    return ""


def prove_one(mutant: Mutant, seconds: float = SECONDS) -> Verdict:
    """Hunt one mutant, then run its seeds without it."""
    seeds, by, what, took = hunt(mutant.name, mutant.plant, seconds)
    wrong = survives(seeds, seconds)
    return Verdict(mutant.name, mutant.where, mutant.breaks, bool(by), seeds[-1], len(seeds), round(took, 2), by,
                   wrong or what, not wrong)


def names() -> set[str]:
    """All mutants by name."""
    return {mutant.name for mutant in MUTANTS} | {mutant.name for mutant in native_mutants()}


def prove(names: list[str] | None = None, seconds: float = SECONDS,
          progress: Callable[[Verdict], None] = lambda verdict: None) -> list[Verdict]:
    """All mutants of the Python side, and those of the C core where a build has them."""
    out: list[Verdict] = []
    for mutant in MUTANTS:
        if names is None or mutant.name in names:
            out.append(prove_one(mutant, seconds))
            progress(out[-1])
    for verdict in prove_native(names, seconds):
        out.append(verdict)
        progress(verdict)
    return out


# -- the C core: in a process of its own, on the build with planted bugs

_CHILD = """
import json, sys
from contextlib import contextmanager
from k3mem.native import lib
from k3mem.fuzz.prove import hunt

@contextmanager
def plant():
    lib.k3_mutant = int(sys.argv[2])
    try:
        yield
    finally:
        lib.k3_mutant = 0

seeds, by, what, took = hunt(sys.argv[1], plant, float(sys.argv[3]))
print(json.dumps([seeds, by, what, took]))
"""


def native_mutants() -> list[Any]:
    """The registry of the C core's mutants, [] where it or its build is missing. Entries have id, name, where, breaks
    (or invariant)."""
    import importlib.util

    if importlib.util.find_spec("k3mem.native._core_mutants") is None:
        return []
    if importlib.util.find_spec("k3mem.fuzz.mutants_native") is None:
        return []
    module: Any = importlib.import_module("k3mem.fuzz.mutants_native")
    return list(module.MUTANTS)


def prove_native(names: list[str] | None = None, seconds: float = SECONDS) -> Iterator[Verdict]:
    """The C core's mutants, one process each. A crash of the process is a kill by check."""
    import json

    for mutant in native_mutants():
        if names is not None and mutant.name not in names:
            continue
        env = {**os.environ, "K3MEM_NATIVE": "mutants"}
        command = [sys.executable, "-c", _CHILD, mutant.name, str(int(mutant.id)), str(seconds)]
        began = time.perf_counter()
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=4 * seconds)
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            code, text = 0, json.dumps([[next(seeds_of(mutant.name))], "liveness", "the process hangs", 4 * seconds])
        if code:
            first = next(seeds_of(mutant.name))
            seeds, by, what, took = [first], "check", f"exit code {code}", time.perf_counter() - began
        else:
            seeds, by, what, took = json.loads(text.splitlines()[-1])
        wrong = survives(seeds, seconds)
        breaks = str(getattr(mutant, "breaks", "") or getattr(mutant, "invariant", ""))
        yield Verdict(mutant.name, mutant.where, breaks, bool(by), seeds[-1], len(seeds), round(took, 2), by,
                      wrong or what, not wrong)
