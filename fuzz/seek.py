"""Planted bugs sought by exploration alone: no chance, no seeds, only all orders of a small scope.

    python -m k3mem.fuzz.seek NAME SECONDS

Each mutant has a process of its own, since a bug may hang or crash it. Not every bug shows in so small a scope (none
has drafts, deadlines, media, tails of a second page, ...): what exploration kills it kills in every order that shows
it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

from k3mem.fuzz import mutants_native
from k3mem.fuzz.explorer import explore, scopes
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.patching import Plant
from k3mem.fuzz.prove import native_mutants

SECONDS = 60.0
"""CPU time that a mutant has to live."""
GLANCE = 2.0
"""CPU time for each scope at first: most bugs show soon in some scope."""
SLACK = 6.0
"""Clock time that a process may take for a second of CPU time."""


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


def names() -> list[str]:
    """All mutants, those of the C core where a build has them."""
    return [*BY_NAME, *(mutant.name for mutant in native_mutants())]


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


def seek_apart(name: str, seconds: float = SECONDS) -> Sought:
    """The same in a process of its own. One that dies or hangs is a kill: by `check` and by `liveness`."""
    env = dict(os.environ)
    env.pop("K3MEM_NATIVE", None)
    if name not in BY_NAME:
        env["K3MEM_NATIVE"] = "mutants"
    command = [sys.executable, "-m", "k3mem.fuzz.seek", name, str(seconds)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SLACK * (seconds + 20))
    except subprocess.TimeoutExpired:
        return Sought(name, True, "liveness", f"no end after {seconds} s of exploring")
    if done.returncode == -signal.SIGXCPU:
        return Sought(name, True, "liveness", "it does not come back")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Sought(name, True, "check", f"exit code {done.returncode}: {last}")
    return Sought(**json.loads(done.stdout.splitlines()[-1]))


def seek_all(chosen: list[str], seconds: float = SECONDS, jobs: int = 1,
             progress: Callable[[Sought], None] = lambda sought: None) -> list[Sought]:
    """Mutants of these names, `jobs` at once; in their order."""
    done: dict[str, Sought] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(seek_apart, name, seconds) for name in chosen]):
            sought = future.result()
            done[sought.name] = sought
            progress(sought)
    return [done[name] for name in chosen]


def _plant_of(name: str) -> Callable[[], Plant]:
    if name in BY_NAME:
        return BY_NAME[name].plant
    native = {mutant.name: mutant for mutant in mutants_native.MUTANTS}[name]
    return lambda: mutants_native.planted(native)


if __name__ == "__main__":
    # a bug that never comes back ends here, by processor time
    resource.setrlimit(resource.RLIMIT_CPU, (int(float(sys.argv[2])) + 20, resource.RLIM_INFINITY))
    print(json.dumps(seek(sys.argv[1], _plant_of(sys.argv[1]), float(sys.argv[2])).as_dict()))
