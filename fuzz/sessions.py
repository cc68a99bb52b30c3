"""Sessions before a narrow door: what a world draws and requires where `Policy.admission` holds some back."""

from __future__ import annotations

import random
from collections.abc import Hashable

from k3mem.policy import SessionAdmission
from k3mem.request import Request
from k3mem.sched.core import Core

SESSIONS = 9
"""Names that requests are given: few, so that families grow and come back."""


def draw(rng: random.Random, chance: float = 0.5) -> SessionAdmission | None:
    """How a world holds sessions back, with this chance: with bounds and pauses of every size; else None."""
    if rng.random() >= chance:
        return None
    return SessionAdmission(
        share=rng.choice((0.02, 0.1, 0.5, 1.0)), bound=rng.choice((0.0, 0.5, 1.0, 2.0, 10.0, 1000.0, 1000.0)),
        idle=rng.choice((0.0, 1.0, 30.0, 30.0)), idle_quantile=rng.choice((0.5, 0.9, 1.0)), auto=rng.random() < 0.25)


def family(rng: random.Random) -> tuple[int, int]:
    """(session, parent) of a request, 0 for none. The parent is any other, itself and rings of them included."""
    return rng.randrange(SESSIONS + 1), rng.choice((0, 0, 0, *range(1, SESSIONS + 1)))


class Door:
    """Watches who is held and who is in."""

    def __init__(self) -> None:
        self._since: dict[Hashable, float] = {}
        """Request -> when it was submitted."""
        self._over: set[Hashable] = set()
        """Sessions that have ended and sent nothing since."""

    def submitted(self, request: Request, now: float) -> None:
        """A request was taken."""
        self._since[request.id] = now
        self._over.discard(request.session)

    def ended(self, session: Hashable) -> None:
        """A session has ended."""
        self._over.add(session)

    def trouble(self, core: Core, now: float) -> str | None:
        """What is wrong right after a plan: somebody is held past the bound, or under a session that is in, or though
        nothing else is there to do; or a session is in that has ended."""
        sessions = core.sessions
        if sessions is None:
            return None
        inside = sessions._roots.keys()
        busy = {job.request.session for job in core.jobs.values()}
        if over := [session for session in self._over if session in inside and session not in busy]:
            return f"sessions {over[:4]} have ended, and are in"
        late = [job.request.id for job in sessions.held if now > self._since[job.request.id] + sessions.policy.bound]
        if late:
            return f"requests {late[:4]} are held for longer than {sessions.policy.bound} s"
        near = [job.request.id for job in sessions.held
                if job.request.session in inside or job.request.parent_session in inside]
        if near:
            return f"requests {near[:4]} are held, and their families are in"
        if sessions.held and not (core.queue or core.lanes.running or core.flights):
            return f"{len(sessions.held)} requests are held, and nothing runs or waits"
        return None
