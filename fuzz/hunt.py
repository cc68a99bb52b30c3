"""One planted bug is hunted: worlds of its own seeds run with it until one shows it, then without it.

    python -m k3mem.fuzz.hunt NAME SECONDS [nothing]

`k3mem fuzz prove` runs this once a mutant, in a process of its own: a bug may hang or crash it. It writes one JSON a
line: {"seed": n, "at": CPU seconds} before each world, so that a process that dies has said where and when, and at last
the verdict. With `nothing` no bug is planted: the code itself has it (a patched copy).
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from k3mem.fuzz.order import Explained, explain
from k3mem.fuzz.patching import Plant
from k3mem.fuzz.runner import Outcome, run_seed

SECONDS = 60.0
"""CPU time that a mutant has to live: on one core of its own as long by any clock."""
WORLD_SECONDS = 20
"""CPU time that one world may take. The longest take about one second."""


@dataclass(slots=True)
class Hunted:
    """What became of one hunt."""

    seeds: list[int]
    """All that were tried; the last one showed the bug, if any did."""
    by: str = ""
    what: str = ""
    seconds: float = 0.0
    race: str = ""
    """What the happens-before checker says of the world that failed."""
    in_order: str = ""
    """`fails` or `vanishes`: what becomes of the fault where all commands run in program order."""
    wrong: str = ""
    """What the code without the bug shows on these seeds; "" for nothing, which is right."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seeds_of(name: str) -> Iterator[int]:
    """Seeds without end, from a name."""
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
    while True:
        yield first
        first += 1


def hunt(name: str, plant: Callable[[], Plant], seconds: float = SECONDS,
         begin: Callable[[int], None] = lambda seed: None) -> Hunted:
    """Worlds with the bug until one shows it or time is up. `begin` is told each seed."""
    began = time.process_time()
    out = Hunted([])
    for seed in seeds_of(name):
        out.seeds.append(seed)
        begin(seed)
        with plant():
            outcome = run_seed(seed, deadline=began + seconds)
            out.seconds = time.process_time() - began
            if outcome.found is not None:
                _note(out, outcome)
                break
        if out.seconds > seconds:
            break
    return out


def _note(out: Hunted, outcome: Outcome) -> None:
    assert outcome.found is not None
    out.by, out.what = outcome.found.by, outcome.found.what
    if "<locals>" in out.what:  # a wrapper of ours was called in a way that it does not know: that is no kill
        out.by, out.what = "", f"the plant itself is broken: {out.what}"
        return
    said: Explained = explain(outcome)
    out.race, out.in_order = said.race, said.in_order


def survives(seeds: list[int], seconds: float = SECONDS, begin: Callable[[int], None] = lambda seed: None) -> str:
    """What the code without planted bugs shows on these seeds; "" for nothing, which is right."""
    end = time.process_time() + seconds
    for seed in seeds:
        begin(seed)
        found = run_seed(seed, deadline=end).found
        if found is not None:
            return f"seed {seed}: {found}"
        if time.process_time() > end:
            break
    return ""


def plant_of(name: str) -> Callable[[], Plant]:
    """How the mutant of this name is planted. Raises KeyError."""
    from k3mem.fuzz import mutants_native
    from k3mem.fuzz.mutants import BY_NAME

    if name in BY_NAME:
        return BY_NAME[name].plant
    native = {mutant.name: mutant for mutant in mutants_native.MUTANTS}[name]
    return lambda: mutants_native.planted(native)


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _begin(seed: int) -> None:
    """A world that takes too long ends the process, wherever it hangs."""
    _say({"seed": seed, "at": round(time.process_time(), 2)})
    signal.setitimer(signal.ITIMER_VIRTUAL, WORLD_SECONDS)


def main(name: str, seconds: float, plant: Callable[[], Plant]) -> None:
    """Hunt, then the same seeds without the bug."""
    out = hunt(name, plant, seconds, _begin)
    _say({**out.as_dict(), "seeds": len(out.seeds)})
    if plant is not nullcontext:
        out.wrong = survives(out.seeds, seconds, _begin)
    _say({**out.as_dict(), "seeds": len(out.seeds)})


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), nullcontext if sys.argv[3:] else plant_of(sys.argv[1]))
