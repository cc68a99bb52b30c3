"""Corner cases that somebody planted who knew the core and not the fuzzer: one undo, one condition, one order each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from k3mem.engine import Engine
from k3mem.errors import Effect
from k3mem.fuzz.patching import Plant, all_of, patched
from k3mem.request import Request
from k3mem.sched import anchors, decode, failure, follow, launch
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import Seated
from k3mem.sched.scheduler import Scheduler


def counted_after_publishing() -> Plant:
    """Admissions are counted once their chunks are published, when their depth is no longer where they resumed."""
    publish = launch._publish

    def make(old: Any) -> Any:
        def count(core: Core, b: Builder) -> None:
            publish(core, b, b.step)
            old(core, b)
        return count

    return all_of(patched(launch, "_count", make), patched(launch, "_publish", lambda old: lambda *a: None))


def seated_without_a_row() -> Plant:
    """Who was seated by a step that failed without effect, without a row in it, goes on from a state never restored."""

    def make(old: Any) -> Any:
        def fail(core: Core, failed: list[Flight], effect: Effect, first_step: int) -> None:
            if effect == Effect.NO_EFFECT:
                failed = [replace(flight, plan=replace(flight.plan, seats=())) for flight in failed]
            old(core, failed, effect, first_step)
        return fail

    return patched(failure, "fail", make)


def timed_by_the_last() -> Plant:
    """Whether time matters is told by the newest request alone."""

    def make(old: Any) -> Any:
        def submit(self: Scheduler, request: Request, tokens: Any) -> None:
            old(self, request, tokens)
            self.core.timed = request.deadline is not None
        return submit

    return patched(Scheduler, "submit", make)


def cut_on_pages() -> Plant:
    """Whether a chunk starts off the chunk grid is told by its page."""

    def make(old: Any) -> Any:
        def cut(core: Core, seat: Seated, start: int, end: int) -> int:
            if core.capabilities.capture == "grid" and start % core.span == 0:
                return end
            return old(core, seat, start, end)  # type: ignore[no-any-return]
        return cut

    return patched(anchors, "cut", make)


def followers_of_strangers() -> Plant:
    """A follower waits for a prompt of another scope that begins like its own."""
    return patched(follow, "_alike", lambda old: lambda leader, job: leader.job.opening == job.opening is not None)


def pictures_share_a_number() -> Plant:
    """All media that are new with one request get one number."""

    def make(old: Any) -> Any:
        def tokens(self: Engine, request: Request) -> Any:
            out, fresh = old(self, request)
            first = min(fresh.values(), default=0)
            for number in fresh.values():
                out[out == self.scheduler.core.shape.vocab_size + number] = self.scheduler.core.shape.vocab_size + first
            return out, dict.fromkeys(fresh, first)
        return tokens

    return patched(Engine, "_tokens", make)


def refused_sleep_sleeps() -> Plant:
    """A sleep that comes too early is refused, and the engine sleeps."""

    def make(old: Any) -> Any:
        def sleep(self: Engine) -> None:
            self._asleep = True
            old(self)
        return sleep

    return patched(Engine, "sleep", make)


def pending_is_named_once() -> Plant:
    """A conditional target is named by the plan that takes it, and never again."""

    def make(old: Any) -> Any:
        def add_snapshots(core: Core, b: Builder) -> None:
            before = {seat.extra.pending for seat in core.lanes.taken()} - {None}
            old(core, b)
            b.snapshots = [snapshot for snapshot in b.snapshots if snapshot.target not in before]
        return add_snapshots

    return patched(decode, "add_snapshots", make)


def offset_of_the_seat() -> Plant:
    """In a resync the sampling offset is counted from where a lane began to decode, not from its caller's prompt."""

    def make(old: Any) -> Any:
        def reseat(self: Scheduler, b: Builder) -> None:
            old(self, b)
            b.seats = [msgspec.structs.replace(seat, prompt=self.core.lanes.seat(seat.lane).target) for seat in b.seats]
        return reseat

    return patched(Scheduler, "_reseat", make)
