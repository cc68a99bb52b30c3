"""Timed replay: the real scheduler on the `sim` executor's virtual clock."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from typing import Any

from k3mem.engine import Engine
from k3mem.errors import RequestTooLarge
from k3mem.executors.cost import nominal
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Sampling
from k3mem.policy import Policy
from k3mem.replay.arrival import pool_bytes
from k3mem.replay.feed import ClosedFeed, OpenFeed
from k3mem.replay.hints import eviction, stop_of
from k3mem.replay.metrics import Times, memory_stats
from k3mem.replay.options import BadOption, Progress, ReplayOptions
from k3mem.replay.trace import Trace, Turn
from k3mem.request import Request
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
        policy = Policy(token_budget=cost.max_batch_tokens, max_running=cost.max_running, split=options.split,
                        eviction=eviction(options.policy), ghost_tokens=None)
        self.engine = Engine(shape, self.sim, pool_bytes(options, shape), policy, clock=self.sim.clock,
                             fast_forward=options.fast_forward)
        self.times = Times()
        self.turns: dict[int, Turn] = {}
        """Requests in flight ..."""
        self.silent: set[int] = set()
        """... and those of them without a token so far."""
        self.done = 0

    def run(self, progress: Progress) -> None:
        """To the end of the feed."""
        engine, feed, sim = self.engine, self.feed, self.sim
        core = engine.scheduler.core
        gc.freeze()  # the trace lives as long as the run: the collector need not walk it
        reported = 0
        depth = engine.policy.steps_in_flight
        while True:
            for start, turn in feed.ready(sim.moment(depth)):
                self._submit(start, turn)
            following = feed.next_time()
            if not engine.has_work:
                if following is None:
                    break
                sim.idle(following)
                continue
            engine.until(math.inf if following is None else following)
            for out in engine.step():
                if out.id in self.silent:
                    assert out.first_time is not None
                    self.silent.remove(out.id)
                    self.times.on_first(out.id, out.first_time)
                if out.finished:
                    assert out.last_time is not None
                    self._finish(self.turns.pop(out.id), out.last_time)
            self.times.on_queue(sim.now, core.lanes.running, len(core.queue))
            if self.done - reported >= 64:
                reported = self.done
                progress(self.done, feed.total)
        gc.unfreeze()
        progress(feed.total, feed.total)

    def _submit(self, start: float, turn: Turn) -> None:
        script = turn.reply()
        try:
            self.engine.submit(Request(turn.index, turn.prompt(), turn.output, session=turn.session,
                                       sampling=Sampling(script=script.tobytes())))
        except RequestTooLarge:
            self.done += 1
            self.feed.ended(turn, max(start, self.sim.now))
            return
        self.turns[turn.index] = turn
        self.silent.add(turn.index)
        self.times.on_submit(turn.index, start)

    def _finish(self, turn: Turn, t: float) -> None:
        self.times.on_finish(turn.index, t, turn.output)
        self.engine.hint(turn.session, stop=stop_of(turn))
        self.done += 1
        self.feed.ended(turn, t)


def run_timed(trace: Trace, shape: Shape, options: ReplayOptions, progress: Progress) -> dict[str, Any]:
    """Replay a trace in virtual time; statistics for `report.build`. Raises BadOption for an unknown policy, and for
    an open loop over a trace without arrivals."""
    replay = TimedReplay(trace, shape, options)
    replay.run(progress)
    replay.engine.check()
    return {
        **memory_stats(replay.engine.scheduler.core.metrics), **replay.times.stats(),
        "loop": options.loop, "max_running": min(replay.cost.max_running, options.concurrency)
        if options.loop == "closed" else replay.cost.max_running,
        "cost": {"name": replay.cost.name, "hash": replay.cost.hash},
    }
