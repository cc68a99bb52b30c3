"""Planted bugs sought by exploration alone: no chance, no seeds, only all orders of a small scope.

    python -m k3mem.fuzz.seek NAME SECONDS

Each mutant has a process of its own, since a bug may hang or crash it. Not every bug shows in so small a scope (none
has drafts, deadlines, media, tails of a second page, ...): what exploration kills it kills in every order that shows
it.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

from k3mem.fuzz.explorer import explore, scopes
from k3mem.fuzz.hunt import SECONDS, plant_of
from k3mem.fuzz.patching import Plant
from k3mem.fuzz.prove import SLACK, AnyMutant, OutOfTime, environment, every

GLANCE = 2.0
"""CPU time for each scope at first: most bugs show soon in some scope."""
SPARE = 20
"""CPU seconds beyond its time after which a process that does not come back is ended."""


@dataclass(slots=True)
class Sought:
    """What became of one mutant."""

    name: str
    killed: bool
    by: str = ""
    what: str = ""
    order: list[str] = field(default_factory=list)
    """The order of events that shows it."""
    states: int = 0
    seconds: float = 0.0
    complete: bool = False
    """It lived through the whole scope."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seek(name: str, plant: Callable[[], Plant], seconds: float = SECONDS) -> Sought:
    """Explore with the bug, in this process: every scope for a moment, then each to its end."""
    states, spent, left = 0, 0.0, scopes()
    with plant():
        for most in (GLANCE, seconds):
            for scope in list(left):
                out = explore(min(most, seconds - spent), [scope])
                states, spent = states + out.states, spent + out.seconds
                if out.found is not None:
                    return Sought(name, True, out.found.by, out.found.what, out.order, states, round(spent, 2))
                if out.complete:
                    left.remove(scope)
                if spent >= seconds:
                    return Sought(name, False, states=states, seconds=round(spent, 2))
    return Sought(name, False, states=states, seconds=round(spent, 2), complete=not left)


def seek_apart(mutant: AnyMutant, seconds: float = SECONDS, most: float | None = None) -> Sought:
    """The same in a process of its own. `most`: clock seconds. Raises OutOfTime."""
    name, hangs = mutant.name, SLACK * (seconds + SPARE)
    command = [sys.executable, "-m", "k3mem.fuzz.seek", name, str(seconds)]
    try:
        done = subprocess.run(command, env=environment(mutant), capture_output=True, text=True,
                              timeout=hangs if most is None else min(most, hangs))
    except subprocess.TimeoutExpired:
        if most is not None and most < hangs:
            raise OutOfTime(name) from None
        return Sought(name, True, "liveness", f"no end after {seconds} s of exploring")
    return read(name, done.returncode, done.stdout, done.stderr)


def read(name: str, code: int, said: str, errors: str) -> Sought:
    """What a process found that ended with `code`. One that dies or hangs while it explores is a kill: by `check` and
    by `liveness`. One that ended before has killed nothing."""
    lines, last = said.splitlines(), (errors.strip().splitlines() or ["no message"])[-1]
    if not lines:
        return Sought(name, False, what=f"no exploration began: exit code {code}: {last}")
    if code == -signal.SIGXCPU:
        return Sought(name, True, "liveness", "it does not come back")
    if code:
        return Sought(name, True, "check", f"exit code {code}: {last}")
    return Sought(**json.loads(lines[-1]))


def seek_all(chosen: list[str], seconds: float = SECONDS, jobs: int = 1,
             progress: Callable[[Sought], None] = lambda sought: None) -> list[Sought]:
    """Mutants of these names, `jobs` at once; in their order. Raises KeyError for a name that none has."""
    done: dict[str, Sought] = {}
    known = {mutant.name: mutant for mutant in every()}
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(seek_apart, known[name], seconds) for name in chosen]):
            sought = future.result()
            done[sought.name] = sought
            progress(sought)
    return [done[name] for name in chosen]


if __name__ == "__main__":
    # a bug that never comes back ends here, by processor time
    resource.setrlimit(resource.RLIMIT_CPU, (int(float(sys.argv[2])) + SPARE, resource.RLIM_INFINITY))
    planted = plant_of(sys.argv[1])
    print("begun", flush=True)
    print(json.dumps(seek(sys.argv[1], planted, float(sys.argv[2])).as_dict()))
