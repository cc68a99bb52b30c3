"""The world: the real engine on the mock executor, driven by a script's actions, watched by the oracle.

    script -> World.do(action) -> engine -> plans -> mock (shadow memory, virtual streams, faults)
                  |                  |
                  '---- oracle <-----'  outputs, hits, plans; check() and audit() in between

Everything is injected: the clock, the drafter, the failures, the order in which commands run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from k3mem.engine import Engine
from k3mem.errors import (
    Corrupted,
    ExecutorFailed,
    InvalidRequest,
    InvalidShape,
    RequestTooLarge,
    StepFailed,
    UnknownRequest,
)
from k3mem.executors.mock import Entry, Fault, Faults, MockExecutor
from k3mem.fuzz import script as act
from k3mem.fuzz.oracle import Found, Line, Oracle
from k3mem.fuzz.script import Action, Config
from k3mem.plan import PAGE, STATE, Plan, Result, Sampling
from k3mem.policy import Policy
from k3mem.request import Output, Outputs, Request
from k3mem.sched.core import Flight
from k3mem.sched.failure import MAX_FAILURES
from k3mem.shape import Shape
from k3mem.types import Int32, NodeId

VOCAB = 97
MAX_TOKENS = 4096
MOST_IDLE = 1000
MADE_EVERY = 5
"""Of so many half steps one's outputs are taken one by one, the others' as arrays."""
MOST_FLIGHTS = 4
"""A loop of halves launches at most so many steps more than D ahead."""


class NextFault(Faults):
    """Failures that are told beforehand: the next launched step takes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[Fault] = []

    def strike(self, step: int) -> Fault | None:
        if not self.due:
            return None
        fault = self.due.pop(0)
        return Fault(step, fault.at, fault.effect)


class Knowing:
    """A drafter that knows what the model will say, and is right with a given chance; the same at every replay."""

    def __init__(self, world: World, chance: float) -> None:
        self.world, self.chance = world, chance

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        line = self.world.oracle.lines[request_id]  # type: ignore[index]
        rng = random.Random(hash((self.world.config.seed, int(line.chain[0]), len(tokens))))
        true = line.tokens[len(tokens) : len(tokens) + rng.randint(0, limit)]
        return np.array([t if rng.random() < self.chance else rng.randrange(VOCAB) for t in true], np.int32)


class World:
    """One engine and its surroundings. `do` raises Found; so does `settle`, which drains it.

    `events` and `rows` count what the engine did, in the words of its metrics.
    """

    def __init__(self, config: Config, mangle: Callable[[Plan], Plan] | None = None) -> None:
        self.config = config
        self.faults = NextFault()
        self.executor = MockExecutor(seed=config.seed, capture=config.capture, strict_handout=False,
                                     shuffle_streams=config.shuffle, faults=self.faults)
        self.shape = Shape("tiny", config.state_bytes, config.token_bytes, page_tokens=config.page_tokens,
                           state_chunk=config.state_chunk, vocab_size=VOCAB, max_tokens=MAX_TOKENS, align=1,
                           record_bytes=4)
        self.mangle = mangle
        self.now = 0.0
        drafter = Knowing(self, config.draft_chance) if config.window > 1 else None
        self.scratch = config.running * config.window * 4 if drafter else 0
        self._watch_executor()
        self.engine = Engine(self.shape, self.executor, self.capacity(config.states, config.pages), self._policy(),
                             clock=lambda: self.now, drafter=drafter, window=config.window)
        self.core: Any = self.engine.scheduler.core
        self.oracle = Oracle(self.shape, config.budget, config.path_cap is not None, config.caching,
                             not config.deterministic)
        self.open: Plan | None = None
        self.before: object = None
        """What must be there again if the open plan is cancelled; None where something else happened since."""
        self.result: tuple[Flight, Result] | None = None
        self.leases: list[tuple[NodeId, list[tuple[int, int]], list[int]]] = []
        """(node, its entries, where they lie) of every transfer, oldest first."""
        self.steps = self.failed = self.in_a_row = 0
        self.done = np.full(config.running, -1, np.int32)
        """[lane] generation of its newest tenant that the device has ended."""
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
            ghost_tokens=c.ghost_tokens,
        )

    def _watch_executor(self) -> None:
        """Every failure ends all transfers before the engine hears of it; every plan is seen on its way out."""
        launch, collect = self.executor.launch, self.executor.collect

        def launched(plan: Plan) -> Any:
            plan = plan if self.mangle is None else self.mangle(plan)
            try:
                return launch(plan)
            except StepFailed:
                self._failure()
                raise

        def collected(ticket: Any) -> Result:
            try:
                return collect(ticket)
            except StepFailed:
                self._failure()
                raise

        self.executor.launch, self.executor.collect = launched, collected  # type: ignore[method-assign]

    def _failure(self) -> None:
        self.failed += 1
        self.in_a_row += 1
        self._end_leases()
        self.oracle.wipe(4 * self.config.running)

    # -- shortcuts

    @property
    def events(self) -> int:
        """Scheduler events so far, as architecture.md counts them."""
        return int(sum(self.core.metrics.events.values()))

    def line(self, number: int) -> Line | None:
        return self.oracle.lines.get(number)

    def text(self, number: int, count: int) -> list[int]:
        """The first tokens of an endless text."""
        known = self.texts.get(number, [])
        if len(known) < count:
            rng = random.Random(number)
            known = self.texts[number] = [rng.randrange(VOCAB) for _ in range(max(count, 64, 2 * len(known)))]
        return known[:count]

    # -- actions

    def do(self, action: Action) -> None:
        """Carry out one action; one that makes no sense now does nothing. Raises Found."""
        if self.before is not None and not isinstance(action, act.Plan | act.Cancel):
            self.before = None
        if isinstance(action, act.Submit | act.Abort):
            self.empty_at = -1
        try:
            getattr(self, "_" + type(action).__name__.lower())(action)
        except Found:
            raise
        except Corrupted as error:
            raise Found("check", str(error)) from error
        except Exception as error:  # whatever escapes an engine is a fault of it
            raise Found("check", f"{type(error).__name__}: {error}") from error

    def _request(self, a: act.Submit) -> Request:
        base = self.line(a.base)
        prompt = (base.tokens[: a.take] if base is not None else []) + self.text(a.text, a.count)
        prompt = [t for t in prompt if t < VOCAB][: MAX_TOKENS // 2] or [0]
        n, stop_at = len(prompt), a.stop_at
        media = ()
        if a.media and a.media[0] + a.media[1] <= n:
            media = ((a.media[0], a.media[1], b"picture %d" % a.media[2]),)  # type: ignore[assignment]
        return Request(
            a.id, prompt, a.new, salt=a.salt, adapter=a.adapter, priority=a.priority, session=a.session or None,
            hints=[h for h in a.hints if h <= n], turn_starts=[h for h in a.turns if h <= n], media=media,
            deadline=self.now + a.patience if a.patience else None,
            sampling=Sampling(temperature=a.temperature, seed=a.seed, stop_ids=a.stop_ids),
            stop=(lambda out: stop_at if len(out) >= stop_at else None) if stop_at else None,
        )

    def _submit(self, a: act.Submit) -> None:
        known = self.line(a.id)
        if known is not None and known.reason is None:
            return
        request = self._request(a)
        media = tuple(request.media)
        try:
            self.engine.submit(request)
        except RequestTooLarge:
            limit = len(request.prompt) + a.new
            fits = self.core.cache.arena.capacity_for(-(-limit // self.shape.page_span), 1)
            if limit <= MAX_TOKENS and fits:
                raise Found("oracle", f"request {a.id} of {limit} tokens would fit, but was refused") from None
            return
        except InvalidRequest:
            if known is None or not self.core.flights:
                raise
            return  # its last launched step has not committed yet
        job = self.core.jobs[a.id]
        self.oracle.submit(a.id, request, job.tokens[: job.count], self.core.cache.digest(job.scope), media)

    def _again(self, a: act.Again) -> None:
        self._answered()
        line = self.line(a.id)
        if line is None or line.reason is not None:
            return
        try:
            self.engine.submit(Request(a.id, [1, 2, 3], 1))
        except InvalidRequest:
            return
        raise Found("oracle", f"request {a.id} is in flight, and another one with its id was taken")

    def _toolarge(self, a: act.TooLarge) -> None:
        before = self.state()
        arena = self.core.cache.arena
        tokens = max(a.tokens, arena.page_ids * self.shape.page_span)
        try:
            self.engine.submit(Request(-1, np.zeros(min(tokens, 2 * MAX_TOKENS), np.int32), tokens))
        except RequestTooLarge:
            if self.state() != before:
                raise Found("oracle", "a request that was refused has changed something") from None
            return
        raise Found("oracle", f"a request of {tokens} tokens was taken")

    def _abort(self, a: act.Abort) -> None:
        job = self.core.jobs.get(a.id)
        try:
            self.engine.abort(a.id)
        except UnknownRequest:
            if job is not None and job.reason is None:
                raise Found("oracle", f"request {a.id} is in flight, but unknown to an abort") from None
            return
        if job is None or job.reason != "abort":
            raise Found("oracle", f"request {a.id} was aborted, though it had ended")

    def _step(self, a: act.Step) -> None:
        for _ in range(a.count):
            self.one_step()

    def _plan(self, a: act.Plan) -> None:
        if self.open is None and self.result is None and len(self.core.flights) < self.config.in_flight + MOST_FLIGHTS:
            quiet = not (self.core.ending or self.core.timed or self.core.queue and self.core.lanes.running == 0)
            before = self.state() if quiet else None
            self._make_plan()
            self.before = before if self.open is not None else None

    def _make_plan(self) -> None:
        self.oracle.settle(self.core.jobs, self.roomy())
        jobs, seen = list(self.core.jobs), self.core.cache.log.seq
        self.open = self.engine.plan()
        for event in self.engine.events(seen):
            if event.kind == "retract":
                self.oracle.retracted(event.id, jobs)
        if self.open is not None:
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
            for seat, _, _ in self.core.open.admitted:
                job, depth = seat.job, depths.get(seat.lane, -1)
                self.oracle.admitted(job.request.id, job.hit, depth, self.roomy(), seat.target)
            self.oracle.launched(self.core, plan, made)
            try:
                self.engine.launch(plan)
            except ExecutorFailed:
                self._gave_up()
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
        core = self.core
        metrics, counters, usage = core.metrics, core.cache.tree.counters(), core.cache.arena.usage()
        gone = (metrics.evicted, metrics.retractions, metrics.events["victim"])
        return _Trace(gone, (
            counters.checkpoints, counters.kv_pages, counters.locks, usage.live, usage.live_pages, usage.live_states,
            [job.request.id for job in core.queue], core.lanes.running, sorted(core.jobs, key=str),
            (core.lanes.launched * (core.lanes.phase > 0)).tolist(), core.lanes.phase.tolist(),
            metrics.skipped_snapshots, metrics.takeovers, metrics.followers, metrics.steps, metrics.hit_tokens,
        ))

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

    def _fail(self, a: act.Fail) -> None:
        if len(self.faults.due) < 3:
            self.faults.due.append(Fault(0, a.at, a.effect))

    def _clock(self, a: act.Clock) -> None:
        self.now += max(0.0, a.seconds)

    def _pin(self, a: act.Pin) -> None:
        self.engine.pin(a.session, a.ttl)

    def _unpin(self, a: act.Unpin) -> None:
        self.engine.unpin(a.session)

    def _flush(self, a: act.Flush) -> None:
        if self.open is None:
            self.engine.flush()
            self.oracle.wipe()
            self._check()

    def _idle(self) -> bool:
        """Commit everything in flight. False where a plan is open."""
        if self.open is not None:
            return False
        while self.core.flights:
            self._commit(act.Commit())
        self._answered()
        self._end_leases()
        return True

    def _resize(self, a: act.Resize) -> None:
        if not self._idle():
            return
        before = self.state()
        try:
            self.engine.resize(self.capacity(a.states, a.pages))
        except (RequestTooLarge, InvalidShape):
            if self.state() != before:
                raise Found("oracle", "a resize that was refused has changed something") from None
            return
        self._wiped()

    def _sleep(self, a: act.Sleep) -> None:
        if self._idle():
            self.engine.sleep()
            self.engine.wake()
            self._wiped()

    def _wiped(self) -> None:
        self.oracle.wipe(4 * self.config.running)
        self.evicted = self.core.metrics.evicted
        usage = self.core.cache.arena.usage()
        if usage.live_pages or usage.live_states:
            raise Found("oracle", f"an arena that was emptied owns {usage}")
        self._check()

    def _lease(self, a: act.Lease) -> None:
        cache = self.core.cache
        walk = cache.tree.walk()
        with_state = np.flatnonzero(walk.state >= 0)
        safe = walk.stamp < (self.core.flights[0].plan.step if self.core.flights else self.core.step + 1)
        with_state = with_state[safe[with_state]]
        if not len(with_state) or len(self.leases) >= 4 or self.open is not None:
            return
        order = np.argsort(walk.node[with_state])  # by node: the walk's own order is free
        at = int(with_state[order[a.nth % len(order)]])
        node = NodeId(int(walk.node[at]))
        held = [(STATE, int(walk.state[at])), *((PAGE, int(p)) for p in cache.tree.pages(node))]
        cache.hold(node)
        for kind, entry in held:
            cache.arena.lease(kind, entry)
        self.leases.append((node, held, self._places(held)))

    def _places(self, entries: list[tuple[int, int]]) -> list[int]:
        arena = self.core.cache.arena
        return [int((arena.state_places if kind == STATE else arena.page_places)([e])[0]) for kind, e in entries]

    def _unlease(self, a: act.Unlease) -> None:
        if self.leases and self.open is None:
            self._end_lease()

    def _end_lease(self) -> None:
        node, held, _ = self.leases.pop(0)
        for kind, entry in held:
            self.core.cache.arena.unlease(kind, entry)
        self.core.cache.unhold(node)

    def _end_leases(self) -> None:
        while self.leases:
            self._end_lease()

    def _probe(self, a: act.Probe) -> None:
        line = self.line(a.id)
        if line is None or self.open is not None:
            return
        before, request = self.state(), line.request
        hit = self.engine.probe(request.prompt, salt=request.salt, adapter=request.adapter,
                                adapter_version=request.adapter_version)
        if self.state() != before or hit.hit + sum(hit.causes.values()) != hit.input:
            raise Found("oracle", f"probe: {hit} does not add up, or the probe changed something")

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
        every = self.config.check_every
        if every and self.steps % every == 0:
            self._check()
        if self.executor.violations:
            raise Found("oracle", self.executor.violations[0])
        if self.config.audit_every and self.steps % self.config.audit_every == 0:
            self.audit()
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
        core = self.core
        usage, counters = core.cache.arena.usage(), core.cache.tree.counters()
        capacity = core.cache.arena.capacity_bytes
        total = usage.fixed + usage.live + usage.holes + usage.pending + usage.gap + usage.pad
        lives = usage.live_pages * self.shape.page_bytes + usage.live_states * self.shape.state_bytes
        if total != capacity or lives != usage.live:
            raise Found("oracle", f"{usage} does not sum to {capacity} bytes")
        metrics = core.metrics
        if metrics.hit_tokens + sum(metrics.causes.values()) != metrics.input_tokens:
            raise Found("oracle", "hits and causes do not sum to the input")
        spare = usage.live_states - counters.checkpoints
        most = core.lanes.running * 5 + (sum(len(r.targets) for r in core.open.prefill) if core.open else 0)
        if spare > most:
            raise Found("oracle", f"{spare} states are owned by {core.lanes.running} running requests")
        for node, held, places in self.leases:
            if self._places(held) != places:
                raise Found("oracle", f"an entry of node {node} moved while it was leased")

    def roomy(self) -> bool:
        """Whether all requests together would fit side by side, each with every checkpoint that it may leave."""
        pages, states = self.oracle.pages + 2 * self.config.running, self.oracle.states + 4 * self.config.running
        states += 2 * self.core.metrics.retractions
        return bool(self.core.cache.arena.capacity_for(pages, states))

    def audit(self) -> None:
        """The executor's memory against the tree: every checkpoint and every page, hit or not."""
        core = self.core
        if core.resync or (core.flights and self.faults.due) or self._doomed() or core.open is not None:
            return  # after a failure the device has stale tables till the resync; a doomed step may yet scribble
        tree, cache = core.cache.tree, core.cache
        walk = tree.walk()
        entries = [
            Entry(cache.digest(int(s)), tree.path_tokens(int(n)), int(d), int(state), tree.pages(int(n)))
            for n, d, state, s in zip(walk.node, walk.depth, walk.state, walk.scope, strict=True)
        ]
        wrong = self.executor.audit(entries, *self._told(cache.arena))
        wrong += self.executor.violations
        if wrong:
            raise Found("oracle", str(wrong[0]))

    @staticmethod
    def _told(arena: Any) -> list[list[tuple[int, int]]]:
        """The tables as the device must have them: without entries whose new place the next plan will name."""
        out = []
        for name, table in zip(("page", "state"), arena.tables(), strict=True):
            due = set(arena._table(f"{name}_dirty").tolist())
            out.append([(entry, place) for entry, place in table.tolist() if entry not in due])
        return out

    def _doomed(self) -> bool:
        return any(flight.ticket is not None and flight.ticket.fault is not None for flight in self.core.flights)

    # -- the end

    def settle(self) -> None:
        """Faults and clients stop: every request ends within a bound, and nothing is owned by anyone but the tree."""
        try:
            self._settle()
        except Found:
            raise
        except Corrupted as error:
            raise Found("check", str(error)) from error
        except Exception as error:
            raise Found("check", f"{type(error).__name__}: {error}") from error

    def bound(self) -> int:
        """Steps within which all that is left must end: each token alone, thrice (retractions), and some."""
        grid, budget = self.shape.grid, self.config.budget
        chunk = budget // grid * grid or min(budget, grid)
        alive = [line for line in self.oracle.lines.values() if line.number in self.core.jobs]
        cost = sum(-(-line.prompt // chunk) + line.request.max_new_tokens + 8 for line in alive)
        return 3 * cost + 4 * MOST_FLIGHTS + 40

    def _settle(self) -> None:
        self.faults.due.clear()
        self.before = None
        self._end_leases()
        bound, steps = self.bound(), 0
        while self.engine.has_work:
            self.one_step()
            steps += 1
            if steps > bound:
                left = [line.number for line in self.oracle.alive]
                raise Found("liveness", f"{steps} steps after the last client, requests {left[:8]} have not ended")
        missing = [line.number for line in self.oracle.alive]
        if missing:
            raise Found("liveness", f"requests {missing[:8]} were never told of their end")
        if self.core.resync:  # the device has stale tables until the next plan
            self._submit(act.Submit(-2, text=1, count=3))
            while self.engine.has_work:
                self.one_step()
        self._check()
        self.audit()
        self._empty()

    def _empty(self) -> None:
        core = self.core
        self.now += 1e9
        for _ in range(MOST_IDLE):  # time passes only for who plans; holes may close meanwhile
            self.one_step()
            if not core.flights:
                break
        counters, usage = core.cache.tree.counters(), core.cache.arena.usage()
        if core.lanes.running or counters.locks or core.queue or core.jobs:
            raise Found("oracle", f"a drained world has {core.lanes.running} lanes, {counters.locks} locks, "
                                  f"{len(core.jobs)} jobs")
        if usage.live_states != counters.checkpoints:
            raise Found("oracle", f"{usage.live_states} states live, {counters.checkpoints} checkpoints")
        self.engine.flush()
        usage = core.cache.arena.usage()
        if usage.live_pages or usage.live_states:
            raise Found("oracle", f"after a flush {usage.live_pages} pages and {usage.live_states} states are owned")
        if core.metrics.input_tokens > self.oracle.input:
            raise Found("oracle", f"{self.oracle.input} input tokens were seated, {core.metrics.input_tokens} counted")
        if core.metrics.output_tokens != self.oracle.output:
            raise Found("oracle", f"{self.oracle.output} tokens came out, {core.metrics.output_tokens} were counted")


class _Trace:
    """Equal to another trace with the same state; to any where something was evicted or retracted in between."""

    def __init__(self, gone: tuple[int, ...], state: tuple[object, ...]) -> None:
        self.gone, self.state = gone, state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Trace) and (self.gone != other.gone or self.state == other.state)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(self.state)
