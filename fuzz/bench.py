"""How fast the default world runs: engine, mock and oracle together, on one core."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field

from k3mem.fuzz import script as do
from k3mem.fuzz.script import Config
from k3mem.fuzz.world import World

LANES = 128
WAITING = 32
"""Requests beyond the lanes that the clients keep in the queue."""


@dataclass(slots=True)
class Rates:
    """What was measured."""

    worlds: int = 0
    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    by_kind: Counter[str] = field(default_factory=Counter)

    @property
    def events_per_second(self) -> int:
        return round(self.by_kind.total() / max(self.seconds, 1e-9))

    @property
    def rows_per_second(self) -> int:
        return round(self.rows / max(self.seconds, 1e-9))


def config(seed: int, check_every: int) -> Config:
    """The default world at the size of a server: many lanes, pages and states for most of them."""
    return Config(seed=seed, page_tokens=16, state_chunk=16, states=2 * LANES, pages=LANES * 24, running=LANES,
                  budget=2048, check_every=check_every, audit_every=0)


def measure(seconds: float, seed: int = 0, check_every: int = 0) -> Rates:
    """Sessions of a few turns, forks and aborts, for `seconds` of CPU time, then to the end."""
    out, rng = Rates(), random.Random(seed)
    began = time.process_time()
    while time.process_time() - began < seconds:
        world = World(config(seed + out.worlds, check_every))
        made = 0
        while time.process_time() - began < seconds and made < 4000:
            while len(world.core.jobs) < LANES + WAITING:
                base = rng.randrange(made) if made and rng.random() < 0.5 else -1
                world.do(do.Submit(made, base, rng.choice((16, 64, 1000)), rng.randrange(40), rng.randrange(20, 200),
                                   rng.randrange(50, 200)))
                made += 1
            if rng.random() < 0.02:
                world.do(do.Abort(rng.randrange(made)))
            world.do(do.Step(8))
        world.settle()
        out.worlds, out.steps = out.worlds + 1, out.steps + world.steps
        out.rows += world.core.metrics.events["row"]
        out.by_kind += Counter(world.core.metrics.events)
    out.seconds = time.process_time() - began
    return out
