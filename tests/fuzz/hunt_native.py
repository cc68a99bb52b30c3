"""Plants each bug of the C core in turn, in a process of its own, and says who sees it.

    K3MEM_NATIVE=mutants python -m tests.fuzz.hunt_native [--all] [NAME]...

One JSON line a mutant: name, by (the first hunter that saw it, or null), how (what it said) and seconds; with --all
every hunter tries and `by` is a list. `none` is the core as it is: nobody may see anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from k3mem.fuzz.mutants_native import ARENA, MUTANTS, NativeMutant, planted
from tests.fuzz.native_actors import GEOMETRIES, Actor, ArenaMachine, PrefixMachine, Priced, TreeMachine, World

STUCK_SECONDS = 40

SETTINGS = settings(deadline=None, derandomize=True, stateful_step_count=40, database=None,
                    print_blob=False, phases=[Phase.generate], suppress_health_check=list(HealthCheck))


def tree_stress() -> None:
    for seed in range(6):
        for page in (1, 2, 4, 16):
            for ghosts in (None, 12):
                World(seed, page, ghosts, True).run(120)


def price_stress() -> None:
    for seed in range(6):
        Priced(seed, page=seed % 3 + 1).run(100)


def arena_stress() -> None:
    for seed in range(3):
        for name, geometry in GEOMETRIES.items():
            if name != "k3":
                Actor(seed, geometry).run(400)


def machine(of: type[RuleBasedStateMachine], examples: int = 60) -> Callable[[], None]:
    return lambda: run_state_machine_as_test(of, settings=settings(SETTINGS, max_examples=examples))


TREE_HUNTERS = {"tree stress": tree_stress, "prefix machine": machine(PrefixMachine),
                "tree machine": machine(TreeMachine), "price stress": price_stress}
ARENA_HUNTERS = {"arena stress": arena_stress, "arena machine": machine(ArenaMachine, 150)}


def attempt(mutant: NativeMutant | int, hunter: Callable[[], None]) -> str:
    """What the hunter says in a child process; "" when it sees nothing."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.dup2(2, 1)
        signal.alarm(STUCK_SECONDS)
        said = ""
        with planted(mutant):
            try:
                hunter()
            except BaseException as seen:  # noqa: BLE001 - whatever it is, it was seen
                said = f"{type(seen).__name__}: {str(seen).strip().splitlines()[:1]}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said if os.WIFEXITED(status) else signal.Signals(os.WTERMSIG(status)).name


def hunt(mutant: NativeMutant | None, everybody: bool) -> dict[str, object]:
    start, seen = time.perf_counter(), {}
    hunters = {**TREE_HUNTERS, **ARENA_HUNTERS} if not mutant else ARENA_HUNTERS if mutant in ARENA else TREE_HUNTERS
    for name, hunter in hunters.items():
        if said := attempt(mutant or 0, hunter):
            seen[name] = said
            if not everybody:
                break
    by = list(seen) if everybody else next(iter(seen), None)
    return {"name": mutant.name if mutant else "none", "by": by, "how": next(iter(seen.values()), ""),
            "seconds": round(time.perf_counter() - start, 2)}


def main(args: list[str]) -> None:
    names = [a for a in args if not a.startswith("-")]
    for mutant in (None, *MUTANTS):
        if not names or (mutant.name if mutant else "none") in names:
            print(json.dumps(hunt(mutant, "--all" in args)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
