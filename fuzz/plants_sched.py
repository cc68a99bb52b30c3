"""Root causes in scheduling, time, keys, accounts and reuse; and the canary. See `plants`."""

from __future__ import annotations

import time
from typing import Any

from k3mem.fuzz.patching import Plant, all_of, matching, patched
from k3mem.radix import Match
from k3mem.sched import admit, close, commit, decode, follow, launch, prefill, room, scheduler
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import Job, Seated
from k3mem.sched.pins import Pins
from k3mem.types import NO_STATE


def budget_per_request() -> Plant:
    """Every prompt gets the whole token budget."""
    return patched(prefill, "budget_left", lambda old: lambda core, b: core.policy.token_budget)


def first_is_retracted() -> Plant:
    """The victim is the request of the first rank, not of the last."""

    def make(old: Any) -> Any:
        def retract_last(core: Core, needy: Seated) -> bool:
            running = [s for s in core.lanes.taken() if s.end is None and s is not needy]
            if not running:
                return False
            close.retract(core, min(running, key=lambda s: s.rank))
            return True
        return retract_last

    return patched(decode, "retract_last", make)


def retracted_loses_its_rank() -> Plant:
    """A retracted request queues up behind everybody: two of them retract each other."""

    def make(old: Any) -> Any:
        def retract(core: Core, seat: Seated) -> None:
            seat.job.admission = core.admissions
            core.admissions += 1
            old(core, seat)
        return retract

    return all_of(patched(close, "retract", make), patched(decode, "retract", make), patched(admit, "retract", make))


def priority_is_ignored() -> Plant:
    """First come, first served, whatever the priority."""
    return patched(Job, "rank", lambda old: property(lambda self: (0, 0, self.serial)))


def follower_waits_for_anyone() -> Plant:
    """A follower waits as long as somebody runs, also for a leader that was aborted."""

    def make(old: Any) -> Any:
        def should_wait(core: Core, b: Builder, job: Job, tokens: Any, found: Match) -> bool:
            if old(core, b, job, tokens, found):
                return True
            if job.waits and core.lanes.running:
                job.waits += 1
                return True
            return False
        return should_wait

    return patched(follow, "should_wait", make)


def deadlines_by_the_wall() -> Plant:
    """Deadlines and pins look at the wall clock, not at the engine's."""

    def make(old: Any) -> Any:
        def expire(self: scheduler.Scheduler) -> None:
            planned, self.core.planned = self.core.planned, time.time()
            old(self)
            self.core.planned = planned
        return expire

    return patched(scheduler.Scheduler, "_expire", make)


def deadlines_never_come() -> Plant:
    """Nobody looks at the clock."""
    return patched(scheduler.Scheduler, "_expire", lambda old: lambda self: None)


def pins_never_end() -> Plant:
    """A pin outlives its time."""
    return patched(Pins, "expire", lambda old: lambda self, now: None)


def pins_never_give_way() -> Plant:
    """A pin is a promise: nothing runs that does not fit beside it."""

    def make(old: Any) -> Any:
        def give_way(self: Pins) -> bool:
            return False
        return give_way

    return patched(Pins, "give_way", make)


def abort_is_silent() -> Plant:
    """An aborted request is never told of its end."""

    def make(old: Any) -> Any:
        def abort(self: scheduler.Scheduler, request_id: Any, reason: str = "abort") -> None:
            old(self, request_id, reason)
            self.core.outputs.pop()
        return abort

    return patched(scheduler.Scheduler, "abort", make)


def tokens_twice() -> Plant:
    """The tokens of a retracted request come out again."""

    def make(old: Any) -> Any:
        def book(core: Core, seat: Seated, *more: Any) -> Any:
            out = old(core, seat, *more)
            if out is not None and seat.job.retractions and out.tokens:
                import msgspec

                return msgspec.structs.replace(out, tokens=[*out.tokens, out.tokens[-1]])
            return out
        return book

    return patched(commit, "_book", make)


def salt_is_ignored() -> Plant:
    """Tenants share one scope."""
    return patched(Cache, "scope", lambda old: lambda self, key: old(self, ("", key[1], key[2])))


def adapter_is_ignored() -> Plant:
    """One adapter's cache serves another."""
    return patched(Cache, "scope", lambda old: lambda self, key: old(self, (key[0], "", "")))


def media_are_one() -> Plant:
    """Every picture has the same key."""
    from k3mem.engine import Engine

    def make(old: Any) -> Any:
        def tokens(self: Engine, request: Any) -> Any:
            request.media = [(first, count, b"") for first, count, _ in request.media]
            return old(self, request)
        return tokens

    return patched(Engine, "_tokens", make)


def counted_at_every_admission() -> Plant:
    """A retracted request counts as input again when it is seated again."""

    def make(old: Any) -> Any:
        def count(core: Core, b: Builder, *more: Any) -> None:
            old(core, b, *more)
            seat, _, kind = b.admitted.pop()
            b.admitted.append((seat, True, kind))
        return count

    return patched(admit, "_count", make)


def nothing_is_reused() -> Plant:
    """Every match is empty."""
    return matching(lambda cache, scope, tokens, limit, found: Match(
        cache.tree.root(scope), 0, NO_STATE, found.known, found.kv, found.evicted, found.full))


def answers_are_not_kept() -> Plant:
    """A working state is freed at a request's end."""
    return patched(close, "_publish_last", lambda old: lambda core, seat, kind: None)


def tails_are_not_matched() -> Plant:
    """A checkpoint inside a page serves nobody."""

    def change(cache: Cache, scope: Any, tokens: Any, limit: int, found: Match) -> Match:
        if found.depth % cache.shape.page_span == 0:
            return found
        return cache.tree.match(scope, tokens, found.depth // cache.shape.page_span * cache.shape.page_span, 1 << 60)

    return matching(change)


def evicts_one_more() -> Plant:
    """Room is made for one state more than anybody asked for."""

    def make(old: Any) -> Any:
        def alloc(self: Cache, pages: int, states: int, *more: Any) -> Any:
            victim = self.tree.evict()
            if victim is not None:
                self.discard(victim)
            return old(self, pages, states, *more)
        return alloc

    def take(old: Any) -> Any:
        def taken(core: Core, b: Builder, pages: int, states: int, *more: Any) -> Any:
            core.cache.room(pages, states)
            return old(core, b, pages, states, *more)
        return taken

    def one(old: Any) -> Any:
        def taken(core: Core, b: Builder, *more: Any) -> Any:
            core.cache.room(0, 1)
            return old(core, b, *more)
        return taken

    return all_of(patched(Cache, "room", make), patched(room, "take", take), patched(room, "take_state", one))


def targets_are_skipped() -> Plant:
    """Prefill takes no target although there is room."""
    return patched(prefill, "add_targets", lambda old: lambda core, b: None)


CANARY_STEPS = 1000


def canary() -> Plant:
    """An assertion that fails after 1,000 steps: whoever does not find it looks nowhere."""

    def make(old: Any) -> Any:
        def launched(core: Core, *a: Any) -> Flight:
            flight = old(core, *a)
            assert core.metrics.steps <= CANARY_STEPS, "the canary sings"
            return flight  # type: ignore[no-any-return]
        return launched

    return patched(launch, "launched", make)
