"""Root causes in failure, cancel, reservations and leases. See `plants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.errors import Effect
from k3mem.fuzz.patching import Plant, all_of, patched, plans
from k3mem.plan import Plan
from k3mem.pool import Arena
from k3mem.radix import Tree
from k3mem.sched import commit, failure, room, scheduler, spare
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import Seated
from k3mem.types import NO_STATE


def resync_is_skipped() -> Plant:
    """The plan after a failure is like any other."""
    return plans(lambda plan: replace(plan, resync=False))


def resync_forgets_pages() -> Plant:
    """After a failure a lane's page list is sent without its last entry."""

    def change(plan: Plan) -> Plan:
        if not plan.resync or not len(plan.lane_pages):
            return plan
        return replace(plan, lane_pages=plan.lane_pages[:-1])

    return plans(change)


def damage_is_ignored() -> Plant:
    """A failed step takes its rows along, and leaves the states that it wrote."""

    def make(old: Any) -> Any:
        def damage(*a: Any) -> Any:
            rows, states = old(*a)
            return np.full_like(rows, failure.INTACT), np.zeros_like(states)
        return damage

    return patched(failure, "_damage", make)


def stamps_survive_a_failure() -> Plant:
    """What a failed step published stays published."""

    def make(old: Any) -> Any:
        def drop(self: Tree, stamp: int, *damage: Any) -> Any:
            return old(self, 1 << 60)
        return drop

    return patched(Tree, "drop", make)


def lost_is_unknown() -> Plant:
    """An executor that lost everything is believed to have lost one step."""

    def make(old: Any) -> Any:
        def fail(core: Core, failed: list[Flight], effect: Effect, first: int) -> None:
            old(core, failed, Effect.UNKNOWN, first)
        return fail

    return patched(failure, "fail", make)


def no_effect_is_a_launch() -> Plant:
    """A launch that failed without effect counts as launched and is failed later: nobody cancels the plan."""

    def make(old: Any) -> Any:
        def cancel(self: scheduler.Scheduler, plan: Plan) -> None:
            self.core.open = None
        return cancel

    return patched(scheduler.Scheduler, "cancel", make)


def failures_never_forgotten() -> Plant:
    """A commit does not reset the count of failures: the third one ever is the end."""

    def make(old: Any) -> Any:
        def committed(core: Core, flight: Flight, result: Any) -> Any:
            failures = core.failures
            out = old(core, flight, result)
            core.failures = failures
            return out
        return committed

    return patched(commit, "commit", make)


def cancel_keeps_its_bytes() -> Plant:
    """A cancelled plan keeps the pages that it took for its rows."""

    def make(old: Any) -> Any:
        def take(core: Core, b: Builder, pages: int, states: int, *more: Any) -> Any:
            got = old(core, b, pages, states, *more)
            if got is not None and pages and not states:
                b.journal.pop()
            return got
        return take

    return patched(room, "take", make)


def anything_is_admitted() -> Plant:
    """No request is too large to be queued."""
    return patched(Arena, "capacity_for", lambda old: lambda self, pages, states: True)


def ids_may_repeat() -> Plant:
    """A request whose id is in flight replaces the other one."""

    def make(old: Any) -> Any:
        def submit(self: scheduler.Scheduler, request: Any, tokens: Any) -> None:
            other = self.core.jobs.pop(request.id, None)
            if other is not None and other in self.core.queue:
                self.core.queue.remove(other)
            old(self, request, tokens)
        return submit

    return patched(scheduler.Scheduler, "submit", make)


def leases_do_not_hold() -> Plant:
    """A lease is noted and moves nothing out of the way: the entry is moved all the same."""

    def make(old: Any) -> Any:
        def lease(self: Arena, kind: int, id: Any) -> None:
            return None
        return lease

    return all_of(patched(Arena, "lease", make), patched(Arena, "unlease", make))


def spare_drops_what_is_held() -> Plant:
    """Before a retraction the checkpoint that a request stands on goes, even while a transfer reads it."""

    def make(old: Any) -> Any:
        def drop(core: Core, seat: Seated) -> bool:
            if core.cache.tree.state(seat.node) == NO_STATE:
                return False
            spare._free(core, core.cache.tree.take(seat.node))
            return True
        return drop

    return patched(spare, "_drop_checkpoint", make)


def takeover_stays_in_the_tree() -> Plant:
    """A checkpoint that becomes a working state in place is still matched by others."""
    return patched(Tree, "take", lambda old: lambda self, node: self.state(node))


def emptied_tree_remembers() -> Plant:
    """A new arena, and the tree of the old one."""

    def make(old: Any) -> Any:
        def empty(self: Cache, capacity_bytes: int | None = None) -> None:
            self.arena = self._arena(capacity_bytes or self.arena.capacity_bytes, self.arena.scratch_bytes)
        return empty

    return patched(Cache, "empty", make)
