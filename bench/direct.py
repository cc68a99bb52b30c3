"""The cache alone, driven as the peers' `run()` drives theirs: what memory and tree cost a request.

Request i ends just before request i + `running` is let in. For each request: match, touch, lock; pages for the rest of
the prompt and a working state, all or nothing, after evictions and moves; a checkpoint at each chunk's end, at a branch
and at the prompt's end (a target, published); pages for the answer as decode reaches them; the working state donated at
the answer's end; what is left freed. No scheduler, no plans, no executor.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.shared import Pair
from k3mem import Policy, Shape
from k3mem.pool import Fit
from k3mem.radix import Kind, Match
from k3mem.sched.cache import Cache
from k3mem.types import NO_STATE, Int32, NodeId, StateId

MINOR = (Kind.CHUNK_END,)
"""Kinds for which nothing useful is evicted."""


@dataclass(slots=True)
class Cost:
    """Nanoseconds of wall time, a sample a request (`match`: of the match alone)."""

    request: list[int] = field(default_factory=list)
    match: list[int] = field(default_factory=list)
    hit_tokens: int = 0
    total_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """Percent."""
        return 100 * self.hit_tokens / max(1, self.total_tokens)


@dataclass(slots=True)
class _Open:
    """A request that runs."""

    tokens: Int32
    prompt: int
    node: NodeId
    depth: int
    pages: Int32
    owned: int
    """Pages below this index belong to the tree."""
    state: StateId
    spent: int
    """Nanoseconds so far."""


class Direct:
    """One cache and the requests that run in it. `chunk`: tokens a prefill chunk."""

    def __init__(self, shape: Shape, policy: Policy, capacity_bytes: int, chunk: int = 8192) -> None:
        self.cache = Cache(shape, policy, capacity_bytes)
        self.scope = self.cache.scope(("", "", ""))
        self.chunk = chunk
        self.step = 0

    def run(self, requests: Sequence[Pair], running: int) -> Cost:
        """Serve all. Raises MemoryError where a request does not fit beside those that run."""
        cost, held = Cost(), deque[_Open]()
        clock = time.perf_counter_ns
        gc.collect()
        gc.disable()
        try:
            for prompt, output in requests:
                if len(held) >= running:
                    self._close(held.popleft(), cost)
                tokens = np.concatenate([prompt, output])
                began = clock()
                found = self.cache.match(self.scope, prompt, len(prompt) - 1, self.step + 1)
                cost.match.append(clock() - began)
                one = self._admit(tokens, len(prompt), found)
                one.spent = clock() - began
                held.append(one)
                cost.hit_tokens += found.depth
                cost.total_tokens += len(prompt)
            while held:
                self._close(held.popleft(), cost)
        finally:
            gc.enable()
        return cost

    def _close(self, one: _Open, cost: Cost) -> None:
        began = time.perf_counter_ns()
        self._finish(one)
        cost.request.append(one.spent + time.perf_counter_ns() - began)

    # -- a request's life

    def _admit(self, tokens: Int32, prompt: int, found: Match) -> _Open:
        tree, span = self.cache.tree, self.cache.shape.page_span
        if found.depth:
            tree.touch(found.node)
        tree.lock(found.node)
        shared = found.depth // span
        got = self._take(-(-(prompt + 1) // span) - shared, 1)
        if got is None:
            raise MemoryError("a prompt does not fit beside those that run: raise the capacity or lower `running`")
        pages = np.concatenate([tree.pages(found.node)[:shared], got[0]])
        one = _Open(tokens, prompt, found.node, found.depth, pages, shared, StateId(int(got[1][0])), 0)
        anchors = self._anchors(prompt, found)
        start = found.depth
        while start < prompt:
            self.step += 1
            end = min(prompt, start + self.chunk)
            if end < prompt:
                end = end // self.cache.shape.grid * self.cache.shape.grid
                anchors.setdefault(end, Kind.CHUNK_END)
            for depth in sorted(d for d in anchors if start < d <= end):
                self._checkpoint(one, depth, anchors[depth])
            start = end
        return one

    def _anchors(self, prompt: int, found: Match) -> dict[int, Kind]:
        grid = self.cache.shape.grid
        fork, end = min(found.known, prompt - 1) // grid * grid, (prompt - 1) // grid * grid
        wanted = {fork: Kind.BRANCH, end: Kind.PROMPT_END}
        return {depth: kind for depth, kind in wanted.items() if found.depth < depth < prompt}

    def _checkpoint(self, one: _Open, depth: int, kind: Kind) -> None:
        got = self._take(0, 1, cheap=kind in MINOR)
        if got is None:
            return
        if depth <= one.depth or not self._keep(one, depth, StateId(int(got[1][0])), kind):
            self.cache.arena.free_states(got[1])

    def _finish(self, one: _Open) -> None:
        self.step += 1
        span, end = self.cache.shape.page_span, len(one.tokens) - 1  # the last token is never absorbed
        while len(one.pages) * span < end:  # as decode reaches them
            got = self._take(1, 0)
            if got is None:
                end = len(one.pages) * span
                break
            one.pages = np.append(one.pages, got[0])
        if end > one.depth and self._keep(one, end, one.state, Kind.ANSWER_END):
            one.state = NO_STATE
        if one.owned < len(one.pages):
            self.cache.arena.free_pages(one.pages[one.owned :])
        if one.state != NO_STATE:
            self.cache.arena.free_states(np.array([one.state], np.int32))
        self.cache.tree.unlock(one.node)

    # -- memory

    def _take(self, pages: int, states: int, cheap: bool = False) -> tuple[Int32, Int32] | None:
        cache, arena = self.cache, self.cache.arena
        fit = cache.cheap_room(pages, states) if cheap else cache.room(pages, states)
        while fit == Fit.MOVES:
            arena.make_room(pages, states, cache.policy.move_budget)
            fit = arena.fits(pages, states)
        return arena.alloc(pages, states) if fit == Fit.NOW else None

    def _keep(self, one: _Open, depth: int, state: StateId, kind: Kind) -> bool:
        cache = self.cache
        kept = cache.keep(one.node, one.tokens, depth, one.pages, state, kind, self.step)
        cache.tree.lock(kept.node)
        cache.tree.unlock(one.node)
        one.node, one.depth = kept.node, depth
        one.owned = max(one.owned, depth // cache.shape.page_span)
        return kept.taken
