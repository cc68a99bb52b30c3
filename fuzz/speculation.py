"""Speculation in worlds: a drafter that says how sure it is, a planner with a surface of its own, and what is verified
and learned compared with what they said.

A draft's confidences are drawn anew for each request and depth. So whoever is shown one knows whose draft it is, and
the planner, which is told of no lanes, can tell whether it was shown the right rows.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

from k3mem.fuzz.oracle import Found
from k3mem.fuzz.surroundings import Knowing
from k3mem.plan import Plan, Row
from k3mem.spec import Draft, Planner, Stairs, Surface, Treads, VerifyPlanner
from k3mem.types import Float64, Int32

if TYPE_CHECKING:
    from k3mem.fuzz.steps import Steps


def draw(rng: random.Random) -> int:
    """What `Config.verify` is: in most worlds a planner is drawn from a number, 0 is none."""
    return rng.randrange(1, 1 << 20) if rng.random() < 0.6 else 0


class Whim:
    """A planner that keeps what chance says; the same of the same drafts."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def choose(self, confidence: Float64, offered: Int32, context: int) -> Int32:
        """As `Planner.choose`."""
        return np.array([random.Random(hash((self.seed, float(sure[0])))).randint(0, n) if n else 0
                         for sure, n in zip(confidence, offered.tolist(), strict=True)], np.int32)

    def accepted(self, confidence: Float64, kept: Int32, right: Int32) -> None:
        """As `Planner.accepted`."""

    def took(self, rows: int, tokens: int, context: int, us: float) -> None:
        """As `Planner.took`."""


def planner_of(number: int, window: int) -> Planner:
    """A planner: a whim, or the real one over a surface of any kind, with early or late confidences."""
    rng = random.Random(f"planner {number}")
    if rng.random() < 0.3:
        return Whim(number)
    surface: Surface | None = Stairs(
        bias=rng.choice((1.0, 30.0)), per_row=rng.random(), per_token=rng.choice((0.1, 1.0)),
        tile=rng.choice((1, 2, 4, 16)), per_context=rng.random())
    kind = rng.random()
    if kind < 0.4:
        ends = np.cumsum([rng.randint(1, 6) for _ in range(rng.randint(1, 8))])
        surface = Treads(ends=ends, levels=np.array([rng.uniform(5.0, 50.0) for _ in ends]), per_row=rng.random())
    elif kind < 0.45:
        surface = None
    return VerifyPlanner(surface, window, late=rng.choice((0, 0, 1, 2)), learn=rng.random() < 0.7)


class Speculation(Knowing):
    """Drafter and planner of a world. Raises Found where a plan verifies anything else than what they said, or the
    planner is told what did not happen, or the drafter of an end that is none."""

    def __init__(self, world: Steps, chance: float) -> None:
        super().__init__(world, chance)
        self.planner = planner_of(world.config.verify, world.config.window)
        self.drafts: dict[Hashable, tuple[int, Int32]] = {}
        """Since planning began: request -> (its tokens, what was proposed) ..."""
        self.kept: dict[Hashable, int] = {}
        """... and how many of these the planner keeps."""
        self.whose: dict[float, Hashable] = {}
        """Confidence of a first draft -> its request."""
        self.sent: dict[float, tuple[int, int]] = {}
        """The same -> (drafts in its row, how many of them are right)."""
        self.live: set[Hashable] = set()
        """Requests that were drafted for and whose end the drafter does not know."""
        self.wrong: str | None = None
        """What was found where the engine takes every exception for its caller's."""

    def begin(self) -> None:
        """A plan is about to be made."""
        self.drafts.clear()
        self.kept.clear()
        self.whose.clear()

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Draft:  # type: ignore[override]
        """As `Drafter.draft`."""
        guess = super().draft(request_id, tokens, limit)
        rng = random.Random(hash((self.world.config.seed, request_id, len(tokens))))
        sure = np.array([rng.random() for _ in guess])
        self.drafts[request_id] = len(tokens), guess
        self.live.add(request_id)
        if len(guess):
            self.whose[float(sure[0])] = request_id
        return Draft(guess, sure)

    def ended(self, request_id: Hashable) -> None:
        """As the protocol says."""
        if request_id in self.world.core.jobs:
            self.wrong = f"the drafter was told that request {request_id} has ended, and it goes on"
        self.live.discard(request_id)

    def choose(self, confidence: Float64, offered: Int32, context: int) -> Int32:
        """As `Planner.choose`."""
        kept = self.planner.choose(confidence, offered, context)
        for sure, n, keep in zip(confidence.tolist(), offered.tolist(), kept.tolist(), strict=True):
            if not n:
                continue
            owner = self.whose.get(sure[0])
            if owner is None or n != len(self.drafts[owner][1]):
                raise Found("oracle", f"the planner was shown {n} drafts that nobody proposed")
            self.kept[owner] = keep
        return kept

    def look(self, plan: Plan) -> None:
        """A plan was made: its rows are the first drafts of their own lanes, as many as the planner keeps."""
        self._told()
        ids, offsets = self.world.core.lanes.ids, plan.token_offset.tolist()
        for row, (kind, lane) in enumerate(zip(plan.kind.tolist(), plan.lane.tolist(), strict=True)):
            if kind == Row.PREFILL:
                continue
            owner = ids[lane]
            keep, (at, guess) = self.kept.get(owner, 0), self.drafts.get(owner, (0, np.zeros(0, np.int32)))
            given = plan.tokens[offsets[row] : offsets[row + 1]].tolist()
            if int(plan.length[row]) != 1 + keep or given != guess[:keep].tolist():
                raise Found("oracle", f"request {owner} verifies {given} in a window of {int(plan.length[row])}; its "
                                      f"drafter proposed {guess.tolist()}, and the planner keeps {keep}")
            if keep:
                true = self.world.oracle.lines[owner].tokens[at : at + keep]
                right = next((i for i, (a, b) in enumerate(zip(true, given, strict=False)) if a != b), len(true))
                first = next(sure for sure, whose in self.whose.items() if whose == owner)
                self.sent[first] = keep, right

    def accepted(self, confidence: Float64, kept: Int32, right: Int32) -> None:
        """As `Planner.accepted`."""
        for sure, *told in zip(confidence[:, 0].tolist(), kept.tolist(), right.tolist(), strict=True):
            if (known := self.sent.pop(sure, None)) != tuple(told):
                self.wrong = f"the planner was told (verified, right) = {tuple(told)} of a row of {known}"
        self.planner.accepted(confidence, kept, right)

    def took(self, rows: int, tokens: int, context: int, us: float) -> None:
        """As `Planner.took`."""
        self.planner.took(rows, tokens, context, us)

    def over(self) -> None:
        """The world is drained: nobody is drafted for any more."""
        self._told()
        if self.live:
            raise Found("oracle", f"the drafter was not told that requests {sorted(map(str, self.live))[:4]} "
                                  "have ended")

    def _told(self) -> None:
        if self.wrong is not None:
            raise Found("oracle", self.wrong)
