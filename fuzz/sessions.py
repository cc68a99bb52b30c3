"""Sessions before a narrow door: what a world draws and requires where `Policy.admission` holds some back."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping

from k3mem.policy import SessionAdmission
from k3mem.sched.core import Core

SESSIONS = 9
"""Names that requests are given: few, so that families grow and come back."""


def draw(rng: random.Random, chance: float = 0.5) -> SessionAdmission | None:
    """How a world holds sessions back, with this chance: with bounds and pauses of every size; else None."""
    if rng.random() >= chance:
        return None
    return SessionAdmission(
        share=rng.choice((0.1, 0.5, 1.0)), bound=rng.choice((0.0, 1.0, 10.0, 1000.0)),
        idle=rng.choice((0.0, 1.0, 30.0)), idle_quantile=rng.choice((0.5, 0.9, 1.0)), auto=rng.random() < 0.25)


def family(rng: random.Random) -> tuple[int, int]:
    """(session, parent) of a request, 0 for none. The parent is any other, itself and rings of them included."""
    return rng.randrange(SESSIONS + 1), rng.choice((0, 0, 0, *range(1, SESSIONS + 1)))


def trouble(core: Core, now: float, submitted: Mapping[Hashable, float]) -> str | None:
    """What is wrong right after a plan, beside what `check()` finds: somebody is held past the bound, or though
    nothing else is there to do. `submitted`: time of every request's submission."""
    sessions = core.sessions
    if sessions is None or not sessions.held:
        return None
    late = [job.request.id for job in sessions.held if now > submitted[job.request.id] + sessions.policy.bound]
    if late:
        return f"requests {late[:4]} are held for longer than {sessions.policy.bound} s"
    if not (core.queue or core.lanes.running or core.flights):
        return f"{len(sessions.held)} requests are held, and nothing runs or waits"
    return None
