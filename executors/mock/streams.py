"""Virtual streams: commands run in order on their stream, after the events they wait for, as late as chance says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Command(NamedTuple):
    """One piece of work on a stream."""

    run: Callable[[], None]
    waits: tuple[int, ...] = ()
    """Events that must have happened."""
    signals: int = -1
    """Event that happens when it has run, -1 for none."""


class Streams:
    """Queues of commands, one per stream name. Which ready stream goes on, and when, is the generator's choice."""

    def __init__(self, rng: Random, shuffle: bool) -> None:
        self.rng, self.shuffle = rng, shuffle
        self.queues: dict[str, deque[Command]] = {}
        self.events: set[int] = set()
        self.waiting = 0
        """Commands not yet run."""

    def put(self, stream: str, command: Command) -> None:
        queue = self.queues.get(stream)
        if queue is None:
            queue = self.queues[stream] = deque()
        queue.append(command)
        self.waiting += 1

    def ready(self) -> list[str]:
        """Streams whose next command may run."""
        events = self.events
        return [name for name, queue in self.queues.items()
                if queue and (not queue[0].waits or events.issuperset(queue[0].waits))]

    def step(self) -> bool:
        """Run one ready command; False if there is none."""
        if len(self.queues) == 1:
            (queue,) = self.queues.values()
            if not queue or (queue[0].waits and not self.events.issuperset(queue[0].waits)):
                return False
        else:
            names = self.ready()
            if not names:
                return False
            queue = self.queues[names[0] if len(names) == 1 else self.rng.choice(names)]
        run, _, signals = queue.popleft()
        self.waiting -= 1
        run()
        if signals >= 0:
            self.events.add(signals)
        return True

    def some(self) -> None:
        """Let the streams run for a while: nothing, a few commands, or everything."""
        budget, chance = self.waiting, self.rng.random
        if self.shuffle:
            luck = chance()
            budget = 0 if luck < 0.25 else self.waiting if luck < 0.5 else int(chance() * (self.waiting + 1))
        while budget > 0 and self.step():
            budget -= 1

    def until(self, event: int) -> None:
        """Run until an event has happened. Raises RuntimeError when it never can."""
        while event not in self.events:
            if not self.step():
                raise RuntimeError(f"streams are stuck before event {event}")

    def drain(self) -> None:
        """Run everything that can run."""
        while self.step():
            pass
