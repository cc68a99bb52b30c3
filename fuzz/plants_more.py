"""Root causes beyond the known cases: failure, leases, followers, retraction, accounting, liveness, lost reuse."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.errors import Effect
from k3mem.executors.mock.device import Device, Run
from k3mem.fuzz.patching import Plant, all_of, matching, patched, plans
from k3mem.plan import Plan, Row
from k3mem.pool import Arena, ExtraBuffer
from k3mem.radix import Kind, Match, Tree
from k3mem.sched import admit, close, commit, decode, failure, follow, launch, prefill, room, scheduler, spare
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import End, Job, Seated
from k3mem.sched.lanes import Lanes
from k3mem.sched.pins import Pins
from k3mem.types import NO_STATE

# -- plans: order, moves, restores, copies


def _moves(change: Any) -> Plant:
    return plans(lambda plan: replace(plan, moves=change(plan.moves.copy())) if len(plan.moves) else plan)


def moves_through_the_new_table() -> Plant:
    """The source of a move is looked up in the table that holds its destination already: nothing moves."""

    def change(moves: Any) -> Any:
        moves[:, 2] = moves[:, 3]
        return moves

    return _moves(change)


def batches_are_one() -> Plant:
    """All batches of a plan run as one: a chain overwrites what it has still to move."""

    def make(old: Any) -> Any:
        def move(self: Builder, moves: Any) -> None:
            old(self, moves)
            if self.moves and self.batches > 1:
                self.moves[-1][:, 0] = 0
        return move

    return patched(Builder, "move", make)


def moves_are_dropped() -> Plant:
    """A plan forgets its moves."""
    return _moves(lambda moves: moves[:0])


def tables_miss_moves() -> Plant:
    """An entry that moved keeps its old place in the device's table."""

    def change(plan: Plan) -> Plan:
        moved = plan.moves[plan.moves[:, 1] == 0, 3]
        return replace(plan, page_table=plan.page_table[~np.isin(plan.page_table[:, 1], moved)])

    return plans(change)


def snapshot_one_off() -> Plant:
    """A prefill snapshot is taken one token before the depth under which it is published."""

    def change(plan: Plan) -> Plan:
        snapshots = plan.snapshots.copy()
        for entry in snapshots:
            inside = plan.kind[entry[0]] == Row.PREFILL and entry[1] - 1 > plan.start[entry[0]]
            entry[1] -= bool(inside)
        return replace(plan, snapshots=snapshots)

    return plans(change)


def tails_are_not_copied() -> Plant:
    """Who resumes at a tail gets a page without the tail's rows."""
    return plans(lambda plan: replace(plan, page_copies=plan.page_copies[:0]))


def tail_page_is_shared() -> Plant:
    """Who resumes at a tail writes on in the tail's own page."""

    def make(old: Any) -> Any:
        def tell(core: Core, b: Builder, seat: Seated, found: Match, in_place: bool) -> None:
            if found.depth % core.span:
                seat.pages[seat.owned] = core.cache.tree.pages(found.node)[-1]
            old(core, b, seat, found, in_place)
            b.copies.clear()
        return tell

    return patched(admit, "_tell_device", make)


def restore_is_forgotten() -> Plant:
    """A request at a hit starts from what its working state's bytes held before."""
    return plans(lambda plan: replace(plan, restores=plan.restores[:0]))


def deltas_are_forgotten() -> Plant:
    """A page that the tree had already replaces the writer's, and the device is not told."""

    def make(old: Any) -> Any:
        def plan(self: scheduler.Scheduler) -> Any:
            self.core.deltas.clear()
            return old(self)
        return plan

    return patched(scheduler.Scheduler, "plan", make)


# -- lanes and steps in flight


def freed_before_the_last_reader() -> Plant:
    """A lane that ends closes at once, whatever rows of it are in flight."""
    return patched(close, "settle", lambda old: lambda core, seat: close.close(core, seat))


def freed_twice_on_abort() -> Plant:
    """Both the abort and the end of the lane give its pages back."""

    def make(old: Any) -> Any:
        def mark(core: Core, seat: Seated, end: End) -> None:
            if end == End.ABORT and seat.owned < seat.page_count:
                core.cache.arena.free_pages(seat.pages[seat.owned : seat.page_count])
            old(core, seat, end)
        return mark

    return patched(close, "mark", make)


def generation_stays() -> Plant:
    """A lane's new tenant has the generation of the last one."""

    def make(old: Any) -> Any:
        def take(self: Lanes) -> Any:
            lane = old(self)
            self.generation[lane] = 1
            return lane
        return take

    return patched(Lanes, "take", make)


def done_is_ignored() -> Plant:
    """The device decodes on in a lane that has ended."""

    def make(old: Any) -> Any:
        def sample(self: Device, run: Run) -> None:
            old(self, run)
            for tenant in run.lanes:
                if tenant is not None:
                    tenant.done = 0
        return sample

    return patched(Device, "sample", make)


def fold_runs_twice() -> Plant:
    """The accepted records are replayed twice."""

    def make(old: Any) -> Any:
        def fold(self: Device, run: Run) -> None:
            old(self, run)
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def fold_counts_by_row() -> Plant:
    """How many records a lane replays is read from its neighbour."""

    def make(old: Any) -> Any:
        def fold(self: Device, run: Run) -> None:
            verify = [i for i, kind in enumerate(run.kind) if kind == Row.VERIFY and run.lanes[i] is not None]
            counts = [run.fresh[i] for i in verify]
            for i, count in zip(verify, counts[1:] + counts[:1], strict=True):
                run.fresh[i] = min(count, len(run.records[i]))
            old(self, run)
        return fold

    return patched(Device, "fold", make)


def donated_at_the_cut() -> Plant:
    """A state that has absorbed an overrun token is published where the output ends."""

    def make(old: Any) -> Any:
        def publish_last(core: Core, seat: Seated, kind: Kind) -> None:
            depth = int(core.lanes.launched[seat.lane])
            cut = seat.job.count - 2
            if seat.job.prompt <= cut < depth and cut > seat.node_depth and depth == seat.job.count - 1 \
                    and kind == Kind.RETRACT:
                core.lanes.launched[seat.lane] = cut
            old(core, seat, kind)
            core.lanes.launched[seat.lane] = depth
        return publish_last

    return patched(close, "_publish_last", make)


def targets_begin_anew() -> Plant:
    """Each plan takes a new target for a depth that an earlier one names already; the earlier is lost."""

    def make(old: Any) -> Any:
        def add(core: Core, b: Builder) -> None:
            for lane in b.lanes.tolist():
                extra: ExtraBuffer = core.lanes.seat(lane).extra
                if core.lanes.inflight[lane] == 0:
                    extra.pending, extra.pending_depth = None, -1
            old(core, b)
        return add

    return patched(decode, "add_snapshots", make)


# -- failure


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


# -- cancel, reservations, capacity


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


# -- scheduling


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
        def retract(core: Core, seat: Seated, now: bool = True) -> None:
            seat.job.serial = core.serial
            core.serial += 1
            old(core, seat, now)
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
            clock, self.core.clock = self.core.clock, time.time
            old(self)
            self.core.clock = clock
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
        def book(core: Core, seat: Seated, tokens: Any, done: int, times: Any) -> Any:
            out = old(core, seat, tokens, done, times)
            if out is not None and seat.job.retractions and out.tokens:
                import msgspec

                return msgspec.structs.replace(out, tokens=[*out.tokens, out.tokens[-1]])
            return out
        return book

    return patched(commit, "_book", make)


# -- keys and accounts


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


# -- reuse that silently stops


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

    return all_of(patched(Cache, "room", make), patched(room, "make_room", lambda old: (
        lambda core, b, pages, states, *more, **kw: (
            core.cache.room(pages, states, kw.get("node", -1)) is not None and old(core, b, pages, states, *more, **kw))
    )))


def targets_are_skipped() -> Plant:
    """Prefill takes no target although there is room."""
    return patched(prefill, "add_targets", lambda old: lambda core, b: None)


# -- the canary

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
