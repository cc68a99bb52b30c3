"""Transfers: each leases one checkpoint with all its pages, as a host tier would, until it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from k3mem.fuzz.oracle import Found
from k3mem.plan import PAGE, STATE
from k3mem.sched.core import Core
from k3mem.types import NodeId

MOST = 4
"""Transfers at once."""


class Transfer(NamedTuple):
    """One that reads."""

    node: NodeId
    held: list[tuple[int, int]]
    """(kind, id) of its entries ..."""
    places: list[int]
    """... and where they lie."""


class Transfers:
    """All that are under way, oldest first."""

    def __init__(self, core: Callable[[], Core]) -> None:
        self._core = core
        self.running: list[Transfer] = []

    def begin(self, nth: int) -> None:
        """Read the `nth` committed checkpoint (modulo their number)."""
        core = self._core()
        cache = core.cache
        walk = cache.tree.walk()
        with_state = np.flatnonzero(walk.state >= 0)
        safe = walk.stamp < (core.flights[0].plan.step if core.flights else core.step + 1)
        with_state = with_state[safe[with_state]]
        if not len(with_state) or len(self.running) >= MOST:
            return
        order = np.argsort(walk.node[with_state])  # by node: the walk's own order is free
        at = int(with_state[order[nth % len(order)]])
        node = NodeId(int(walk.node[at]))
        held = [(STATE, int(walk.state[at])), *((PAGE, int(p)) for p in cache.tree.pages(node))]
        cache.hold(node)
        for kind, entry in held:
            cache.arena.lease(kind, entry)
        self.running.append(Transfer(node, held, self._places(held)))

    def end(self) -> None:
        """The oldest is done."""
        if not self.running:
            return
        node, held, _ = self.running.pop(0)
        cache = self._core().cache
        for kind, entry in held:
            cache.arena.unlease(kind, entry)
        cache.unhold(node)

    def end_all(self) -> None:
        while self.running:
            self.end()

    def check(self) -> None:
        """Raises Found where a leased entry has moved."""
        for node, held, places in self.running:
            if self._places(held) != places:
                raise Found("oracle", f"an entry of node {node} moved while it was leased")

    def _places(self, entries: list[tuple[int, int]]) -> list[int]:
        arena = self._core().cache.arena
        return [int((arena.state_places if kind == STATE else arena.page_places)([e])[0]) for kind, e in entries]
