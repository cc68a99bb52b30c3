"""Planted bugs of session admission: who is held too long, or in for nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from k3mem.fuzz.patching import Plant, patched
from k3mem.sched.sessions import Sessions


def held_for_ever() -> Plant:
    """The bound on waiting is not looked at."""

    def make(old: Any) -> Any:
        def release(self: Sessions, now: float, idle: bool) -> Any:
            policy, self.policy = self.policy, replace(self.policy, bound=math.inf)
            try:
                return old(self, now, idle)
            finally:
                self.policy = policy
        return release

    return patched(Sessions, "release", make)


def bound_from_the_last() -> Plant:
    """Who comes is put before those that have waited longest."""

    def make(old: Any) -> Any:
        def arrive(self: Sessions, job: Any, now: float, busy: bool = False) -> Any:
            went = old(self, job, now, busy)
            if not went:
                self._arrived.move_to_end(job, last=False)
            return went
        return arrive

    return patched(Sessions, "arrive", make)


def idle_and_held() -> Plant:
    """A server with nothing to do lets nobody in."""
    return patched(Sessions, "release", lambda old: lambda self, now, idle: old(self, now, False))


def children_wait_outside() -> Plant:
    """A request's parent is not looked at: it waits until its own session fits."""
    return patched(Sessions, "_key", lambda old: lambda self, job: self._roots.get(
        job.request.session, job.request.session))


def parents_come_too_late() -> Plant:
    """Held children of a session that goes in are not looked for."""

    def make(old: Any) -> Any:
        def relatives(self: Sessions, now: float) -> list[Any]:
            self._joined = False
            return []
        return relatives

    return patched(Sessions, "_relatives", make)


def ends_are_ignored() -> Plant:
    """A session that has ended keeps its place until it has paused for too long."""
    return patched(Sessions, "end", lambda old: lambda self, session: None)


def ends_while_running_are_ignored() -> Plant:
    """The same, where a request of it still ran."""

    def make(old: Any) -> Any:
        def end(self: Sessions, session: Any) -> None:
            family = self._in.get(self._roots.get(session, session))
            if family is None or not family.jobs:
                old(self, session)
        return end

    return patched(Sessions, "end", make)


def ends_while_held_are_ignored() -> Plant:
    """The same, where its last request was still held."""
    return patched(Sessions, "_forget_over", lambda old: lambda self, session: self._over.discard(session))
