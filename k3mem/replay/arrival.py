"""Arrival-order replay: hits only. Requests in file order, running requests take no memory.

It drives the engine's own cache (tree, arena, eviction) by the rule of plain checkpoint caching:

1. The deepest checkpoint on a request's path is its hit; only that one is touched.
2. Where the path leaves nodes seen before (evicted ones included) deeper than the hit, a checkpoint is placed.
3. One is placed at the last whole block of the prompt below its last token.
4. KV is held for exactly the blocks at or above some checkpoint; to make room the policy's victim off the present path
   goes, with the KV that only it needed. What still does not fit is skipped.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.policy import Policy
from k3mem.pool import Fit
from k3mem.radix import Kind, Match
from k3mem.radix.auto import note_all
from k3mem.replay.explain import Record, account, asked
from k3mem.replay.hints import Hints, eviction
from k3mem.replay.metrics import memory_stats
from k3mem.replay.options import Progress, ReplayOptions
from k3mem.replay.trace import Trace, Turn
from k3mem.request import Hit
from k3mem.sched.cache import NONE, Cache
from k3mem.shape import Shape
from k3mem.types import Int32, NodeId, StateId


class ArrivalReplay:
    """One pass over requests. `block` is the trace's block: checkpoints stand at its multiples."""

    def __init__(self, shape: Shape, policy: Policy, capacity_bytes: int, block: int) -> None:
        self.cache = Cache(shape, policy, capacity_bytes)
        self.scope = self.cache.scope(("", "", ""))
        self.block = block
        self.grid = math.lcm(block, shape.grid)
        self.step = 0
        self.left: list[tuple[NodeId, int]] | None = None
        """(node, stamp) of the checkpoints that the last request used and left, where somebody asks."""
        self.ticket = 0
        self.causes: Counter[str] = Counter()
        self.requests = self.input = self.hit = self.consumed = self.skipped = 0
        self.hits: list[Hit] | None = None
        """What each request was given; None: not kept."""

    def request(self, prompt: Int32, shown: int | None = None, now: float | None = None, forks: Collection[int] = ()
                ) -> int:
        """Replay one prompt; its hit tokens. `shown`: leading tokens whose ids the trace shows (the rest was never
        seen whatever the cache does). `now`: seconds; None: a second a request. `forks`: depths at which the caller
        expects others to leave. O(prompt)."""
        self.step += 1
        n = len(prompt)
        end = (n - 1) // self.grid * self.grid
        whole = n // self.block * self.block
        path = prompt[:whole]
        self.ticket = self.cache.keeper.requested(self.scope, path[:end], float(self.step) if now is None else now)
        if self.left is not None:
            self.left = []
        found = self.cache.match(self.scope, path, end, self.step)
        if found.depth:
            if self.left is not None:
                self.left.append((found.node, self.cache.tree.stamp(found.node)))
            self.cache.tree.touch(found.node)
            self.consumed += 1
        self._explain(prompt, path, found, end, whole if shown is None else shown)
        self.requests += 1
        self.input += n
        self.hit += found.depth
        node = found.node
        fork = min(found.known, end) // self.grid * self.grid
        places = {depth // self.grid * self.grid: Kind.HINT for depth in forks} if forks else {}
        if fork < end:
            places[fork] = Kind.BRANCH
        for depth in sorted(places) if len(places) > 1 else places:
            if found.depth < depth < end:
                node = self._place(node, path, depth, places[depth])
        if found.depth < end:
            self._place(node, path, end, Kind.PROMPT_END)
        return found.depth

    def finished(self, left: list[tuple[NodeId, int]], ticket: int, note: int) -> None:
        """A request ended; what it left, and what is known of the next use of it."""
        note_all(self.cache.tree, left, note)
        self.cache.keeper.finished(ticket, note)

    def _place(self, node: NodeId, tokens: Int32, depth: int, kind: Kind) -> NodeId:
        """A checkpoint at `depth`, if it fits after evictions off the path. Returns where the path ends now."""
        cache, span = self.cache, self.cache.shape.page_span
        held = start = -1
        while True:
            if held * span > start or held < 0:  # what the path has beyond `node` may have been evicted
                held = cache.match(self.scope, tokens[:depth], 0, self.step).kv // span
            need = max(0, depth // span - held)
            fit = cache.arena.fits(need, 1)
            if fit != Fit.NO:
                break
            if start < 0:
                start = cache.tree.info(node).depth
            if not self._give_way(node):
                self.skipped += 1
                cache.tree.remember(node, tokens, depth)
                return node
        while fit == Fit.MOVES:
            moves = cache.arena.make_room(need, 1, cache.policy.move_budget)
            cache.metrics.move_count += len(moves)
            cache.metrics.move_bytes += int(np.where(moves[:, 1] == 0, cache.arena.page_bytes,
                                                     cache.arena.state_bytes).sum())
            fit = cache.arena.fits(need, 1)
        got = cache.arena.alloc(need, 1)
        assert got is not None
        pages = np.full(depth // span, NONE, np.int32)
        pages[depth // span - need :] = got[0]
        kept = cache.keep(node, tokens, depth, pages, StateId(int(got[1][0])), kind, self.step)
        if not kept.taken:
            cache.arena.free_states(got[1])
        if self.left is not None:
            self.left.append((kept.node, self.step))
        return kept.node

    def _give_way(self, node: NodeId) -> bool:
        """Evict the policy's victim off the path to `node`; False if there is none."""
        victim = self.cache.tree.evict(node)
        if victim is not None:
            self.cache.discard(victim)
        return victim is not None

    def _explain(self, prompt: Int32, path: Int32, found: Match, end: int, shown: int) -> None:
        """Causes of the misses: the tail past the last whole block is `off_grid` where another row shows it, else
        `never_seen`; the rest is the tree's own account."""
        n, whole = len(prompt), len(path)
        causes = Counter(self.cache.explain(self.scope, path, found, found.depth, end) if whole else {})
        causes["off_grid"] += min(n, shown) - whole if shown > whole else 0
        causes["never_seen"] += n - max(whole, min(n, shown))
        self.causes.update(causes)
        if self.hits is not None:
            kind = int(self.cache.tree.info(found.node).kind) if found.depth else -1
            self.hits.append(Hit(n, found.depth, max(found.kv, found.depth), max(found.known, found.depth), kind,
                                 {cause: count for cause, count in causes.items() if count}, found.evicted))


UNLIMITED = 1 << 60
"""Bytes of a pool without limit: tables grow with what is used, not with this."""


def pool_bytes(options: ReplayOptions, shape: Shape) -> int:
    """The arena's bytes: the pool is net of the two sinks."""
    if not options.pool_bytes:
        return UNLIMITED
    return options.pool_bytes + shape.page_bytes + shape.state_bytes


class Ends:
    """When requests end, on the trace's clock: what their answers ended with is known then, not before."""

    def __init__(self, trace: Trace, hints: Hints, replay: ArrivalReplay) -> None:
        self.hints, self.replay = hints, replay
        self.clocked = trace.has_arrivals
        replay.left = []
        self._open: list[tuple[float, int, list[tuple[NodeId, int]], int, int]] = []
        self._served = self._known = 0.0

    def started(self, turn: Turn, now: float) -> None:
        """The request that the replay has just seen ends after the time that its server took, or where the file does
        not say, after the mean of those that have ended so far; without a clock, before the next request."""
        took = turn.api if turn.api is not None else self._served / self._known if self._known else 0.0
        if turn.api is not None:
            self._served, self._known = self._served + turn.api, self._known + 1
        end = now + took if self.clocked else now
        left = self.replay.left or []
        heapq.heappush(self._open, (end, turn.index, left, self.replay.ticket, self.hints.note(turn)))

    def until(self, now: float) -> None:
        """End all that have ended by now."""
        while self._open and self._open[0][0] <= now:
            when, _, left, ticket, note = heapq.heappop(self._open)
            self.replay.cache.tree.time(when)
            self.replay.finished(left, ticket, note)


def run_arrival(trace: Trace, shape: Shape, options: ReplayOptions, progress: Progress) -> dict[str, Any]:
    """Replay a trace in file order; statistics for `report.build`. Raises BadOption for an unknown policy."""
    shape = replace(shape, vocab_size=2**31 - 1)
    policy = Policy(eviction=eviction(options.policy, ()), ghost_tokens=None, split=options.split)
    replay = ArrivalReplay(shape, policy, pool_bytes(options, shape), trace.block)
    turns = trace.turns[: options.limit]
    hints = Hints(trace, turns, options.hints)
    ends = Ends(trace, hints, replay) if options.hints or replay.cache.keeper.heeds else None
    replay.hits = [] if asked(options.explain, trace) is not None else None
    for done, turn in enumerate(turns):
        now = float(done + 1) if turn.arrival is None or not trace.has_arrivals else turn.arrival
        if ends is not None:
            ends.until(now)
        replay.request(turn.prompt(), turn.shown, now, hints.forks(turn))
        if ends is not None:
            ends.started(turn, now)
        if done % 256 == 0:
            progress(done, len(turns))
    progress(len(turns), len(turns))
    replay.cache.check()
    metrics = replay.cache.metrics
    metrics.requests, metrics.input_tokens, metrics.hit_tokens = replay.requests, replay.input, replay.hit
    metrics.causes, metrics.consumed = replay.causes, replay.consumed
    metrics.skipped_snapshots = replay.skipped
    stats = memory_stats(metrics)
    if told := replay.cache.keeper.stats():
        stats["eviction"] = told
    if options.explain is not None:
        records = [Record(turn, hit, turn.arrival) for turn, hit in zip(turns, replay.hits or (), strict=True)]
        stats["explain"] = account(records, options.explain, shape, replay.grid)
    return stats
