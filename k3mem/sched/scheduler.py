"""The scheduler: plan, launched, commit, cancel, fail. Verbs over one `Core`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from k3mem.errors import Corrupted, Effect, InvalidRequest, RequestTooLarge, UnknownRequest
from k3mem.executor import Capabilities, Ticket
from k3mem.plan import Plan, Result, Seat
from k3mem.policy import Policy
from k3mem.radix import Note, due
from k3mem.request import Hit, Output, Outputs, Request, RequestId
from k3mem.sched import admit, check, close, commit, decode, failure, forward, launch, moves, prefill
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import End, Job
from k3mem.sched.lanes import Lanes, Phase
from k3mem.sched.pins import Pins
from k3mem.sched.queue import Queue
from k3mem.sched.sessions import Sessions
from k3mem.shape import Shape
from k3mem.spec import Drafter, Planner
from k3mem.types import Int32


class Scheduler:
    """Decides what every step does. Knows no executor; `Engine` carries plans to one and results back."""

    def __init__(self, shape: Shape, policy: Policy, capacity_bytes: int, capabilities: Capabilities,
                 clock: Callable[[], float], drafter: Drafter | None = None, window: int = 1,
                 planner: Planner | None = None) -> None:
        scratch = policy.max_running * window * shape.record_bytes if drafter is not None else 0
        cache = Cache(shape, policy, capacity_bytes, scratch, getattr(drafter, "version", ""))
        self.core = Core(shape, policy, cache, Lanes(policy.max_running, shape.page_span), capabilities, clock,
                         Pins(cache), Queue(shape.grid), drafter, window, planner)
        self.core.ends_drafts = getattr(drafter, "ended", None)
        self.core.drafts_lane = getattr(drafter, "draft_lane", None)
        if policy.admission is not None:
            self.core.sessions = Sessions(policy.admission, shape.page_span, self._holds, self._cached)

    # -- requests

    def submit(self, request: Request, tokens: Int32) -> None:
        """Queue a request whose tokens (media interned) were checked; it, they, and the array that they are the
        beginning of (room for the output) are the engine's own from now on. Raises InvalidRequest for an id in use,
        RequestTooLarge for one that could never run even alone; nothing has changed then."""
        core, shape = self.core, self.core.shape
        if request.id in core.jobs:
            raise InvalidRequest(f"request {request.id!r} is still in flight; use another id, or wait for its end")
        limit = len(tokens) + request.max_new_tokens
        if limit > shape.max_tokens:
            core.metrics.rejected += 1
            raise RequestTooLarge(f"request {request.id!r}: {len(tokens)} + {request.max_new_tokens} tokens exceed the "
                                  f"model's {shape.max_tokens}; shorten it")
        pages = -(-limit // core.span)
        if not core.cache.arena.capacity_for(pages, 1):
            core.metrics.rejected += 1
            raise RequestTooLarge(f"request {request.id!r}: {limit} tokens need {pages} pages and a state, more than "
                                  f"the whole arena holds; shorten it or enlarge capacity_bytes")
        room = tokens if tokens.base is None else tokens.base
        job = Job(request, core.cache.scope(request.scope), core.serial, room, len(tokens), len(tokens), limit)
        core.serial += 1
        core.timed |= request.deadline is not None
        core.priorities.add(request.priority)
        core.jobs[request.id] = job
        if core.sessions is None or core.sessions.arrive(job, core.clock(), self._busy):
            core.queue.add(job)
        core.metrics.events["submit"] += 1
        core.cache.log.add("submit", request.id, len(tokens))

    def abort(self, request_id: RequestId, reason: str = "abort") -> None:
        """End a request at the next plan; a row already launched is a counted overrun. Raises UnknownRequest."""
        core = self.core
        job = core.jobs.get(request_id)
        if job is None or job.reason is not None:
            raise UnknownRequest(f"no request {request_id!r} is waiting or running; it may have ended already")
        job.reason = reason
        core.metrics.aborts += 1
        core.metrics.events["abort"] += 1
        core.cache.log.add("end", request_id, detail=reason)
        core.outputs.append(Output(request_id, [], True, reason))
        held = core.sessions is not None and core.sessions.remove(job)
        if held or job in core.queue:
            if not held:
                core.queue.remove(job)
            core.forget(job)
            return
        seat = next(s for s in core.lanes.taken() if s.job is job)
        if seat.end is None:
            close.mark(core, seat, End.ABORT)
        else:
            seat.end = End.ABORT
        if core.open is None:
            close.settle(core, seat)

    def probe(self, request: Request, tokens: Int32) -> Hit:
        """What a request would hit now. Touches nothing: a scope that nobody used is not made. O(prompt)."""
        core = self.core
        scope = core.cache.known_scope(request.scope)
        return admit.hit_of(core, scope, tokens, admit.match(core, scope, tokens, core.step + 1))

    @property
    def has_work(self) -> bool:
        """Whether any request waits, runs or drains."""
        core = self.core
        return bool(core.jobs or core.flights or core.outputs)

    # -- one step

    def plan(self) -> Plan | None:
        """The next step, or None with the reason in `core.waits_for`. Launch or cancel it before planning again. What
        a drafter raises comes out of here, with the plan cancelled."""
        core = self.core
        if core.open is not None:
            raise RuntimeError(f"plan {core.open.step} is open: launch() or cancel() it first")
        core.planned = core.clock()
        self._expire()
        self._settle()
        if core.sessions is not None:
            idle = not (core.queue or core.lanes.running or core.flights)
            for job in core.sessions.release(core.planned, idle):
                core.queue.add(job)
        if core.resync and core.flights:
            core.waits_for = "commit"  # a resync names every lane's last token: all of them must be known
            return None
        admit.preempt(core)
        core.move_left = core.policy.move_budget
        b = core.open = Builder(core.step + 1)
        b.journal += [core.metrics.mark(), partial(setattr, core, "wanting", None)]
        if core.resync:
            self._reseat(b)
        else:
            seats = core.lanes.seats
            b.lane_pages += [(s.lane, i, p) for s, i, p in core.deltas if seats[s.lane] is s] if core.deltas else ()
        try:
            self._fill(b)
        except Corrupted:
            raise
        except BaseException:  # a drafter's, the executor's fast-forward's, or from outside
            self._drop(b)
            raise
        if not (b.has_rows or b.moves or b.admitted):
            core.open = None
            self._idle()
            return None
        return self._finish(b)

    def _fill(self, b: Builder) -> None:
        """Everything that a step does, in the order in which it takes room."""
        core = self.core
        if core.policy.eager:
            moves.add(core, b, core.cache.arena.compact(core.move_left))
        decode.add_rows(core, b)
        b.prompts = core.lanes.prompts()
        admit.admit(core, b)
        prefill.add_rows(core, b)
        prefill.add_targets(core, b)
        decode.add_snapshots(core, b)
        forward.extend(core, b)

    def _finish(self, b: Builder) -> Plan:
        core, arena = self.core, self.core.cache.arena
        core.stalls = 0
        if b.moves:
            moves.drop_dead(core, b)
        page_table, state_table = arena.drain()
        b.journal.insert(0, lambda: arena.redirty(page_table[:, 0].copy(), state_table[:, 0].copy()))
        if core.resync:
            page_table, state_table = arena.tables()
        return b.finish(core.lanes, page_table, state_table, core.resync)

    def launched(self, plan: Plan, ticket: Ticket) -> Flight:
        """The open plan is on the stream."""
        b = self._open(plan)
        self.core.open = None
        return launch.launched(self.core, b, plan, ticket)

    def cancel(self, plan: Plan) -> None:
        """Forget the open plan: nothing of it happened, except that evicted checkpoints are gone, that retracted
        requests wait, and that sessions that were let in are."""
        self._drop(self._open(plan))

    def _drop(self, b: Builder) -> None:
        b.undo()
        self.core.open = None
        self._settle()

    def missed(self) -> None:
        """A launch failed without effect: the plan was cancelled; the next one is a resync."""
        core = self.core
        core.resync = True
        core.metrics.failures += 1
        core.failures += 1
        failure.give_up(core)

    def commit(self, flight: Flight, result: Result) -> Outputs:
        """Book the oldest flight's result."""
        self._oldest(flight)
        if self.core.open is not None:
            raise RuntimeError(f"plan {self.core.open.step} is open: launch() or cancel() it before committing")
        out = commit.commit(self.core, flight, result)
        self.core.flights.popleft()
        self.core.cache.log.committed(flight.plan.step + flight.plan.repeat - 1)
        return out

    def fail(self, flight: Flight, effect: Effect) -> None:
        """The oldest flight failed, and with it all after it. Raises ExecutorFailed when it is hopeless."""
        core = self.core
        self._oldest(flight)
        if core.open is not None:
            core.open.undo()
            core.open = None
        failed = list(core.flights)
        core.flights.clear()
        failure.fail(core, failed, effect, flight.plan.step)

    # -- the whole cache

    def pin(self, session: Hashable, ttl: float) -> None:
        """Keep a session's newest checkpoint for `ttl` seconds."""
        self.core.timed = True
        self.core.pins.pin(session, self.core.clock() + ttl)

    def end_session(self, session: Hashable) -> None:
        """A session sends no more requests."""
        self.core.pins.unpin(session)
        if self.core.sessions is not None:
            self.core.sessions.end(session)

    def hint(self, session: Hashable, stop: str | None, returns_in: float | None, over: bool) -> bool:
        """What is known of the next use of a session's newest checkpoint; False where there is none."""
        place = self.core.pins.newest(session)
        if place is None:
            return False
        note = Note.UNKNOWN if stop is None else Note.TOOL if stop == "tool" else Note.END
        said = Note.OVER if over else note if returns_in is None else due(returns_in)
        self.core.cache.noted(place.node, said, place.ticket, self.core.now)
        return True

    def flush(self) -> None:
        """Drop all that nobody uses, ghosts included. Raises RuntimeError while a plan is open."""
        core = self.core
        self._closed("flush")
        core.pins.give_way()
        core.cache.give_back(core.cache.tree.flush())
        core.cache.log.add("flush")

    def empty(self, capacity_bytes: int | None = None) -> None:
        """All contents are gone; running jobs start again from the queue. With `capacity_bytes`, in an arena of that
        size. Raises RuntimeError while a plan is open or a step is in flight, RequestTooLarge if a job in flight
        would not fit, InvalidShape if nothing would; nothing has changed then."""
        core = self.core
        self._closed("resize, sleep and wake")
        if core.flights:
            raise RuntimeError(f"{len(core.flights)} steps are in flight: commit them first")
        if capacity_bytes is not None:
            probe = Cache(core.shape, core.policy, capacity_bytes, core.cache.arena.scratch_bytes)
            for job in core.jobs.values():
                if not probe.arena.capacity_for(-(-job.limit // core.span), 1):
                    raise RequestTooLarge(f"request {job.request.id!r} would not fit {capacity_bytes} bytes: abort it "
                                          "first, or keep more")
        core.pins.give_way()
        for seat in core.lanes.taken():
            failure.requeue(core, seat)
        core.cache.empty(capacity_bytes)
        core.resync = True
        if core.sessions is not None:
            core.sessions.changed()

    # -- helpers

    @property
    def _busy(self) -> bool:
        """Whether a request that comes now finds others waiting, or in their prompts."""
        return bool(self.core.queue) or bool((self.core.lanes.phase == Phase.PREFILL).any())

    def _holds(self, pages: int, states: int) -> bool:
        """Whether the arena, empty, would hold so much."""
        return self.core.cache.arena.capacity_for(pages, states)

    def _cached(self, job: Job) -> int:
        """Leading tokens of a job's prompt that it could resume from."""
        return admit.match(self.core, job.scope, job.tokens[: job.count], self.core.step + 1).depth

    def _closed(self, what: str) -> None:
        if self.core.open is not None:
            raise RuntimeError(f"plan {self.core.open.step} is open: launch() or cancel() it before {what}")

    def _open(self, plan: Plan) -> Builder:
        b = self.core.open
        if b is None or b.step != plan.step:
            raise RuntimeError(f"plan {plan.step} is not open: launch or cancel each plan once, right after plan()")
        return b

    def _oldest(self, flight: Flight) -> None:
        if not self.core.flights or self.core.flights[0] is not flight:
            raise RuntimeError(f"step {flight.plan.step} is not the oldest in flight: commit in launch order")

    def _expire(self) -> None:
        """End requests past their deadline, and pins past their time."""
        core = self.core
        if not core.timed:
            return
        now = core.planned
        core.pins.expire(now)
        for job in list(core.jobs.values()):
            deadline = job.request.deadline
            if deadline is not None and deadline <= now and job.reason is None:
                self.abort(job.request.id, "deadline")

    def _settle(self) -> None:
        if not self.core.ending:
            return
        for lane in list(self.core.ending):
            close.settle(self.core, self.core.lanes.seat(lane))

    def _idle(self) -> None:
        """Say what an empty plan waits for. Waiting with everything free is a broken invariant."""
        core = self.core
        if core.flights:
            core.waits_for = "commit"
        elif not core.jobs:
            core.waits_for = "nothing"
        elif core.cache.arena.leases:
            core.waits_for = "leases"
        else:
            core.waits_for = "memory"
            core.stalls = 0 if core.pins.give_way() else core.stalls + 1
            if core.stalls > 1:
                raise Corrupted(f"{len(core.queue)} requests wait, {core.lanes.running} run, nothing is in flight and "
                                "no row can be planned; report this with engine.stats()")
            return
        core.stalls = 0

    def _reseat(self, b: Builder) -> None:
        """A resync plan carries every lane and every page list whole."""
        core = self.core
        for seat in core.lanes.taken():
            job, lane = seat.job, seat.lane
            depth = int(core.lanes.launched[lane])
            last = int(job.tokens[depth]) if core.lanes.phase[lane] == Phase.DECODE else -1
            b.seats.append(Seat(
                lane=lane, generation=seat.generation, scope=core.cache.digest(job.scope), state=seat.state,
                depth=depth, prompt=job.prompt, limit=job.limit, last_token=last, sampling=job.request.sampling,
            ))
            b.lane_pages.append((lane, 0, seat.pages[: seat.touched].copy()))

    def check(self) -> None:
        """Every invariant of cache, lanes and their meeting. Raises Corrupted. O(everything)."""
        check.check(self.core)


__all__ = ["Job", "Scheduler"]
