"""Root causes against single rules of arena, tree and states: one a rule that nothing else would forbid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.fuzz.patching import Plant, all_of, patched, plans
from k3mem.plan import Plan
from k3mem.pool import Arena, ExtraBuffer
from k3mem.radix import Kind, Match, Tree
from k3mem.sched import admit, anchors, close, decode, prefill, scheduler
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache, Kept
from k3mem.sched.core import Core
from k3mem.sched.job import End, Job, Seated

# -- arena


def pages_grow_down() -> Plant:
    """Pages of a demand are handed out the wrong way round: ids and places part company."""

    def make(old: Any) -> Any:
        def page_places(self: Arena, ids: Any) -> Any:
            return self.page_ids - 1 - old(self, ids)
        return page_places

    return patched(Arena, "page_places", make)


def small_ones_overtake() -> Plant:
    """Who does not fit is passed by whoever does: the head of the queue keeps no reservation."""

    def make(old: Any) -> Any:
        def seat(core: Core, b: Builder, job: Job, found: Match) -> bool:
            if old(core, b, job, found):
                return True
            for other in [other for other in core.queue if other.rank > job.rank and core.lanes.has_free]:
                tokens = other.tokens[: other.count]
                if prefill.budget_left(core, b) > 0:
                    old(core, b, other, admit.match(core, other.scope, tokens, b.step))
            return False
        return seat

    return patched(admit, "_seat", make)


def moves_alone_are_nothing() -> Plant:
    """A plan of moves alone is taken for an empty one."""

    def make(old: Any) -> Any:
        def plan(self: scheduler.Scheduler) -> Plan | None:
            made = old(self)
            if made is not None and self.core.open is not None and not made.rows and not self.core.open.admitted:
                self.cancel(made)
                self.core.waits_for = "memory"
                return None
            return made  # type: ignore[no-any-return]
        return plan

    return patched(scheduler.Scheduler, "plan", make)


def moves_know_no_bound() -> Plant:
    """Whatever the policy says, a step moves all that helps."""
    return patched(Arena, "make_room", lambda old: lambda self, *demand: old(self, *demand[:2], 1 << 60))


def compaction_is_silent() -> Plant:
    """Where holes close as they appear, nobody tells the device."""

    def make(old: Any) -> Any:
        def compact(self: Arena, budget: int) -> Any:
            return old(self, budget)[:0]
        return compact

    return patched(Arena, "compact", make)


def a_lease_stops_all_moves() -> Plant:
    """A lease holds the whole arena, not one entry."""

    def make(old: Any) -> Any:
        def make_room(self: Arena, *demand: Any) -> Any:
            return old(self, *demand) if not self.leases else np.zeros((0, 4), np.int32)
        return make_room

    return patched(Arena, "make_room", make)


def _reserving(more: Callable[[Core, Job], int]) -> Plant:
    """Admission reserves so many pages more for a job."""
    asked: list[Job] = []

    def seat(old: Any) -> Any:
        def seated(core: Core, b: Builder, job: Job, found: Match) -> bool:
            asked[:] = [job]
            return old(core, b, job, found)  # type: ignore[no-any-return]
        return seated

    def reserve(old: Any) -> Any:
        def reserved(core: Core, b: Builder, found: Match, need: int) -> Any:
            return old(core, b, found, need + more(core, asked[0]))
        return reserved

    return all_of(patched(admit, "_seat", seat), patched(admit, "_reserve", reserve))


def output_is_reserved() -> Plant:
    """A request is let in when all it may ever say has a page."""
    return _reserving(lambda core, job: -(-job.limit // core.span) - -(-(job.count + 1) // core.span))


def first_decode_page_is_forgotten() -> Plant:
    """Only the prompt's own pages are reserved."""
    return _reserving(lambda core, job: -int(job.count % core.span == 0))


def writer_unlocks_what_it_published() -> Plant:
    """Whoever publishes a chunk lets go of it: its pages are anybody's while it runs."""

    def make(old: Any) -> Any:
        def publish(core: Core, seat: Seated, *more: Any) -> bool:
            taken = old(core, seat, *more)
            if seat.end is None:
                core.cache.tree.unlock(seat.node)
            return taken  # type: ignore[no-any-return]
        return publish

    return patched(close, "publish", make)


def zeroed_a_plan_later() -> Plant:
    """A page is zeroed in the plan after the one that hands it to a lane: an id is reused before its zeroing."""
    late: list[Any] = [np.zeros(0, np.int32)]

    def change(plan: Plan) -> Plan:
        now, late[0] = late[0], plan.zero_pages
        live = np.isin(now, plan.lane_pages[:, 2], invert=True) if len(now) else np.zeros(0, bool)
        return replace(plan, zero_pages=now[live])

    return plans(change)


# -- tree


def source_stays_locked() -> Plant:
    """Who restores from a checkpoint keeps it locked beside its own node."""

    def make(old: Any) -> Any:
        def tell(core: Core, b: Builder, seat: Seated, found: Match, in_place: bool) -> None:
            old(core, b, seat, found, in_place)
            if found.depth and not in_place:
                core.cache.tree.lock(found.node)
        return tell

    return patched(admit, "_tell_device", make)


def matched_a_plan_ago() -> Plant:
    """A match outlives its plan: what was found for a job that did not fit is used when it does."""

    def make(old: Any) -> Any:
        known: dict[tuple[int, int, int], Match] = {}

        def match(core: Core, scope: Any, tokens: Any, step: int) -> Match:
            key = (id(core), int(scope) if scope is not None else -1, hash(tokens.tobytes()))
            found = known.get(key)
            if found is None or not found.depth:
                found = known[key] = old(core, scope, tokens, step)
            return found
        return match

    return patched(admit, "match", make)


def scope_is_left_out() -> Plant:
    """A plan's seats do not say whose keys they are."""
    return plans(lambda plan: replace(plan, seats=tuple(
        type(seat)(**{name: getattr(seat, name) for name in seat.__struct_fields__} | {"scope": bytes(32)})
        for seat in plan.seats)))


def deeper_owner_does_not_take_over() -> Plant:
    """A page that a tail references stays with the tail when a deeper node is published over it: the writer's last
    page is given back with it."""

    def make(old: Any) -> Any:
        def keep(self: Cache, node: Any, tokens: Any, end: int, pages: Any, *more: Any) -> Kept:
            info = self.tree.info(node)
            kept: Kept = old(self, node, tokens, end, pages, *more)
            if info.is_tail and end > info.depth and kept.taken:
                page = self.tree.pages(kept.node)[info.depth // self.shape.page_span]
                self.arena.free_pages(np.array([page], np.int32))
            return kept
        return keep

    return patched(Cache, "keep", make)


def superseded_is_freed() -> Plant:
    """What is superseded goes at once, whether anybody needs its bytes or not."""

    def make(old: Any) -> Any:
        def keep(self: Cache, *args: Any) -> Kept:
            kept: Kept = old(self, *args)
            while self.tree.next_class() == 0:
                victim = self.tree.evict(kept.node)
                if victim is None:
                    break
                self.discard(victim)
            return kept
        return keep

    return patched(Cache, "keep", make)


def hits_are_not_touched() -> Plant:
    """Reuse does not count as use: what serves everybody is evicted as if it served nobody."""
    return patched(Tree, "touch", lambda old: lambda self, node: None)


# -- states


def snapshot_shares_the_donation() -> Plant:
    """The next snapshot is taken into the state that was just donated."""

    def make(old: Any) -> Any:
        given: dict[int, Any] = {}

        def donate(self: ExtraBuffer) -> Any:
            state, depth = old(self)
            given[id(self)] = state
            return state, depth

        def add(old_add: Any) -> Any:
            def add_snapshots(core: Core, b: Builder) -> None:
                for lane in b.lanes.tolist():
                    extra = core.lanes.seat(lane).extra
                    state = given.pop(id(extra), None)
                    anchor = anchors.decode_anchor(core, int(core.lanes.launched[lane]))
                    if state is not None and extra.pending is None and anchor is not None and anchor > extra.depth:
                        extra.begin(state, anchor)
                old_add(core, b)
            return add_snapshots

        donate.add = add  # type: ignore[attr-defined]
        return donate

    shared: list[Any] = []

    def keep(old: Any) -> Any:
        shared.append(make(old))
        return shared[-1]

    return all_of(patched(ExtraBuffer, "donate", keep),
                  patched(decode, "add_snapshots", lambda old: lambda core, b: shared[-1].add(old)(core, b)))


def donated_while_written() -> Plant:
    """The working state is donated when its request ends, while a row in flight still writes it."""

    def make(old: Any) -> Any:
        def mark(core: Core, seat: Seated, end: End) -> None:
            old(core, seat, end)
            lane = seat.lane
            if end == End.FINISH and core.lanes.inflight[lane] and core.policy.caching and seat.job.reason:
                ahead, core.lanes.launched[lane] = core.lanes.launched[lane], seat.job.count - 1
                if core.policy.answer_ends and not core.policy.deterministic:
                    close._publish_last(core, seat, Kind.ANSWER_END)
                core.lanes.launched[lane] = ahead
        return mark

    return patched(close, "mark", make)


def takes_over_what_others_use() -> Plant:
    """A checkpoint on which another request stands is taken over as a working state all the same."""

    def make(old: Any) -> Any:
        def info(self: Tree, node: Any) -> Any:
            return old(self, node)._replace(lock=1)
        return info

    def reserve(old: Any) -> Any:
        def wrapped(core: Core, b: Builder, found: Match, need: int) -> Any:
            with patched(Tree, "info", make):
                return old(core, b, found, need)
        return wrapped

    return patched(admit, "_reserve", reserve)


def checkpoint_off_the_grid() -> Plant:
    """A chunk that fell short of the grid leaves a checkpoint where it ends."""

    def make(old: Any) -> Any:
        def inside(core: Core, seat: Seated, start: int, end: int) -> list[tuple[int, Kind]]:
            out: list[tuple[int, Kind]] = old(core, seat, start, end)
            short = end < seat.target and end % core.shape.grid
            return [*out, (end, Kind.CHUNK_END)] if short and core.policy.chunk_ends else out
        return inside

    return patched(anchors, "inside", make)


def chunk_ends_first() -> Plant:
    """Where states are short, chunk ends take them before the prompt's end does."""

    def make(old: Any) -> Any:
        def add_targets(core: Core, b: Builder) -> None:
            ours = anchors.PLACE
            anchors.PLACE = {kind: -place for kind, place in ours.items()}
            old(core, b)
            anchors.PLACE = ours
        return add_targets

    return patched(prefill, "add_targets", make)


def targets_before_the_queue() -> Plant:
    """Running prompts take their targets before anybody is let in."""

    def first(old: Any) -> Any:
        def admitted(core: Core, b: Builder) -> None:
            prefill.add_rows(core, b)
            prefill.add_targets(core, b)
            old(core, b)
        return admitted

    def again(old: Any) -> Any:
        def add_targets(core: Core, b: Builder) -> None:
            rows, b.prefill = b.prefill, [row for row in b.prefill if not row.targets]
            old(core, b)
            b.prefill = rows
        return add_targets

    return all_of(patched(admit, "admit", first), patched(prefill, "add_targets", again))
