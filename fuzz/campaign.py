"""Seeds without end over several processes, until enough has happened, time is up or a world fails."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from k3mem.fuzz.marks import MARKS, Marks
from k3mem.fuzz.runner import run_seed


class World(NamedTuple):
    """What became of one seed."""

    seed: int
    steps: int
    events: Counter[str]
    marks: Counter[str]
    seconds: float
    """CPU time."""
    found: tuple[str, str] | None
    """By whom, and what."""


class Bounds(NamedTuple):
    """When to stop; None: no bound. The goals `events` and `worlds` are both to be reached, within the times."""

    seconds: float | None = None
    """CPU time of all worlds together."""
    events: int | None = None
    worlds: int | None = None
    clock: float | None = None
    """On time.monotonic."""

    def up(self, seconds: float) -> bool:
        """Whether time is up, after so much CPU time."""
        late = self.clock is not None and time.monotonic() >= self.clock
        return late or (self.seconds is not None and seconds >= self.seconds)


@dataclass(slots=True)
class Campaign:
    """What all worlds together showed."""

    seed: int
    """The first one."""
    worlds: int = 0
    steps: int = 0
    events: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """CPU time of the worlds."""
    found: dict[str, Any] | None = None
    """The failed world: seed, by, what. Of several the one of the lowest seed."""

    def add(self, world: World) -> None:
        self.worlds, self.steps, self.seconds = self.worlds + 1, self.steps + world.steps, self.seconds + world.seconds
        self.events += world.events
        self.marks.update(world.marks)
        if world.found is not None and (self.found is None or world.seed < self.found["seed"]):
            self.found = {"seed": world.seed, "by": world.found[0], "what": world.found[1]}

    def enough(self, bounds: Bounds) -> bool:
        """Whether no further world need begin."""
        if self.found is not None or bounds.up(self.seconds):
            return True
        goals = [have >= want for have, want in ((self.events.total(), bounds.events), (self.worlds, bounds.worlds))
                 if want is not None]
        return bool(goals) and all(goals)

    def as_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "worlds": self.worlds, "steps": self.steps, "events": self.events.total(),
                "by_kind": dict(self.events), "seconds": round(self.seconds, 2),
                "events_per_second": round(self.events.total() / max(self.seconds, 1e-9)),
                "marks": dict(self.marks) or None, "found": self.found}


def one(seed: int, marks: bool = True, deadline: float | None = None) -> World:
    """One world, its branches counted. `deadline`: on time.process_time."""
    watch = Marks()
    with watch if marks else nullcontext():
        out = run_seed(seed, deadline=deadline)
    found = None if out.found is None else (out.found.by, out.found.what)
    return World(seed, out.steps, out.events, watch.counts, out.seconds, found)


def run(seed: int, bounds: Bounds, jobs: int = 1, marks: bool = True,
        progress: Callable[[Campaign], None] = lambda campaign: None) -> Campaign:
    """Worlds of seeds `seed`, `seed` + 1, ... in `jobs` processes (1: in this one), until `bounds` or a fault."""
    out = Campaign(seed, marks=Counter(dict.fromkeys((name for name, *_ in MARKS), 0)) if marks else Counter())
    for world in _here(seed, bounds, marks, out) if jobs == 1 else _apart(seed, bounds, jobs, marks, out):
        out.add(world)
        progress(out)
    return out


def _here(seed: int, bounds: Bounds, marks: bool, out: Campaign) -> Iterator[World]:
    """The last world is cut short when CPU time is up."""
    end = None if bounds.seconds is None else time.process_time() + bounds.seconds
    while not out.enough(bounds):
        yield one(seed + out.worlds, marks, end)


def _apart(seed: int, bounds: Bounds, jobs: int, marks: bool, out: Campaign) -> Iterator[World]:
    """Results as they come. A process that dies is a fault of one of the seeds that were under way."""
    under_way: dict[Future[World], int] = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            while True:
                while len(under_way) < 2 * jobs and not out.enough(bounds):
                    under_way[pool.submit(one, seed, marks)] = seed
                    seed += 1
                if not under_way:
                    return
                for done in wait(under_way, return_when=FIRST_COMPLETED).done:
                    world = done.result()
                    del under_way[done]
                    yield world
        except BrokenProcessPool:
            seeds = sorted(under_way.values())
            what = f"a process died in one of the seeds {seeds}"
            yield World(seeds[0], 0, Counter(), Counter(), 0.0, ("check", what))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
