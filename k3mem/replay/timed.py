"""Timed replay: the real scheduler on the `sim` executor's virtual clock."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from k3mem.engine import Engine
from k3mem.errors import RequestTooLarge
from k3mem.executors.cost import nominal
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Sampling
from k3mem.policy import Policy, SessionAdmission
from k3mem.replay.arrival import pool_bytes
from k3mem.replay.explain import Record, account, asked
from k3mem.replay.feed import ClosedFeed, OpenFeed
from k3mem.replay.hints import eviction, stop_of
from k3mem.replay.metrics import Completions, Times, memory_stats, session_of
from k3mem.replay.options import BadOption, Progress, ReplayOptions
from k3mem.replay.series import Series, composition
from k3mem.replay.trace import Trace, Turn
from k3mem.request import Output, Outputs, Request
from k3mem.sched.job import Job
from k3mem.shape import Shape


class TimedReplay:
    """One run of a feed of turns through an engine."""

    def __init__(self, trace: Trace, shape: Shape, options: ReplayOptions) -> None:
        if options.hints:
            raise BadOption("--hints are for --mode arrival")
        cost = options.cost or nominal()
        self.cost = cost
        self.sim = SimExecutor(cost)
        self.feed = OpenFeed(trace, options.limit) if options.loop == "open" else ClosedFeed(
            trace, options.limit, options.concurrency, options.gap_cap)
        shape = replace(shape, vocab_size=2**31 - 1, max_tokens=2**31 - 1)
        policy = Policy(token_budget=cost.max_batch_tokens, max_running=cost.max_running,
                        eviction=eviction(options.policy), split=options.split, ghost_tokens=None,
                        admission=admission_of(options), interval=options.interval, fork_depths=options.fork_depths)
        self.engine = Engine(shape, self.sim, pool_bytes(options, shape), policy,
                             clock=lambda: self.sim.moment(policy.steps_in_flight), fast_forward=options.fast_forward)
        self.times = Times()
        self.sessions = Completions(trace.turns[: options.limit]) if trace.has_sessions else None
        self.turns: dict[int, Turn] = {}
        """Requests in flight ..."""
        self.silent: set[int] = set()
        """... and those of them without a token so far."""
        self.done = 0
        self.series = Series(options.series) if options.series else None
        self.jobs: dict[int, tuple[float, Job]] | None = {} if asked(options.explain, trace) is not None else None
        """When each request was sent, and the engine's own record of it, by turn; None: not kept."""

    def run(self, progress: Progress) -> None:
        """To the end of the feed."""
        engine, feed, sim = self.engine, self.feed, self.sim
        core = engine.scheduler.core
        gc.freeze()  # the trace lives as long as the run: the collector need not walk it
        reported = 0
        depth = engine.policy.steps_in_flight
        while True:
            following = feed.next_time()
            if following is not None and following <= (moment := sim.moment(depth)):
                for start, turn in feed.ready(moment):
                    self._submit(start, turn)
                following = feed.next_time()
            if not engine.has_work:
                if following is None:
                    break
                sim.idle(following)
                continue
            engine.until(math.inf if following is None else following)
            self._take(engine.step())
            self.times.on_queue(sim.now, core.lanes.running, len(core.queue) + core.held)
            if self.series is not None and sim.now >= self.series.due:
                self.series.add(sim.now, composition(core))
            if self.done - reported >= 64:
                reported = self.done
                progress(self.done, feed.total)
        gc.unfreeze()
        progress(feed.total, feed.total)

    def _take(self, outputs: Sequence[Output]) -> None:
        """Note first tokens and ends. O(rows), what matters of it O(those)."""
        if isinstance(outputs, Outputs):
            rows = outputs.rows()
            silent = self.silent
            if silent:
                ids = rows.ids.tolist()
                for id in silent.intersection(ids):
                    if rows.accepted[ids.index(id)]:
                        silent.remove(id)
                        self.times.on_first(id, rows.times[0])
            for out in rows.ends:
                self._note(out)
            for own in rows.own.values():
                if own is not None:
                    self._note(own)
        else:
            for out in outputs:
                self._note(out)

    def _note(self, out: Output) -> None:
        if out.id in self.silent:
            assert out.first_time is not None
            self.silent.remove(out.id)
            self.times.on_first(out.id, out.first_time)
        if out.finished:
            assert out.last_time is not None
            self._finish(self.turns.pop(out.id), out.last_time)

    def _submit(self, start: float, turn: Turn) -> None:
        script = turn.reply()
        session, parent = (None, None) if self.sessions is None else session_of(turn)
        if self.sessions is not None:
            self.sessions.on_submit(turn, start)
        try:
            self.engine.submit(Request(turn.index, turn.prompt(), turn.output, session=session, parent_session=parent,
                                       sampling=Sampling(script=script.tobytes())))
        except RequestTooLarge:
            self._ended(turn, max(start, self.sim.now))
            return
        if self.jobs is not None:
            self.jobs[turn.index] = start, self.engine.scheduler.core.jobs[turn.index]
        self.turns[turn.index] = turn
        self.silent.add(turn.index)
        self.times.on_submit(turn.index, start)

    def _finish(self, turn: Turn, t: float) -> None:
        self.times.on_finish(turn.index, t, turn.output)
        if self.sessions is not None:
            self.engine.hint(session_of(turn)[0], stop=stop_of(turn))
        self._ended(turn, t)

    def _ended(self, turn: Turn, t: float) -> None:
        self.done += 1
        self.feed.ended(turn, t)
        if self.sessions is not None and self.sessions.on_end(turn, t):
            self.engine.end_session(session_of(turn)[0])

    def records(self, trace: Trace) -> list[Record]:
        """What each request was given, those that were rejected left out."""
        return [Record(trace.turns[index], job.hit, start, job.again, job.retractions)
                for index, (start, job) in sorted((self.jobs or {}).items()) if job.hit is not None]

    def session_stats(self) -> dict[str, Any]:
        """What became of sessions: how long they took, and how long their requests were held."""
        held = self.engine.scheduler.core.sessions
        admission = {} if held is None else {**held.stats(), "wait": held.waits}
        return {"sessions": [] if self.sessions is None else self.sessions.took, "admission": admission}


def admission_of(options: ReplayOptions) -> SessionAdmission | None:
    """The policy that `--admission` names."""
    if options.admission == "off":
        return None
    return SessionAdmission(bound=options.admission_bound, auto=options.admission == "auto")


def run_timed(trace: Trace, shape: Shape, options: ReplayOptions, progress: Progress) -> dict[str, Any]:
    """Replay a trace in virtual time; statistics for `report.build`. Raises BadOption for an unknown policy, and for
    an open loop over a trace without arrivals."""
    replay = TimedReplay(trace, shape, options)
    replay.run(progress)
    replay.engine.check()
    more: dict[str, Any] = {}
    if replay.series is not None:
        more["series"] = replay.series.stats()
    if options.explain is not None:
        more["explain"] = account(replay.records(trace), options.explain, shape, shape.grid)
    return more | {
        **memory_stats(replay.engine.scheduler.core.metrics), **replay.times.stats(), **replay.session_stats(),
        "loop": options.loop, "max_running": min(replay.cost.max_running, options.concurrency)
        if options.loop == "closed" else replay.cost.max_running,
        "cost": {"name": replay.cost.name, "hash": replay.cost.hash},
    }
