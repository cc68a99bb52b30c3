"""The world: the real engine on the mock executor, driven by a script's actions, watched by the oracle.

    script -> World.do(action) -> engine -> plans -> mock (shadow memory, virtual streams, faults)
                  |                  |
                  '---- oracle <-----'  outputs, hits, plans; check() and audit() in between
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from k3mem.errors import Corrupted, InvalidRequest, InvalidShape, RequestTooLarge, UnknownRequest
from k3mem.executors.mock import Fault
from k3mem.fuzz import evictions, watch
from k3mem.fuzz import script as act
from k3mem.fuzz.oracle import Found, Line
from k3mem.fuzz.script import Action
from k3mem.fuzz.steps import MAX_TOKENS, MOST_FLIGHTS, Steps
from k3mem.fuzz.surroundings import VOCAB
from k3mem.plan import Sampling
from k3mem.request import Request


class World(Steps):
    """One engine and its surroundings. `do` raises Found; so does `settle`, which drains it."""

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
        media = [(first, count, b"picture %d" % picture)
                 for first, count, picture in zip(a.media[::3], a.media[1::3], a.media[2::3], strict=True)
                 if first + count <= n]
        return Request(
            a.id, prompt, a.new, salt=a.salt, adapter=a.adapter, priority=a.priority, session=a.session or None,
            parent_session=a.parent or None,
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
        self.door.submitted(request, self.now)
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

    # -- misfortune, time, the whole cache

    def _fail(self, a: act.Fail) -> None:
        if a.rowless:
            self.faults.rowless = Fault(0, a.at, a.effect)
        elif a.moving:
            self.faults.moving = Fault(0, a.at, a.effect)
        elif len(self.faults.due) < 3:
            self.faults.due.append(Fault(0, a.at, a.effect))

    def _clock(self, a: act.Clock) -> None:
        self.now += max(0.0, a.seconds)

    def _pin(self, a: act.Pin) -> None:
        self.engine.pin(a.session, a.ttl)
        self.pinned[a.session] = self.now + a.ttl

    def _unpin(self, a: act.Unpin) -> None:
        self.engine.unpin(a.session)

    def _endsession(self, a: act.EndSession) -> None:
        self.engine.end_session(a.session)
        self.pinned.pop(a.session, None)
        self.door.ended(a.session)

    def _hint(self, a: act.Hint) -> None:
        returns = None if a.returns_in < 0 else a.returns_in
        known = self.engine.hint(a.session, stop=evictions.STOPS[a.stop][0], returns_in=returns, over=a.over)
        place = self.core.pins.newest(a.session)
        if known != (place is not None):
            raise Found("oracle", f"a hint of session {a.session} was answered {known}")
        if place is None:
            return
        info, want = self.core.cache.tree.info(place.node), evictions.note(a.stop, a.returns_in, a.over)
        heeded = self.core.cache.keeper.heeds or a.over
        if heeded and info.note != want and not (a.over and info.children > 1):
            raise Found("oracle", f"session {a.session}'s checkpoint is noted {info.note}, not {want}")

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
        self.transfers.end_all()
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

    def _tooearly(self, a: act.TooEarly) -> None:
        calls: list[Callable[[], object]] = []
        if self.open is not None:
            calls += [self.engine.plan, self.engine.flush]
        if self.core.flights:
            calls += [self.engine.sleep, lambda: self.engine.resize(self.capacity(1, 1))]
        before = self.state()
        for call in calls:
            try:
                call()
            except RuntimeError:
                if self.state() != before:
                    raise Found("oracle", "what was refused as too early has changed something") from None
                continue
            raise Found("oracle", f"{call} was let through with {len(self.core.flights)} steps in flight")

    def _wiped(self) -> None:
        self.oracle.wipe(4 * self.config.running)
        self.evicted = self.core.metrics.evicted
        usage = self.core.cache.arena.usage()
        if usage.live_pages or usage.live_states:
            raise Found("oracle", f"an arena that was emptied owns {usage}")
        self._check()

    def _lease(self, a: act.Lease) -> None:
        if self.open is None:
            self.transfers.begin(a.nth)

    def _unlease(self, a: act.Unlease) -> None:
        if self.open is None:
            self.transfers.end()

    def _probe(self, a: act.Probe) -> None:
        line = self.line(a.id)
        if line is None or self.open is not None:
            return
        before, request = self.state(), line.request
        hit = self.engine.probe(request.prompt, salt=request.salt, adapter=request.adapter,
                                adapter_version=request.adapter_version)
        if self.state() != before or hit.hit + sum(hit.causes.values()) != hit.input:
            raise Found("oracle", f"probe: {hit} does not add up, or the probe changed something")

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
        self.faults.clear()
        self.before = None
        self.transfers.end_all()
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
        if self.speculation is not None:
            self.speculation.over()
        self._check()
        self.audit()
        watch.drained(self)
        watch.latches(self)


__all__ = ["VOCAB", "World"]
