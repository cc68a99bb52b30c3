"""The spoils of `k3mem.fuzz.spoils`, each struck once in a world of its own, and what the judge says of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from k3mem.errors import K3MemError
from k3mem.executors.mock import MockExecutor
from k3mem.fuzz.patching import patched
from k3mem.fuzz.race import Judge, Report
from k3mem.fuzz.race.mirror import Mirror
from k3mem.fuzz.race.space import Space
from k3mem.fuzz.record import Record, Recorder, Sink
from k3mem.fuzz.spoils import Spoil
from k3mem.plan import Plan, Result
from tests import world as worlds
from tests.world import World


@dataclass
class Mutant:
    """Spoils the first plan from step `first` on that gives an occasion."""

    spoil: Spoil
    first: int
    mirror: Mirror | None = None
    struck: int = 0
    """The spoilt step, 0: none yet."""
    ran: bool = False
    """Whether the spoilt step ran to its end; one that fails leaves nothing to judge."""
    space: Callable[[], Space] = field(default=lambda: Space(layout=None))  # type: ignore[arg-type]

    def put(self, record: Record) -> None:
        """Listens to the recording."""
        self.ran |= isinstance(record, Result) and record.step == self.struck

    def __call__(self, plan: Plan) -> Plan:
        if self.mirror is None:
            self.mirror = Mirror(self.space())
        self.mirror.update(plan)
        if self.struck or plan.step < self.first:
            return plan
        spoilt = self.spoil(plan, self.mirror)
        self.struck = plan.step if spoilt is not None else 0
        return plan if spoilt is None else spoilt


def listening(*sinks: Sink) -> AbstractContextManager[None]:
    """Worlds made meanwhile have their mocks recorded into these."""
    return patched(worlds, "MockExecutor", lambda old: lambda *a, **k: Recorder(MockExecutor(*a, **k), *sinks))


def judged(make: Callable[[], World], mutant: Mutant | None = None, *sinks: Sink) -> tuple[World, Report]:
    """A world and the judgement of its recording. Run to its end; a spoilt one to its first race, or to the error that
    the spoilt plan leads to."""
    judge = Judge()
    with listening(judge, *sinks, *([mutant] if mutant is not None else [])):
        world = make()
    if mutant is not None:
        mutant.space = lambda: judge.space
        launch = world.engine.executor.launch
        world.engine.executor.launch = lambda plan: launch(mutant(plan))  # type: ignore[method-assign]
    if mutant is None:
        return world.run(), judge.finish()
    try:
        while (world.made < world.requests or world.engine.has_work) and not judge.report.races:
            world.act()
            world.one_step()
    except (K3MemError, RuntimeError, ValueError, IndexError) as error:
        if not mutant.struck:
            raise
        world.failures.append(repr(error))
    return world, judge.finish()
