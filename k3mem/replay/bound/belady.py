"""Belady's rule on the engine's own cache: the checkpoint whose next use is farthest goes first, be it the new one.

A checkpoint is used by the requests that would resume there in memory without limit; those that pass it on their way to
a deeper one do not count. Checkpoints are placed as in arrival-order replay, where prompts end and fork. Who knows the
future need not be confined to those places: the distance from here to the bound says what placement is worth.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import replace

from k3mem.policy import Policy
from k3mem.radix import Kind, Lru
from k3mem.replay.arrival import UNLIMITED, ArrivalReplay, pool_bytes
from k3mem.replay.bound.visits import Visits
from k3mem.replay.options import Progress, ReplayOptions
from k3mem.replay.trace import Trace
from k3mem.shape import Shape
from k3mem.types import Int32, NodeId

POLICY = Policy(eviction=Lru(superseded_first=()), ghost_tokens=None)
"""Of the cache below: KV without a checkpoint goes first, the rest is decided here."""


class BeladyReplay(ArrivalReplay):
    """`visits`: of the requests that will be replayed, not clipped. `uses`: depth in units at which each of them hits
    in memory without limit."""

    def __init__(self, shape: Shape, capacity_bytes: int, block: int, visits: Visits, uses: list[int]) -> None:
        super().__init__(shape, POLICY, capacity_bytes, block)
        self._uses = uses
        self._never = visits.requests
        self._next: list[list[tuple[int, int]]] = [[] for _ in range(visits.requests)]
        """Per request: (depth, the next to visit its path down to there)."""
        for request, last, depth in zip(visits.owner.tolist(), visits.last.tolist(), visits.depth.tolist(),
                                        strict=True):
            self._next[last].append((depth, request))
        self._due: list[list[tuple[int, NodeId, int]]] = [[] for _ in range(visits.requests + 1)]
        """Per request: (entry, node, depth in units) of the checkpoints on its path, kept since their last visit."""
        self._farthest: list[tuple[int, int, NodeId]] = []
        """Heap of (-next use, -entry, node)."""
        self._entry: dict[NodeId, int] = {}
        """Of checkpoints off the present path. An entry that stands here no more is stale."""
        self._entries = 0
        self._fresh: list[tuple[NodeId, int]] = []
        """(node, depth) of those on the present path."""
        self._wanted = 0
        """Next use of the checkpoint that is being placed."""

    def request(self, prompt: Int32, shown: int | None = None, now: float | None = None, forks: Collection[int] = ()
                ) -> int:
        t = self.step
        self._fresh = []
        for entry, node, depth in self._due[t]:
            if self._entry.get(node) == entry:
                del self._entry[node]
                self._fresh.append((node, depth))
        self._due[t].clear()
        hit = super().request(prompt, shown, now, forks)
        for node, depth in self._fresh:
            following, use = self._following(t, depth), self._use(t, depth)
            self._entries += 1
            self._entry[node] = self._entries
            heapq.heappush(self._farthest, (-use, -self._entries, node))
            self._due[following].append((self._entries, node, depth))
        return hit

    def _following(self, t: int, depth: int) -> int:
        """The next request after t to visit the node at `depth` units of t's path."""
        return min((request for down, request in self._next[t] if down >= depth), default=self._never)

    def _use(self, t: int, depth: int) -> int:
        """The next request after t to use a checkpoint there. O(visits until then)."""
        t = self._following(t, depth)
        while t < self._never and self._uses[t] != depth:
            t = self._following(t, depth)
        return t

    def _place(self, node: NodeId, tokens: Int32, depth: int, kind: Kind) -> NodeId:
        skipped, units = self.skipped, depth // self.grid
        self._wanted = self._use(self.step - 1, units)
        node = super()._place(node, tokens, depth, kind)
        if self.skipped == skipped:
            self._fresh.append((node, units))
        return node

    def _give_way(self, node: NodeId) -> bool:
        while self._farthest:
            use, entry, victim = self._farthest[0]
            current = self._entry.get(victim) == -entry
            if current and -use < self._wanted:
                return False
            heapq.heappop(self._farthest)
            if current:
                del self._entry[victim]
                self.cache.let_go(victim)
                gone = True
                while gone and self.cache.tree.next_class() == 0:  # the KV that only it needed
                    gone = super()._give_way(node)
                return True
        return False


def run_belady(trace: Trace, shape: Shape, options: ReplayOptions, visits: Visits, progress: Progress) -> int:
    """Tokens that hit. Twice as long as an LRU replay: one without limit goes before."""
    shape = replace(shape, vocab_size=2**31 - 1)
    free = ArrivalReplay(shape, POLICY, UNLIMITED, trace.block)
    turns = trace.turns[: options.limit]
    uses = [free.request(turn.prompt(), turn.shown) // free.grid for turn in turns]
    replay = BeladyReplay(shape, pool_bytes(options, shape), trace.block, visits, uses)
    for done, turn in enumerate(turns):
        replay.request(turn.prompt(), turn.shown)
        if done % 256 == 0:
            progress(done, len(turns))
    replay.cache.check()
    return replay.hit
