"""The engine: requests in, tokens out. Owns the scheduler, carries plans to an executor and results back."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from k3mem.errors import Corrupted, Effect, ExecutorFailed, InvalidRequest, StepFailed
from k3mem.events import Event
from k3mem.executor import Capabilities, Executor, Layout
from k3mem.plan import Plan, Result
from k3mem.policy import Policy
from k3mem.request import Hit, Output, Request, RequestId, as_tokens
from k3mem.sched.core import Drafter, Flight
from k3mem.sched.scheduler import Scheduler
from k3mem.shape import Shape
from k3mem.types import Int32


class Engine:
    """Memory and scheduling for one model on one executor. No locks, no threads: one thread drives it.

    `clock` gives seconds for deadlines (default: time.monotonic). With a `drafter`, VERIFY rows of up to `window`
    tokens (1 + drafts) are planned. `fast_forward` lets one plan stand for many decode steps where the executor can.
    Raises InvalidShape or ValueError when shape, policy, executor and capacity do not go together.
    """

    def __init__(self, shape: Shape, executor: Executor, capacity_bytes: int, policy: Policy | None = None, *,
                 clock: Callable[[], float] = time.monotonic, drafter: Drafter | None = None, window: int = 1,
                 fast_forward: bool = True) -> None:
        policy = policy or Policy()
        capabilities = executor.capabilities
        _check_fit(shape, capabilities, drafter, window)
        self.shape = shape
        self.policy = policy
        self.executor = executor
        self.scheduler = Scheduler(shape, policy, capacity_bytes, capabilities, clock, drafter, window)
        if fast_forward and capabilities.fast_forward:
            self.scheduler.core.forward = getattr(executor, "fast_forward")  # noqa: B009 - not part of the protocol
        self._broken: Corrupted | None = None
        self._media: dict[tuple[bytes, int], int] = {}
        """Number of each (digest, tokens): one picture at two sizes is two media."""
        self._late: list[Output] = []
        self._inboxes: dict[RequestId, list[Output]] = {}
        self._asleep = False
        self._attach()

    # -- requests

    def submit(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest or RequestTooLarge; nothing has changed then. O(prompt)."""
        self._alive()
        self.scheduler.submit(request, self._tokens(request))

    def abort(self, request_id: RequestId) -> None:
        """End a request at the next plan. Raises UnknownRequest."""
        self._alive()
        self.scheduler.abort(request_id)

    def probe(self, prompt: Sequence[int] | Int32, *, salt: str | bytes = "", adapter: str = "",
              adapter_version: str = "") -> Hit:
        """What a prompt would hit now, and why not more. Touches nothing."""
        tokens = as_tokens(prompt, "probe")
        core = self.scheduler.core
        scope = core.cache.scope((salt, adapter, adapter_version))
        found = core.cache.match(scope, tokens, len(tokens) - 1, core.step + 1)
        kind = int(core.cache.tree.info(found.node).kind) if found.depth else -1
        return Hit(len(tokens), found.depth, max(found.kv, found.depth), max(found.known, found.depth), kind,
                   core.cache.explain(scope, tokens, found, found.depth, len(tokens) - 1))

    def pin(self, session: Hashable, ttl: float) -> None:
        """Keep a session's newest checkpoint, and each newer one in its place, for `ttl` seconds. Soft: where nothing
        else could give way, pins do."""
        self.scheduler.pin(session, ttl)

    def unpin(self, session: Hashable) -> None:
        """End a pin."""
        self.scheduler.core.pins.unpin(session)

    @property
    def has_work(self) -> bool:
        """Whether any request waits, runs or drains."""
        return self.scheduler.has_work

    # -- steps

    def step(self) -> list[Output]:
        """Launch the next step, then commit the oldest once more than `steps_in_flight` are out (at once when
        nothing could be planned). [] while the pipeline fills. Raises ExecutorFailed after repeated failures."""
        plan = self.plan()
        if plan is not None:
            self.launch(plan)
        flights = self.scheduler.core.flights
        out: list[Output] = []
        if flights and (plan is None or len(flights) > self.policy.steps_in_flight):
            out += self._retire(flights[0])
        return out + self.take_outputs()

    def run(self) -> list[Output]:
        """Step until nothing is left; all outputs."""
        out: list[Output] = []
        while self.has_work:
            out += self.step()
        return out

    async def stream(self, request: Request) -> AsyncIterator[Output]:
        """Submit a request and yield its outputs, stepping the engine meanwhile; outputs of other requests stay for
        their own streams. One event loop only."""
        import asyncio

        inbox: list[Output] = []
        self.submit(request)
        self._inboxes[request.id] = inbox
        try:
            while True:
                while not inbox:
                    for out in self.step():
                        self._inboxes.get(out.id, []).append(out)
                    await asyncio.sleep(0)
                out = inbox.pop(0)
                yield out
                if out.finished:
                    return
        finally:
            del self._inboxes[request.id]

    # -- the whole cache

    def flush(self) -> None:
        """Forget everything cached that no running request uses. Raises RuntimeError while a plan is open."""
        self._alive()
        self.scheduler.flush()

    def resize(self, capacity_bytes: int) -> None:
        """Give the arena another size. Its contents are lost, running requests start again from their tokens.
        Raises RuntimeError while a step is in flight, RequestTooLarge or InvalidShape if it would be too small;
        nothing has changed then."""
        self._alive()
        self.scheduler.empty(capacity_bytes)
        self._attach()

    def sleep(self) -> None:
        """Give up the contents: until `wake()` nothing is planned, and the executor may free its bytes (its `sleep`
        is called if it has one). Raises RuntimeError while a step is in flight."""
        self._alive()
        self.scheduler.empty()
        self._asleep = True
        getattr(self.executor, "sleep", lambda: None)()

    def wake(self) -> None:
        """Plan again; the executor is attached anew."""
        self._alive()
        if self._asleep:
            self._asleep = False
            self._attach()

    # -- the four halves of a step, for servers with their own loop

    def plan(self) -> Plan | None:
        """The next step as data, or None (see `waits_for`)."""
        self._alive()
        if self._asleep:
            raise RuntimeError("the engine sleeps: wake() it before it plans")
        try:
            return self.scheduler.plan()
        except Corrupted as e:
            self._broken = e
            raise

    def launch(self, plan: Plan) -> Flight | None:
        """Hand the open plan to the executor. A failed launch is handled as architecture says; None then."""
        try:
            ticket = self.executor.launch(plan)
        except StepFailed as e:
            if e.effect == Effect.NO_EFFECT:
                self.scheduler.cancel(plan)
                self.scheduler.missed()
                return None
            flight = self.scheduler.launched(plan, None)
            earlier = len(self.scheduler.core.flights) - 1
            for older in list(self.scheduler.core.flights)[:earlier]:
                self._late += self._retire(older)
            if self.scheduler.core.flights:
                self.scheduler.fail(flight, e.effect)
            return None
        return self.scheduler.launched(plan, ticket)

    def cancel(self, plan: Plan) -> None:
        """Drop the open plan instead of launching it."""
        self.scheduler.cancel(plan)

    def collect(self, flight: Flight) -> Result:
        """Wait for the oldest flight's result. Raises StepFailed; tell `failed` then."""
        return self.executor.collect(flight.ticket)

    def commit(self, flight: Flight, result: Result) -> list[Output]:
        """Book the oldest flight's result. Raises Corrupted (latched) if it belongs to another plan."""
        try:
            return self.scheduler.commit(flight, result)
        except Corrupted as e:
            self._broken = e
            raise

    def failed(self, flight: Flight, effect: Effect = Effect.UNKNOWN) -> None:
        """The oldest flight failed, and all launched after it. Raises ExecutorFailed after three in a row."""
        self.scheduler.fail(flight, effect)

    def take_outputs(self) -> list[Output]:
        """Outputs that no commit carries: ends of aborted and expired requests."""
        core = self.scheduler.core
        out, core.outputs, self._late = self._late + core.outputs, [], []
        return out

    def _retire(self, flight: Flight) -> list[Output]:
        try:
            result = self.collect(flight)
        except StepFailed as e:
            self.failed(flight, e.effect)
            return []
        return self.commit(flight, result)

    def until(self, moment: float) -> None:
        """The caller will submit nothing before `moment` (the executor's clock): a plan may stand for as many steps
        as would be planned before it."""
        self.scheduler.core.until = moment

    # -- looking in

    @property
    def waits_for(self) -> str:
        """Why the last plan() was None: `commit`, `memory`, `leases` or `nothing`."""
        return self.scheduler.core.waits_for

    def events(self, since: int = 0) -> list[Event]:
        """What happened: events numbered `since` and up, as far back as they are kept."""
        return self.scheduler.core.cache.log.since(since)

    def stats(self) -> dict[str, Any]:
        """Counters and gauges as plain data."""
        core = self.scheduler.core
        return {
            **core.metrics.as_dict(),
            "running": core.lanes.running, "waiting": len(core.queue), "in_flight": len(core.flights),
            "arena": asdict(core.cache.arena.usage()),
            "tree": core.cache.tree.counters()._asdict(),
        }

    def check(self) -> None:
        """Walk every invariant. Raises Corrupted, which latches. O(everything)."""
        self._alive()
        try:
            self.scheduler.check()
        except Corrupted as e:
            self._broken = e
            raise

    # -- inside

    def _attach(self) -> None:
        arena = self.scheduler.core.cache.arena
        self.executor.attach(Layout(self.shape, arena.capacity_bytes, arena.state_top, arena.page_ids,
                                    arena.state_ids, self.policy.max_running))

    def _alive(self) -> None:
        if self._broken is not None:
            raise Corrupted(f"the engine is latched after: {self._broken}; make a new one")

    def _tokens(self, request: Request) -> Int32:
        """The prompt with media digests interned above the vocabulary. Raises InvalidRequest."""
        tokens, vocab = request.prompt, self.shape.vocab_size
        if int(tokens.min()) < 0 or int(tokens.max()) >= vocab:
            bad = int(np.flatnonzero((tokens < 0) | (tokens >= vocab))[0])
            raise InvalidRequest(f"request {request.id!r}: token {int(tokens[bad])} at {bad} is outside 0..{vocab - 1}")
        tokens = tokens.copy()  # the caller may reuse its array while the request runs
        for first, count, digest in request.media:
            known = self._media.setdefault((digest, count), len(self._media))
            if vocab + known > 2**31 - 1:
                raise InvalidRequest(f"request {request.id!r}: no ids left above the vocabulary for media digests")
            tokens[first : first + count] = vocab + known
        return tokens


def _check_fit(shape: Shape, can: Capabilities, drafter: Drafter | None, window: int) -> None:
    if window < 1 or window > shape.grid:
        raise ValueError(f"window must lie in 1..grid ({shape.grid}), got {window}: at most one snapshot fits a row")
    if drafter is not None and not can.verify:
        raise ValueError("this executor runs no VERIFY rows (it has no records or no fold): drop the drafter")
    if drafter is not None and window > can.max_window:
        raise ValueError(f"window {window} exceeds the executor's max_window {can.max_window}")


__all__ = ["Engine", "ExecutorFailed"]
