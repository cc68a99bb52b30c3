"""`Auto`: every candidate policy runs on a shadow of the cache, and the real tree follows the one that hits most.

A shadow is an instance of the same C tree whose pages and states are numbers only. It sees each request's prompt and
keeps what the arrival rule keeps: a checkpoint where a prompt leaves known nodes, and one at its end. Where the pool
holds many states, shadows see a hashed sample of sessions, told by the first page, and have that share of the bytes.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from k3mem.radix.kinds import PASSED, Kind
from k3mem.radix.learn import Learned, Learning
from k3mem.radix.policy import EvictionPolicy, Keeper, Lru, Prices, ranks
from k3mem.radix.tree import Tree
from k3mem.types import Int32, NodeId, ScopeId, StateId, UInt8

STATES_MOST = 16_384
"""Where the bytes hold more states than this, shadows see a sample."""


TICKETS_MOST = 16_384
"""Requests whose ends can still be told; the oldest are forgotten."""


class Shadow:
    """One candidate at work on numbers. Counts the tokens that would have hit."""

    def __init__(self, policy: EvictionPolicy, page: int, grid: int, prices: Prices, capacity: float) -> None:
        self.tree = Tree(page, grid, policy, 1 << 26)
        self.keeper = policy.keeper(self.tree, prices)
        self.prices, self.capacity, self.page, self.grid = prices, capacity, page, grid
        self.scopes: dict[ScopeId, ScopeId] = {}
        self.step = 0
        self.evicted = 0
        self._state = 0
        self._pages = np.zeros(0, np.int32)

    def request(self, scope: ScopeId, prompt: Int32, now: float) -> tuple[int, list[tuple[NodeId, int]]]:
        """Tokens that hit, and (node, stamp) of what this request used and left. O(prompt)."""
        if scope not in self.scopes:
            self.scopes[scope] = self.tree.new_scope()
        own, tree = self.scopes[scope], self.tree
        self.step += 1
        self.keeper.requested(own, prompt, now)
        end = len(prompt)
        found = tree.match(own, prompt, end, self.step)
        node, left = found.node, []
        if found.depth:
            left.append((node, tree.info(node).stamp))
            tree.touch(node)
        fork = min(found.known, end) // self.grid * self.grid
        for depth, kind in ((fork, Kind.BRANCH), (end, Kind.PROMPT_END)):
            if found.depth < depth and (depth < end or kind == Kind.PROMPT_END):
                node = self._place(own, node, prompt, depth, kind)
                left.append((node, self.step))
        return found.depth, left

    def _place(self, scope: ScopeId, node: NodeId, prompt: Int32, depth: int, kind: Kind) -> NodeId:
        tree, prices, page = self.tree, self.prices, self.page
        while True:
            held = tree.match(scope, prompt[:depth], 0, self.step).kv // page
            counters = tree.counters()
            used = counters.checkpoints * prices.state_bytes + counters.kv_tokens * prices.token_bytes
            if used + (depth - held * page) * prices.token_bytes + prices.state_bytes <= self.capacity:
                break
            if tree.evict(node) is None:
                tree.remember(node, prompt, depth)
                return node
            self.evicted += 1
        count = -(-depth // page)
        if len(self._pages) < count:
            self._pages = np.zeros(2 * count, np.int32)
        self._state += 1
        return tree.publish(node, prompt, depth, self._pages[:count], StateId(self._state & 0x3FFFFFFF), kind,
                            self.step).node

    def note(self, left: list[tuple[NodeId, int]], note: int) -> None:
        """What is known of the next use of what a request left, as far as it is still there."""
        note_all(self.tree, left, note)


def note_all(tree: Tree, left: list[tuple[NodeId, int]], note: int) -> None:
    """Note all checkpoints of (node, stamp) that are there still; numbers of nodes are used again."""
    for node, stamp in left:
        if tree.stamp(node) == stamp:
            tree.note(node, note)


class Following:
    """The keeper of `Auto`."""

    heeds = True

    def __init__(self, tree: Tree, prices: Prices, policy: Auto) -> None:
        self.tree, self.policy, self.prices = tree, policy, prices
        states = prices.capacity_bytes / prices.state_bytes
        self.share = min(1.0, STATES_MOST / states)
        page, grid = tree.page_tokens, tree.grid
        self.shadows = [Shadow(candidate, page, grid, prices, prices.capacity_bytes * self.share)
                        for candidate in policy.candidates]
        self.awake = False
        """Whether anything had to go yet, or will soon; before that it does not matter whom to follow."""
        self.hits = np.zeros(len(self.shadows))
        self.followed = 0
        self.switches = 0
        self.requests = 0
        self._left: OrderedDict[int, list[list[tuple[NodeId, int]]]] = OrderedDict()
        self.own = Learning(tree, prices, Learned(policy.superseded_first), held=True)
        """The real tree learns for itself: with answers, chunks and running requests it is not quite like a shadow."""

    def requested(self, scope: ScopeId, prompt: Int32, now: float) -> int:
        self.requests = self.own.requested(scope, prompt, now)
        self.awake = self.awake or self._pressed()
        if self.awake and len(prompt) and self._sampled(prompt):
            self.hits *= self.policy.decay
            left = []
            for i, shadow in enumerate(self.shadows):
                hit, kept = shadow.request(scope, prompt, now)
                self.hits[i] += hit
                left.append(kept)
            self._left[self.requests] = left
            if len(self._left) > TICKETS_MOST:
                self._left.popitem(last=False)
        if self.awake and self.requests % self.policy.period == 0:
            self._choose()
        return self.requests

    def finished(self, request: int, note: int) -> None:
        for shadow, left in zip(self.shadows, self._left.get(request, ()), strict=False):
            shadow.note(left, note)

    def resized(self, capacity_bytes: int) -> None:
        """Shadows let go of what is too much when they next keep something."""
        self.prices = self.prices._replace(capacity_bytes=capacity_bytes)
        for shadow in self.shadows:
            shadow.capacity = capacity_bytes * self.share

    def _pressed(self) -> bool:
        counters, prices = self.tree.counters(), self.prices
        used = counters.checkpoints * prices.state_bytes + counters.kv_tokens * prices.token_bytes
        return self.tree.evictions > 0 or used >= self.policy.wakes * prices.capacity_bytes

    def _sampled(self, prompt: Int32) -> bool:
        if self.share == 1.0:
            return True
        return zlib.crc32(np.ascontiguousarray(prompt[: self.tree.page_tokens]).tobytes()) < self.share * 2**32

    def _choose(self) -> None:
        """Follow the best, if it is better by the margin than the one followed."""
        best = int(np.argmax(self.hits))
        if self.hits[best] > self.hits[self.followed] * (1 + self.policy.margin):
            self.followed = best
            self.switches += 1
            self.own.hold(not isinstance(self.shadows[best].keeper, Learning))

    def stats(self) -> dict[str, object]:
        return {"followed": type(self.policy.candidates[self.followed]).__name__, "switches": self.switches,
                "share": self.share, "shadow_hits": [round(float(x)) for x in self.hits]}


@dataclass(frozen=True, slots=True)
class Auto:
    """Follows the candidate whose shadow hits most; the first one until there is evidence for another."""

    superseded_first: tuple[Kind, ...] = PASSED
    period: int = 64
    """Requests between two choices."""
    wakes: float = 0.25
    """Shadows run from when so much of the bytes is cached; or something has been evicted."""
    margin: float = 0.005
    """By how much more another must hit to be followed."""
    decay: float = 0.9998
    """What a hit is worth one request later."""

    @property
    def candidates(self) -> tuple[EvictionPolicy, ...]:
        """Least recent use, and learned value."""
        return Lru(self.superseded_first), Learned(self.superseded_first)

    def classes(self) -> UInt8:
        return ranks(self.superseded_first)

    def keeper(self, tree: Tree, prices: Prices) -> Keeper:
        return Following(tree, prices, self)
