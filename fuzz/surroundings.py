"""What surrounds an engine in a world: failures told beforehand, and a drafter that knows the answers."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from k3mem.executors.mock import Fault, Faults
from k3mem.plan import Plan
from k3mem.types import Int32

if TYPE_CHECKING:
    from k3mem.fuzz.steps import Steps

VOCAB = 97


class NextFault(Faults):
    """Failures that are told beforehand: the next launched step takes the first; one of them waits for a step that
    seats somebody without a row, one for a step that moves entries."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Fault] = []
        self.rowless: Fault | None = None
        self.moving: Fault | None = None
        self.plan: Plan | None = None
        """What is being launched."""

    def strike(self, step: int) -> Fault | None:
        fault = None
        if self.due:
            fault = self.due.pop(0)
        elif self.rowless is not None and self.plan is not None and _rowless(self.plan):
            fault, self.rowless = self.rowless, None
        elif self.moving is not None and self.plan is not None and len(self.plan.moves):
            fault, self.moving = self.moving, None
        return None if fault is None else Fault(step, fault.at, fault.effect)

    def clear(self) -> None:
        """No more failures."""
        self.due.clear()
        self.rowless = self.moving = None


def _rowless(plan: Plan) -> bool:
    """Whether a plan seats somebody who has no row in it."""
    return not plan.resync and bool({seat.lane for seat in plan.seats} - set(plan.lane.tolist()))


class Knowing:
    """A drafter that knows what the model will say, and is right with a given chance; the same at every replay."""

    def __init__(self, world: Steps, chance: float) -> None:
        self.world, self.chance = world, chance

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        line = self.world.oracle.lines[request_id]  # type: ignore[index]
        rng = random.Random(hash((self.world.config.seed, int(line.chain[0]), len(tokens))))
        true = line.tokens[len(tokens) : len(tokens) + rng.randint(0, limit)]
        return np.array([t if rng.random() < self.chance else rng.randrange(VOCAB) for t in true], np.int32)
