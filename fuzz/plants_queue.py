"""Root causes against single rules of the queue: rows, followers, ends, time, events. See `plants_rules`."""

from __future__ import annotations

from typing import Any

from k3mem.engine import _Latch
from k3mem.events import EventLog
from k3mem.fuzz.patching import Plant, all_of, patched
from k3mem.radix import Kind, Match
from k3mem.sched import admit, decode, follow, prefill
from k3mem.sched.builder import Builder
from k3mem.sched.core import Core
from k3mem.sched.job import End, Job, Seated
from k3mem.sched.lanes import Phase
from k3mem.sched.pins import Pins

# -- rows


def decodes_wait_for_prompts() -> Plant:
    """While any prompt runs, nobody decodes."""

    def make(old: Any) -> Any:
        def add_rows(core: Core, b: Builder) -> None:
            if not (core.lanes.phase == Phase.PREFILL).any():
                old(core, b)
        return add_rows

    return patched(decode, "add_rows", make)


def chunks_stop_short() -> Plant:
    """A chunk ends on the grid, one depth before the deepest that the budget reaches."""

    def make(old: Any) -> Any:
        def chunk_end(core: Core, b: Builder, seat: Seated, start: int) -> int:
            end, grid = old(core, b, seat, start), core.shape.grid
            short = end - grid > start and end < seat.target and end % grid == 0
            return end - grid if short else end  # type: ignore[no-any-return]
        return chunk_end

    return patched(prefill, "_chunk_end", make)


def victim_keeps_its_row() -> Plant:
    """A request that is retracted while rows are covered is computed once more."""

    def make(old: Any) -> Any:
        def cover(core: Core, b: Builder, rows: Any, needs: Any) -> Any:
            lanes, chosen = core.lanes, rows.lane.tolist()
            seats = [lanes.seat(lane) for lane in chosen]
            keep = old(core, b, rows, needs)
            for i, seat in enumerate(seats):
                keep[i] |= seat.end == End.RETRACT and lanes.seats[chosen[i]] is seat
            return keep
        return cover

    return patched(decode, "_cover_by_rank", make)


def preempted_too_late() -> Plant:
    """Who is in the way of a better rank is retracted only after its rows are planned."""

    def make(old: Any) -> Any:
        def add_targets(core: Core, b: Builder) -> None:
            old(core, b)
            _preempt(core)
        return add_targets

    _preempt = admit.preempt
    return all_of(patched(admit, "preempt", lambda old: lambda core: None), patched(prefill, "add_targets", make))


# -- followers


def followers_wait_for_ever() -> Plant:
    """A follower's patience has no end."""
    return patched(follow, "_patient", lambda old: lambda core, job: True)


def followers_wait_without_a_slot() -> Plant:
    """A follower waits for whoever shares a page with it, slot or no slot."""

    def make(old: Any) -> Any:
        def joins(core: Core, b: Builder, leader: Seated, job: Job, tokens: Any, found: Match) -> bool:
            return old(core, b, leader, job, tokens, found) or follow._alike(leader, job)
        return joins

    return patched(follow, "_joins", make)


def followers_are_judged_once() -> Plant:
    """Who waited a plan ago waits on, as long as its patience lasts."""

    def make(old: Any) -> Any:
        def should_wait(core: Core, b: Builder, job: Job, tokens: Any, found: Match) -> bool:
            if old(core, b, job, tokens, found):
                return True
            if not job.waits or not follow._patient(core, job) or not core.lanes.prompts():
                return False
            job.waits += 1
            b.journal.append(lambda: follow._unwait(job))
            return True
        return should_wait

    return patched(follow, "should_wait", make)


def followers_hold_a_state() -> Plant:
    """A follower takes its working state while it waits."""

    def make(old: Any) -> Any:
        def should_wait(core: Core, b: Builder, *more: Any) -> bool:
            waits: bool = old(core, b, *more)
            if waits:
                core.cache.arena.alloc(0, 1)
            return waits
        return should_wait

    return patched(follow, "should_wait", make)


def followers_lend_nothing() -> Plant:
    """A leader keeps its own rank, whoever waits for it."""

    def make(old: Any) -> Any:
        def joins(core: Core, b: Builder, leader: Seated, *more: Any) -> bool:
            lent = leader.lent
            out: bool = old(core, b, leader, *more)
            leader.lent = lent
            return out
        return joins

    return patched(follow, "_joins", make)


def slots_are_chunk_ends() -> Plant:
    """What a follower waits for is kept as a chunk end, which the leader's next chunk supersedes."""

    def make(old: Any) -> Any:
        def meeting(core: Core, b: Builder, leader: Seated, *more: Any) -> int | None:
            depth: int | None = old(core, b, leader, *more)
            if depth is not None and leader.anchors.get(depth) == Kind.BRANCH:
                leader.anchors[depth] = Kind.CHUNK_END
            return depth
        return meeting

    return patched(follow, "_meeting", make)


# -- ends, time, events


def latch_is_forgotten() -> Plant:
    """A broken invariant is reported once, and the engine goes on."""

    return patched(_Latch, "__exit__", lambda old: lambda self, *a: None)


def pins_by_the_wall() -> Plant:
    """A pin's time to live runs on the wall clock: it ends when a machine's clock says so, not the engine's."""
    import time

    return patched(Pins, "expire", lambda old: lambda self, now: old(self, time.time()))


def events_before_their_step() -> Plant:
    """A checkpoint is an event when it is launched, not when its step has committed."""

    def make(old: Any) -> Any:
        def checkpoint(self: EventLog, stamp: int, depth: int, kind: str) -> None:
            self.add("checkpoint", depth=depth, detail=kind)
        return checkpoint

    return patched(EventLog, "checkpoint", make)


def events_come_backwards() -> Plant:
    """The log gives its events newest first."""
    return patched(EventLog, "since", lambda old: lambda self, seq: old(self, seq)[::-1])


def failed_checkpoints_are_events() -> Plant:
    """What a failed step was to leave is told as if it had."""
    return patched(EventLog, "failed", lambda old: lambda self, step: None)

