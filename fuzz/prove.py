"""The proof that the fuzzer bites: every planted bug is found, and the code without one survives the same seeds.

One way to draw worlds for all; the seeds of a mutant come from its name, so that nobody chose them. Each mutant has a
process of its own (`k3mem.fuzz.hunt`), several run at once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from k3mem.fuzz import campaign, mutants_native
from k3mem.fuzz.hunt import SECONDS, WORLD_SECONDS, Hunted, hunt, seeds_of, survives
from k3mem.fuzz.mutants import MUTANTS, Mutant
from k3mem.fuzz.mutants_native import NativeMutant

SLACK = 100.0
"""Clock time that a process may take for a second of CPU time, on a machine with far more work than cores. What hangs
and uses CPU time ends itself; this is for what waits."""


class OutOfTime(Exception):
    """The clock time that a caller allowed is up, and nothing was found out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    name: str
    where: str
    breaks: str
    """Key of the rule that it breaks, see `k3mem.fuzz.rules`."""
    killed: bool
    seed: int
    """Of the world that killed it, else the last one tried."""
    worlds: int
    seconds: float
    """CPU time until it was killed, or for which it lived."""
    by: str
    what: str
    clean: bool
    """The code without it survived the same seeds."""
    race: str = ""
    """The first race in the plans of the world that killed it."""
    in_order: str = ""
    """Whether that world `fails` or the fault `vanishes` where all commands run in program order."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


AnyMutant = Mutant | NativeMutant


def every() -> list[AnyMutant]:
    """All mutants of the Python side, and those of the C core where a build has them."""
    return [*MUTANTS, *native_mutants()]


def native_mutants() -> list[NativeMutant]:
    """The C core's mutants, [] where the build with planted bugs is missing."""
    built = importlib.util.find_spec("k3mem.native._core_mutants") is not None
    return list(mutants_native.MUTANTS) if built else []


def names() -> list[str]:
    """Names of all mutants, in the order of the registry."""
    return [mutant.name for mutant in every()]


def verdict(mutant: AnyMutant, hunted: Hunted, worlds: int | None = None) -> Verdict:
    """A hunt in one line."""
    return Verdict(mutant.name, mutant.where, mutant.breaks, bool(hunted.by), hunted.seeds[-1],
                   len(hunted.seeds) if worlds is None else worlds, round(hunted.seconds, 2), hunted.by,
                   hunted.wrong or hunted.what, not hunted.wrong, hunted.race, hunted.in_order)


def prove_one(mutant: Mutant, seconds: float = SECONDS) -> Verdict:
    """Hunt one mutant of the Python side in this process, then run its seeds without it."""
    out = hunt(mutant.name, mutant.plant, seconds)
    out.wrong = survives(out.seeds, seconds)
    return verdict(mutant, out)


def prove(names: list[str] | None = None, seconds: float = SECONDS,
          progress: Callable[[Verdict], None] = lambda verdict: None, jobs: int | None = None) -> list[Verdict]:
    """Hunt all mutants, or those of these names, `jobs` (the cores, if None) at once. Verdicts in the order of the
    registry; `progress` gets each as it comes."""
    chosen = [mutant for mutant in every() if names is None or mutant.name in names]
    done: dict[str, Verdict] = {}
    with ThreadPoolExecutor(jobs or campaign.cores()) as pool:
        for future in as_completed([pool.submit(prove_apart, mutant, seconds) for mutant in chosen]):
            got = future.result()
            done[got.name] = got
            progress(got)
    return [done[mutant.name] for mutant in chosen]


def prove_apart(mutant: AnyMutant, seconds: float = SECONDS, most: float | None = None) -> Verdict:
    """The same for any mutant, in a process of its own. `most`: clock seconds. Raises OutOfTime."""
    worlds, hunted = hunt_apart(mutant.name, seconds, environment(mutant), most=most)
    return verdict(mutant, hunted, worlds)


def environment(mutant: AnyMutant) -> dict[str, str]:
    """In which a mutant's process finds the C core that has it."""
    env = {name: value for name, value in os.environ.items() if name != "K3MEM_NATIVE"}
    return {**env, "K3MEM_NATIVE": "mutants"} if isinstance(mutant, NativeMutant) else env


def hunt_apart(name: str, seconds: float, env: dict[str, str], *more: str, cwd: str | None = None,
               most: float | None = None) -> tuple[int, Hunted]:
    """(worlds, hunt) of a process of its own. One that dies or hangs in a world is a kill: by `check` and by
    `liveness`. `most`: clock seconds. Raises OutOfTime."""
    command = [sys.executable, "-m", "k3mem.fuzz.hunt", name, str(seconds), *more]
    hangs = SLACK * (2 * seconds + 2 * WORLD_SECONDS)
    try:
        env = {**env, "PYTHONSAFEPATH": "1"}  # whatever lies in the current directory
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True,
                              timeout=hangs if most is None else min(most, hangs))
        code, said, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        if most is not None and most < hangs:
            raise OutOfTime(name) from None
        code, errors = -signal.SIGVTALRM, ""
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return read_lines(name, code, lines, errors)


def read_lines(name: str, code: int, lines: list[dict[str, Any]], errors: str) -> tuple[int, Hunted]:
    """(worlds, hunt) from what a process said before it ended with `code`. One that ended before its first world has
    killed nothing: it says why, and lives."""
    seeds = [line["seed"] for line in lines if "seed" in line]
    verdicts = [line for line in lines if "by" in line]
    last = (errors.strip().splitlines() or ["no message"])[-1]
    if not seeds:
        return 0, Hunted([next(seeds_of(name))], what=f"no world began: exit code {code}: {last}")
    if not verdicts:  # it died in a world
        hung = code == -signal.SIGVTALRM
        what = f"a world took more than {WORLD_SECONDS} s" if hung else f"exit code {code}: {last}"
        took = max((line.get("at", 0.0) for line in lines), default=0.0) + (WORLD_SECONDS if hung else 0)
        return len(seeds), Hunted([seeds[-1]], "liveness" if hung else "check", what, took)
    last_line = verdicts[-1]
    worlds = last_line.pop("seeds")
    out = Hunted([seeds[worlds - 1]], **last_line)
    if code:
        out.wrong = f"without the bug: exit code {code}"
    return worlds, out


__all__ = ["OutOfTime", "Verdict", "environment", "every", "hunt", "hunt_apart", "names", "native_mutants", "prove",
           "prove_apart", "prove_one", "read_lines", "seeds_of", "survives", "verdict"]
