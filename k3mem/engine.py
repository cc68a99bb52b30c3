"""The engine: requests in, tokens out. Owns the scheduler, carries plans to an executor and results back."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

import numpy as np

from k3mem.errors import Corrupted, Effect, ExecutorFailed, InvalidRequest, InvalidShape, StepFailed
from k3mem.events import Event
from k3mem.executor import Capabilities, Executor, Layout
from k3mem.native import ffi, lib
from k3mem.plan import Plan, Result
from k3mem.policy import Policy
from k3mem.request import Hit, Output, Request, RequestId
from k3mem.sched.core import Flight
from k3mem.sched.job import Job
from k3mem.sched.scheduler import Scheduler
from k3mem.shape import Shape
from k3mem.spec import Drafter, Planner
from k3mem.types import Int32

INTS = ffi.typeof("int32_t[]")
LEAST_ROOM = 256
"""Output tokens for which a short prompt's buffer has room."""


class Engine:
    """Memory and scheduling for one model on one executor. No locks, no threads: one thread drives it.

    `clock` gives seconds for deadlines (default: time.monotonic). With a `drafter`, VERIFY rows of up to `window`
    tokens (1 + drafts) are planned; a `planner` chooses how much of what is drafted is verified (default: all of it).
    Where it learns from the executor's times, `clock` must run as fast as the executor's.
    `fast_forward` lets one plan stand for many decode steps where the executor can.
    Raises InvalidShape or ValueError when shape, policy, executor and capacity do not go together.
    """

    def __init__(self, shape: Shape, executor: Executor, capacity_bytes: int, policy: Policy | None = None, *,
                 clock: Callable[[], float] = time.monotonic, drafter: Drafter | None = None, window: int = 1,
                 planner: Planner | None = None, fast_forward: bool = True) -> None:
        policy = Policy() if policy is None else policy
        _check_kinds(shape, executor, capacity_bytes, policy)
        capabilities = executor.capabilities
        _check_fit(shape, capabilities, drafter, window)
        _check_speculation(drafter, planner)
        self.shape = shape
        self.policy = policy
        self.executor = executor
        self.scheduler = Scheduler(shape, policy, capacity_bytes, capabilities, clock, drafter, window,
                                   planner)
        if fast_forward and capabilities.fast_forward:
            self.scheduler.core.forward = getattr(executor, "fast_forward")  # noqa: B009 - not part of the protocol
        self._latch = _Latch()
        self._media: dict[tuple[bytes, int], int] = {}
        """Number of each (digest, tokens): one picture at two sizes is two media."""
        self._late: list[Output] = []
        """Outputs of nobody's stream that were not handed out yet."""
        self._inboxes: dict[RequestId, deque[Output]] = {}
        """Outputs of streamed requests that have not ended."""
        self._asleep = False
        self._attach()

    # -- requests

    def submit(self, request: Request) -> None:
        """Queue a copy of a request. Raises InvalidRequest or RequestTooLarge; nothing has changed then. O(prompt)."""
        with self._latch:
            own = request.copy()
            tokens, media = self._tokens(own)
            self.scheduler.submit(own, tokens)
            self._media |= media

    def abort(self, request_id: RequestId) -> None:
        """End a request at the next plan. Raises UnknownRequest."""
        with self._latch:
            self.scheduler.abort(request_id)

    def probe(self, prompt: Sequence[int] | Int32, *, salt: str | bytes = "", adapter: str = "",
              adapter_version: str = "", media: Sequence[tuple[int, int, bytes]] = ()) -> Hit:
        """What a prompt would hit now, and why not more. Touches nothing. Raises InvalidRequest as `submit` would."""
        request = Request("probe", prompt, 1, salt=salt, adapter=adapter, adapter_version=adapter_version, media=media)
        with self._latch:
            return self.scheduler.probe(request, self._tokens(request)[0])

    def pin(self, session: Hashable, ttl: float) -> None:
        """Keep a session's newest checkpoint, and each newer one in its place, for `ttl` seconds. Soft: where nothing
        else could give way, pins do. A checkpoint that is gone already is not looked for further up."""
        with self._latch:
            self.scheduler.pin(session, ttl)

    def unpin(self, session: Hashable) -> None:
        """End a pin."""
        with self._latch:
            self.scheduler.core.pins.unpin(session)

    def end_session(self, session: Hashable) -> None:
        """A session sends no more requests, as far as the caller knows: its pin ends, and it counts as active no
        longer once those in flight have ended. O(1) beside the pin's."""
        with self._latch:
            self.scheduler.end_session(session)

    def hint(self, session: Hashable, *, stop: str | None = None, returns_in: float | None = None,
             over: bool = False) -> bool:
        """What the caller knows of a session whose request has ended: why its answer `stop`ped (`tool`: the next turn
        follows when a tool has run; `end`: a human speaks next), in how many seconds its next turn is expected
        (`returns_in`), or that it is `over`: its checkpoints then go first. False where none of its is cached. Plain
        LRU uses `over` alone. Raises ValueError."""
        if stop not in (None, "tool", "end"):
            raise ValueError(f"hint: stop must be 'tool', 'end' or None, got {stop!r}")
        if returns_in is not None and not 0 <= returns_in < math.inf:
            raise ValueError(f"hint: returns_in must be seconds >= 0, got {returns_in!r}")
        with self._latch:
            return self.scheduler.hint(session, stop, returns_in, over)

    @property
    def has_work(self) -> bool:
        """Whether any request waits, runs or drains, or any output was not taken."""
        return self.scheduler.has_work or bool(self._late)

    # -- steps

    def step(self) -> Sequence[Output]:
        """Launch the next step, then commit the oldest once more than `steps_in_flight` are out (at once when
        nothing could be planned). Empty while the pipeline fills. Raises ExecutorFailed after repeated failures."""
        core = self.scheduler.core
        plan = self.plan()
        if plan is not None:
            self.launch(plan)
        flights = core.flights
        if flights and (plan is None or len(flights) > self.policy.steps_in_flight):
            out = self._retire(flights[0])
            if not (self._late or core.outputs):
                return out
            self._late += out
        return self.take_outputs()

    def run(self) -> list[Output]:
        """Step until nothing is left; all outputs."""
        out: list[Output] = []
        while self.has_work:
            out += self.step()
        return out

    async def stream(self, request: Request) -> AsyncIterator[Output]:
        """Submit a request and yield its outputs, stepping the engine meanwhile. Closing the stream before its end
        aborts the request. Outputs of other streams go to those, all others to whoever steps or takes outputs next.
        One event loop only. Raises as `submit` and `step` do."""
        import asyncio

        self.submit(request)
        self._late = self.take_outputs()  # an earlier request of this id may have an end on its way
        job, inbox = self.scheduler.core.jobs[request.id], deque[Output]()
        self._inboxes[request.id] = inbox
        try:
            finished = False
            while not finished:
                while not inbox:
                    self._late = list(self.step())
                    await asyncio.sleep(0)
                out = inbox.popleft()
                finished = out.finished
                yield out
        finally:
            self._close_stream(request.id, job, inbox)

    def _close_stream(self, request_id: RequestId, job: Job, inbox: deque[Output]) -> None:
        """Nobody listens any more: end the request, if it has not ended, and forget its outputs. Another request may
        have its id by now."""
        core = self.scheduler.core
        if self._latch.broken is None and job.reason is None and core.jobs.get(request_id) is job:
            self.abort(request_id)
        if self._inboxes.get(request_id) is inbox:
            self._late = self.take_outputs()
            self._inboxes.pop(request_id, None)

    # -- the whole cache

    def flush(self) -> None:
        """Forget everything cached that no running request uses. Raises RuntimeError while a plan is open."""
        with self._latch:
            self.scheduler.flush()

    def resize(self, capacity_bytes: int) -> None:
        """Give the arena another size. Its contents are lost, running requests start again from their tokens.
        Raises RuntimeError while a step is in flight, RequestTooLarge or InvalidShape if it would be too small;
        nothing has changed then."""
        with self._latch:
            _check_bytes(capacity_bytes)
            self.scheduler.empty(capacity_bytes)
            self._attach()

    def sleep(self) -> None:
        """Give up the contents: until `wake()` nothing is planned, and the executor may free its bytes (its `sleep`
        is called if it has one). Raises RuntimeError while a step is in flight."""
        with self._latch:
            self.scheduler.empty()
            self._asleep = True
            getattr(self.executor, "sleep", lambda: None)()

    def wake(self) -> None:
        """Plan again; the executor is attached anew."""
        with self._latch:
            if self._asleep:
                self._asleep = False
                self._attach()

    # -- the four halves of a step, for servers with their own loop

    @property
    def flights(self) -> tuple[Flight, ...]:
        """Steps launched and neither committed nor failed, oldest first. A failure may end several at once."""
        return tuple(self.scheduler.core.flights)

    def plan(self) -> Plan | None:
        """The next step as data, or None (see `waits_for`). Raises what a drafter raises, or InvalidRequest for drafts
        that are no tokens: the plan is cancelled then, and the next one asks the drafter again."""
        with self._latch:
            if self._asleep:
                raise RuntimeError("the engine sleeps: wake() it before it plans")
            return self.scheduler.plan()

    def launch(self, plan: Plan) -> Flight | None:
        """Hand the open plan to the executor. When the launch fails, so do all steps in flight as far as they need
        to (see `flights`); None then."""
        with self._latch:
            try:
                ticket = self.executor.launch(plan)
            except StepFailed as e:
                self._launch_failed(plan, e.effect)
                return None
            return self.scheduler.launched(plan, ticket)

    def _launch_failed(self, plan: Plan, effect: Effect) -> None:
        """The steps before it are retired first: the next plan is a resync, which waits for them anyway, and what they
        commit counts against giving up. Without effect the plan is cancelled before that, else it fails after it."""
        if effect == Effect.NO_EFFECT:
            self.scheduler.cancel(plan)
            self._retire_down_to(0)
            self.scheduler.missed()
            return
        flight = self.scheduler.launched(plan, None)
        self._retire_down_to(1)
        if self.flights:
            self.scheduler.fail(flight, effect)

    def _retire_down_to(self, count: int) -> None:
        """Retire flights, the oldest first, until `count` are left. One that fails takes all with it."""
        while len(self.flights) > count:
            self._late += self._retire(self.flights[0])

    def cancel(self, plan: Plan) -> None:
        """Drop the open plan instead of launching it."""
        with self._latch:
            self.scheduler.cancel(plan)

    def collect(self, flight: Flight) -> Result:
        """Wait for the oldest flight's result. Raises StepFailed; tell `failed` then."""
        return self.executor.collect(flight.ticket)

    def commit(self, flight: Flight, result: Result) -> Sequence[Output]:
        """Book the oldest flight's result; `Outputs`, which are made as they are looked at. Raises Corrupted (latched)
        if it belongs to another plan. O(rows + tokens)."""
        with self._latch:
            return self._sorted(self.scheduler.commit(flight, result))

    def failed(self, flight: Flight, effect: Effect = Effect.UNKNOWN) -> None:
        """The oldest flight failed, and all launched after it. Raises ExecutorFailed after three in a row."""
        with self._latch:
            self.scheduler.fail(flight, effect)

    def take_outputs(self) -> list[Output]:
        """Outputs that no commit carries: ends of aborted, expired and failed requests, and what came while a stream
        stepped the engine. Outputs of streams go to those."""
        core = self.scheduler.core
        ends, core.outputs = core.outputs, []
        out, self._late = [*self._late, *self._sorted(ends)], []
        return out

    def _sorted(self, outputs: Sequence[Output]) -> Sequence[Output]:
        """Put outputs of streamed requests into their inboxes; the others. The end of a request closes its inbox: the
        id may be used again before the stream has read all."""
        if not self._inboxes:
            return outputs
        others = []
        for out in outputs:
            inbox = self._inboxes.get(out.id)
            if inbox is None:
                others.append(out)
                continue
            inbox.append(out)
            if out.finished:
                del self._inboxes[out.id]
        return others

    def _retire(self, flight: Flight) -> Sequence[Output]:
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
            "running": core.lanes.running, "waiting": len(core.queue) + core.held, "in_flight": len(core.flights),
            "arena": asdict(core.cache.arena.usage()),
            "tree": core.cache.tree.counters()._asdict(),
            **({} if core.sessions is None else {"sessions": core.sessions.stats()}),
        }

    def check(self) -> None:
        """Walk every invariant. Raises Corrupted, which latches. O(everything)."""
        with self._latch:
            self.scheduler.check()

    # -- inside

    def _attach(self) -> None:
        arena = self.scheduler.core.cache.arena
        self.executor.attach(Layout(self.shape, arena.capacity_bytes, arena.state_top, arena.page_ids,
                                    arena.state_ids, self.policy.max_running))

    def _tokens(self, request: Request) -> tuple[Int32, dict[tuple[bytes, int], int]]:
        """The prompt with media digests interned above the vocabulary, and the numbers of those that are new. Raises
        InvalidRequest."""
        prompt, vocab = request.prompt, self.shape.vocab_size
        room = min(request.max_new_tokens, max(len(prompt), LEAST_ROOM))  # of the output, as the job would make it
        tokens = np.empty(len(prompt) + room, np.int32)[: len(prompt)]  # the caller may reuse its array meanwhile
        bad = lib.k3_tokens_copy(ffi.from_buffer(INTS, prompt), len(prompt), vocab, ffi.from_buffer(INTS, tokens))
        if bad >= 0:
            raise InvalidRequest(f"request {request.id!r}: token {int(prompt[bad])} at {bad} is outside 0..{vocab - 1}")
        fresh: dict[tuple[bytes, int], int] = {}
        for first, count, digest in request.media:
            key = (digest, count)
            known = self._media[key] if key in self._media else fresh.setdefault(key, len(self._media) + len(fresh))
            if vocab + known > 2**31 - 1:
                raise InvalidRequest(f"request {request.id!r}: no ids left above the vocabulary for media digests")
            tokens[first : first + count] = vocab + known
        return tokens, fresh


class _Latch:
    """Around every call: refuses once an invariant was found broken, and remembers the first that is."""

    __slots__ = ("broken",)

    def __init__(self) -> None:
        self.broken: Corrupted | None = None

    def __enter__(self) -> None:
        if self.broken is not None:
            raise Corrupted(f"the engine is latched after: {self.broken}; make a new one")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is not None and self.broken is None and isinstance(error, Corrupted):
            self.broken = error


def _check_kinds(shape: Shape, executor: Executor, capacity_bytes: int, policy: Policy) -> None:
    """Each argument is what its name says; checked at run time for callers without a type checker."""
    if not isinstance(shape, Shape):
        raise InvalidShape(f"engine: shape must be a k3mem.Shape, such as Shape.kimi_k3(tp=8), got {shape!r}")
    lacks = [name for name in ("capabilities", "attach", "launch", "collect") if not hasattr(executor, name)]
    if lacks or isinstance(executor, type):
        wrong = f"it has no {', '.join(lacks)}" if lacks else "it is a class, give an instance"
        raise ValueError(f"engine: {executor!r} is no executor: {wrong} (see k3mem.executor.Executor)")
    if not isinstance(executor.capabilities, Capabilities):
        raise ValueError(f"engine: the executor's capabilities must be a k3mem.Capabilities, got "
                         f"{executor.capabilities!r}")
    if not isinstance(policy, Policy):
        raise ValueError(f"engine: policy must be a k3mem.Policy, got {policy!r}")
    _check_bytes(capacity_bytes)


def _check_bytes(capacity_bytes: int) -> None:
    if not hasattr(capacity_bytes, "__index__"):
        raise InvalidShape(f"capacity_bytes must be an integer, got {capacity_bytes!r}; k3mem.units.parse_size reads "
                           "sizes such as '2GB'")


def _check_fit(shape: Shape, can: Capabilities, drafter: Drafter | None, window: int) -> None:
    if not hasattr(window, "__index__") or window < 1 or window > shape.grid:
        raise ValueError(f"window must lie in 1..grid ({shape.grid}), got {window!r}: at most one snapshot fits a row")
    if drafter is not None and not can.verify:
        raise ValueError("this executor runs no VERIFY rows (it has no records or no fold): drop the drafter")
    if drafter is not None and window > can.max_window:
        raise ValueError(f"window {window} exceeds the executor's max_window {can.max_window}")


def _check_speculation(drafter: Drafter | None, planner: Planner | None) -> None:
    """Drafter and planner are objects of their protocols."""
    if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "draft")):
        raise ValueError(f"engine: {drafter!r} is no drafter (see k3mem.spec.Drafter)")
    if drafter is not None and not isinstance(getattr(drafter, "version", ""), str):
        raise ValueError(f"engine: the drafter's version must be a string, got {getattr(drafter, 'version', None)!r}")
    lacks = [name for name in ("choose", "accepted", "took") if not hasattr(planner, name)]
    if planner is not None and (lacks or isinstance(planner, type)):
        raise ValueError(f"engine: {planner!r} is no planner (see k3mem.spec.Planner)")
    if planner is not None and drafter is None:
        raise ValueError("engine: a planner chooses among drafts, but there is no drafter")


__all__ = ["Engine", "ExecutorFailed"]
