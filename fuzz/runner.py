"""Runs of worlds: one seed, one script, or seeds without end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from k3mem.fuzz import alone
from k3mem.fuzz.actors import LENGTHS, WIDE_LENGTH, Actors, draw_config
from k3mem.fuzz.oracle import Found
from k3mem.fuzz.record import Sink
from k3mem.fuzz.script import Action, Config, Script
from k3mem.fuzz.world import World


@dataclass(slots=True)
class Outcome:
    """What became of one world."""

    script: Script
    found: Found | None = None
    steps: int = 0
    events: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Scheduler events."""
        return self.events.total()


def run_seed(seed: int, config: Config | None = None, length: int | None = None, deadline: float | None = None,
             **changes: object) -> Outcome:
    """One world of a seed, to its end or the first fault. `config`: instead of a drawn one; `changes`: fields to
    change in it. `deadline`: on time.process_time, after which no more actions are taken."""
    import msgspec

    rng = random.Random(seed)
    drawn = draw_config(rng, seed) if config is None else config
    drawn = msgspec.structs.replace(drawn, **changes)
    actors = Actors(seed, drawn, rng)
    most = length or (WIDE_LENGTH if actors.wide else rng.choice(LENGTHS))
    actions: list[Action] = []

    def taken(world: World) -> Iterator[Action]:
        while len(actions) < most:
            if deadline is not None and len(actions) % 64 == 63 and time.process_time() > deadline:
                return
            actions.append(actors.next(world))
            yield actions[-1]

    return _run(Script(drawn, actions), taken)


def replay(script: Script, *sinks: Sink) -> Outcome:
    """A script, exactly. `sinks` are told what its executor is told and answers."""
    return _run(script, lambda world: iter(script.actions), *sinks)


def _run(script: Script, actions: Callable[[World], Iterator[Action]], *sinks: Sink) -> Outcome:
    began = time.process_time()
    out = Outcome(script)
    world: World | None = None
    try:
        world = World(script.config, sinks=sinks)
        for action in actions(world):
            world.do(action)
        world.settle()
        if script.config.alone:
            alone.run(script.config.seed, script.config.alone)
    except Found as found:
        out.found = found
    if world is not None:
        out.steps, out.events = world.steps, Counter(world.core.metrics.events)
    out.seconds = time.process_time() - began
    return out
