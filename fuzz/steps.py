"""The engine of a world and its steps: plan, launch, cancel, collect, commit, each seen by the oracle.

Everything is injected: the clock, the drafter, the failures, the order in which commands run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from k3mem.engine import Engine
from k3mem.errors import Corrupted, Effect, ExecutorFailed, StepFailed
from k3mem.executors.mock import MockExecutor
from k3mem.fuzz import evictions, manners, sessions, watch
from k3mem.fuzz import script as act
from k3mem.fuzz.news import News
from k3mem.fuzz.oracle import Found, Oracle
from k3mem.fuzz.race import Judge
from k3mem.fuzz.recency import Recency
from k3mem.fuzz.record import BadRecording, Recorder, Sink
from k3mem.fuzz.rooms import Rooms
from k3mem.fuzz.script import Config
from k3mem.fuzz.speculation import Speculation
from k3mem.fuzz.surroundings import VOCAB, Knowing, NextFault
from k3mem.fuzz.transfers import Transfers
from k3mem.plan import Plan, Result
from k3mem.policy import Policy
from k3mem.request import Output, Outputs
from k3mem.sched.core import Flight
from k3mem.sched.failure import MAX_FAILURES
from k3mem.shape import Shape

MAX_TOKENS = 4096
MADE_EVERY = 5
"""Of so many half steps one's outputs are taken one by one, the others' as arrays."""
MOST_FLIGHTS = 4
"""A loop of halves launches at most so many steps more than D ahead."""


class Steps:
    """One engine on the mock, stepped in halves.

    mangle: changes every plan on its way to the executor. sinks: told what the executor is told and answers.
    `steps` counts them; `events` what the engine did, in the words of its metrics.
    """

    def __init__(self, config: Config, mangle: Callable[[Plan], Plan] | None = None,
                 sinks: Sequence[Sink] = ()) -> None:
        self.config = config
        self.faults = NextFault()
        self.executor = MockExecutor(seed=config.seed, capture=config.capture, strict_handout=False,
                                     fast_forward=config.fast_forward, shuffle_streams=config.shuffle,
                                     faults=self.faults)
        self.shape = Shape("tiny", config.state_bytes, config.token_bytes, page_tokens=config.page_tokens,
                           state_chunk=config.state_chunk, vocab_size=VOCAB, max_tokens=MAX_TOKENS, align=1,
                           record_bytes=4)
        self.mangle = mangle
        self.now = 0.0
        drafter: Knowing | None = Knowing(self, config.draft_chance) if config.window > 1 else None
        self.speculation = Speculation(self, config.draft_chance) if drafter and config.verify else None
        drafter = self.speculation or drafter
        self.scratch = config.running * config.window * 4 if drafter else 0
        self.judge = Judge() if config.race else None
        capacity = self.capacity(config.states, config.pages)
        self.engine = Engine(self.shape, self._watched(sinks), capacity, self._policy(), clock=lambda: self.now,
                             drafter=drafter, window=config.window, planner=self.speculation)
        self.core: Any = self.engine.scheduler.core
        self.oracle = Oracle(self.shape, config.budget, config.path_cap is not None, config.caching,
                             not config.deterministic)
        self.open: Plan | None = None
        self.before: object = None
        """What must be there again if the open plan is cancelled; None where something else happened since."""
        self.result: tuple[Flight, Result] | None = None
        self.transfers = Transfers(lambda: self.core)
        self.recency = Recency(self.core.cache.tree, config.eviction in evictions.BY_USE)
        self.rooms = Rooms(self.core, self.recency)
        self.news = News(self.engine)
        self.steps = self.failed = self.in_a_row = 0
        self.shaken = False
        """A step has failed, and memory was not compared since."""
        self.done = np.full(config.running, -1, np.int32)
        """[lane] generation of its newest tenant that the device has ended."""
        self.door = sessions.Door()
        self.pinned: dict[Hashable, float] = {}
        """Session -> when its newest pin ends."""
        self.empty_at = -1
        """Steps done when a plan was empty last."""
        self.evicted = 0
        """Evictions before the arena was last emptied."""
        self.texts: dict[int, list[int]] = {}

    def capacity(self, states: int, pages: int) -> int:
        """Bytes for so many states and pages beside the sinks."""
        c = self.config
        return (states + 1) * c.state_bytes + (pages + 1) * self.shape.page_bytes + self.scratch

    def _policy(self) -> Policy:
        c = self.config
        own = (c.states + 1) * c.state_bytes
        share = (own + 0.5) / (own + (c.pages + 1) * self.shape.page_bytes) if c.split else None
        return Policy(
            token_budget=c.budget, max_running=c.running, steps_in_flight=c.in_flight, split=share, eager=c.eager,
            move_budget=c.move_pages * self.shape.page_bytes or 4 << 30, interval=c.interval, path_cap=c.path_cap,
            deterministic=c.deterministic, chunk_ends=c.chunk_ends, follow=c.follow, caching=c.caching,
            ghost_tokens=c.ghost_tokens, eviction=evictions.policy(c.eviction), admission=c.admission,
            fork_depths=c.fork_depths,
        )

    def _watched(self, sinks: Sequence[Sink]) -> Recorder:
        """Every failure ends all transfers before the engine hears of it; every plan is seen on its way out."""
        recorder = Recorder(self.executor, *sinks, *([self.judge] if self.judge is not None else []))
        launch, collect = recorder.launch, recorder.collect

        def launched(plan: Plan) -> Any:
            plan = self.faults.plan = plan if self.mangle is None else self.mangle(plan)
            try:
                return launch(plan)
            except StepFailed as error:
                self._failure()
                if error.effect == Effect.NO_EFFECT:
                    self.oracle.unseated()
                raise
            except BadRecording as error:
                raise Found("race", f"no executor could be told this: {error}") from error

        def collected(ticket: Any) -> Result:
            try:
                return collect(ticket)
            except StepFailed:
                self._failure()
                raise

        recorder.launch, recorder.collect = launched, collected  # type: ignore[method-assign]
        recorder.fast_forward = self._forward  # type: ignore[attr-defined]
        return recorder

    def _forward(self, plan: Plan, limit: int, until: float, depth: int) -> int:
        """For how many steps a plan may stand: as many as chance says."""
        return random.Random(hash((self.config.seed, plan.step))).randint(1, max(1, limit))

    def _failure(self) -> None:
        self.failed += 1
        self.shaken = True
        self.in_a_row += 1
        self.transfers.end_all()
        self.oracle.wipe(4 * self.config.running)

    # -- shortcuts

    @property
    def events(self) -> int:
        """Scheduler events so far, as architecture.md counts them."""
        return int(sum(self.core.metrics.events.values()))

    # -- halves

    def _plan(self, a: act.Plan) -> None:
        if self.open is None and self.result is None and len(self.core.flights) < self.config.in_flight + MOST_FLIGHTS:
            quiet = not (self.core.ending or self.core.timed or self.core.queue and self.core.lanes.running == 0
                         or self.core.held)
            before = self.state() if quiet else None
            self._make_plan()
            self.before = before if self.open is not None else None

    def _make_plan(self) -> None:
        self.oracle.settle(self.core.jobs, self.roomy())
        jobs, seen = list(self.core.jobs), self.core.cache.log.seq
        waited = {job.request.id: job.waits for job in self.core.jobs.values() if job.waits}
        moved = self.core.cache.arena.moves_count
        held = set(self.core.pins._pins)
        self.rooms.begin()
        if self.speculation is not None:
            self.speculation.begin()
        self.open = self.engine.plan()
        self._pins(held)
        if (wrong := self.door.trouble(self.core, self.now)) is not None:
            raise Found("liveness", wrong)
        for event in self.engine.events(seen):
            if event.kind == "retract":
                self.oracle.retracted(event.id, jobs)
        if self.open is not None:
            for source, _ in self.core.open.restores:
                self.recency.use(source)
            self.rooms.batches(self.open)
            if self.speculation is not None:
                self.speculation.look(self.open)
            manners.look(self.core, self.open, waited, self.core.cache.arena.moves_count == moved)
            self.oracle.order((seat.job.request.id for seat, _, _ in self.core.open.admitted),
                              (job.request.id for job in self.core.queue if not job.waits))
        for job in self.core.queue:
            if job.waits and job.waits > -(-job.count // self.config.budget):
                raise Found("liveness", f"request {job.request.id} has waited {job.waits} plans for a leader")
        if self.open is None:
            self.empty_at = self.steps
        if self.open is None and self.core.waits_for not in ("commit", "nothing", "memory", "leases"):
            raise Found("liveness", f"no plan, and no reason but {self.core.waits_for!r}")
        self.oracle.expired(self.now if self._answered() else -1.0)

    def _pins(self, held: set[Hashable]) -> None:
        """After a plan: no pin outlives its time, and none of those `held` before ends early where memory is plenty."""
        there = set(self.core.pins._pins)
        for session, until in self.pinned.items():
            if until <= self.now and session in there:
                raise Found("oracle", f"session {session} is pinned at {self.now}, though only until {until}")
            if until > self.now and session in held - there and self.roomy():
                raise Found("oracle", f"the pin of session {session} until {until} has ended at {self.now}")

    def _answered(self) -> bool:
        """Ends that no commit reports are taken at once, so that the oracle knows of them."""
        for out in self.engine.take_outputs():
            self._take(out)
        return True

    def _launch(self, a: act.Launch) -> None:
        if self.open is not None:
            plan, self.open = self.open, None
            depths = {seat.lane: seat.depth for seat in plan.seats}
            made = self.core.lanes.ids[plan.lane].tolist()
            self.oracle.fresh.clear()
            for seat, _, _ in self.core.open.admitted:
                job, depth = seat.job, depths.get(seat.lane, -1)
                self.oracle.admitted(job.request.id, job.hit, depth, self.roomy(), seat.target)
            self.oracle.launched(self.core, plan, made)
            self.news.launching(plan, self.core.open.admitted)
            failed = self.failed
            try:
                self.engine.launch(plan)
            except ExecutorFailed:
                self._gave_up()
            if self.failed > failed:  # what was committed on the way is lost like the rest
                self._answered()
                self.oracle.wipe()
            self._after_step()

    def _gave_up(self) -> None:
        if self.in_a_row < MAX_FAILURES:
            raise Found("oracle", f"the executor was given up after {self.in_a_row} failures in a row")
        self.in_a_row = 0

    def _cancel(self, a: act.Cancel) -> None:
        if self.open is not None:
            plan, self.open = self.open, None
            self.engine.cancel(plan)
            after = self.state()
            if self.before is not None and after != self.before:
                raise Found("oracle", f"a cancelled plan left a trace: {self.before} became {after}")
            self.before = None
            self._check()

    def state(self) -> object:
        """What a cancelled plan may not change, unless it evicted or retracted."""
        return watch.state(self)

    def _collect(self, a: act.Collect) -> None:
        if self.result is None and self.core.flights:
            flight = self.core.flights[0]
            if self.open is not None and flight.ticket.fault is None:
                return  # a plan is open: a result could not be booked before its launch
            try:
                self.result = flight, self.engine.collect(flight)
            except StepFailed as error:
                self.open = None
                try:
                    self.engine.failed(flight, error.effect)
                except ExecutorFailed:
                    self._gave_up()
                self._after_step()

    def _commit(self, a: act.Commit) -> None:
        if self.open is not None:
            return
        self._collect(act.Collect())
        if self.result is not None:
            flight, result = self.result
            self.result = None
            self.in_a_row = 0
            self._ended(result)
            outputs = self.engine.commit(flight, result)
            if self.steps % MADE_EVERY and isinstance(outputs, Outputs):
                self.oracle.take_rows(outputs.rows(), self.now)
            else:
                for out in outputs:
                    self._take(out)
            self._after_step()

    def _ended(self, result: Result) -> None:
        """A lane that the device has ended does nothing in later rows."""
        lane, done = result.lane, result.done > 0
        over = np.flatnonzero((result.accepted > 0) & (self.done[lane] == result.generation))
        if len(over):
            raise Found("oracle", f"step {result.step}: lane {lane[over[0]]} had ended, and committed "
                                  f"{result.accepted[over[0]]} more")
        self.done[lane[done]] = result.generation[done]

    # -- between actions

    def one_step(self) -> None:
        """What `Engine.step` does, in halves; an open plan and a collected result are used first."""
        if self.result is not None:
            self._commit(act.Commit())
        planned = self.open is not None
        if not planned:
            self._make_plan()
            planned = self.open is not None
        self._launch(act.Launch())
        flights = self.core.flights
        if flights and (not planned or len(flights) > self.config.in_flight):
            self._commit(act.Commit())

    def _take(self, out: Output) -> None:
        self.oracle.take(out, self.now)

    def _after_step(self) -> None:
        self.steps += 1
        self._answered()
        self.news.read()
        every = self.config.check_every
        if every and self.steps % every == 0:
            self._check()
        if self.judge is not None and self.judge.report.races:
            raise Found("race", str(self.judge.report.races[0]))
        if self.executor.violations:
            raise Found("oracle", self.executor.violations[0])
        if self.config.audit_every and (self.shaken or self.steps % self.config.audit_every == 0):
            self.shaken = not self.audit()
        if self.roomy() and self.config.path_cap is None and self.core.metrics.evicted > self.evicted:
            raise Found("floor", "memory is plenty, and a checkpoint was evicted")

    def look(self) -> None:
        """All invariants and the executor's memory, now."""
        try:
            self._check()
            self.audit()
        except Corrupted as error:
            raise Found("check", str(error)) from error

    def _check(self) -> None:
        self.engine.check()
        watch.check(self)

    def roomy(self) -> bool:
        return watch.roomy(self)

    def audit(self) -> bool:
        """The executor's memory against the tree. False: not now."""
        return watch.audit(self)
