"""Sessions before a narrow door: what a world draws, does and requires where `Policy.admission` holds some back.

Plain functions over an engine and a source of chance, for a world to call: `draw` when it is made, `relate` for each
request, `happen` as one of its habits, `trouble` after each plan.
"""

from __future__ import annotations

import random
from collections.abc import Hashable

from k3mem.engine import Engine
from k3mem.policy import SessionAdmission
from k3mem.request import Request
from k3mem.sched.core import Core

SESSIONS = 9
"""Names that requests are given: few, so that families grow and come back."""


def draw(rng: random.Random) -> SessionAdmission | None:
    """How a world holds sessions back: not at all in half of them; else with bounds and pauses of every size."""
    if rng.random() < 0.5:
        return None
    return SessionAdmission(
        share=rng.choice((0.1, 0.5, 1.0)), bound=rng.choice((0.0, 1.0, 10.0, 1000.0)),
        idle=rng.choice((0.0, 1.0, 30.0)), idle_quantile=rng.choice((0.5, 0.9, 1.0)), auto=rng.random() < 0.25)


def relate(rng: random.Random, request: Request) -> None:
    """Give a request a session, and sometimes a parent: any other, itself and rings of them included."""
    request.session = rng.choice((None, *range(1, SESSIONS + 1)))
    request.parent_session = rng.choice((None, None, None, *range(1, SESSIONS + 1)))


def happen(rng: random.Random, engine: Engine) -> None:
    """A caller says that a session has ended, rightly or not, or aborts somebody who is held."""
    sessions = engine.scheduler.core.sessions
    if sessions is not None and sessions.held and rng.random() < 0.3:
        engine.abort(rng.choice(list(sessions.held)).request.id)
        return
    engine.end_session(rng.randrange(1, SESSIONS + 1))


def trouble(core: Core, now: float, submitted: dict[Hashable, float]) -> str | None:
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
