"""A policy of one's own, written in Python: a function from what is known of a checkpoint to its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sortedcontainers import SortedList

from k3mem.radix.found import Evicted, Info
from k3mem.radix.kinds import PASSED, Kind
from k3mem.radix.policy import Keeper, Prices, ranks
from k3mem.radix.tree import Tree
from k3mem.types import NO_NODE, NO_STATE, Int32, NodeId, ScopeId, UInt8

Key = Callable[[Info, int, Prices], float]
"""(the checkpoint's node, number of its last use, what things cost) -> key; the least goes first. Asked when a
checkpoint is attached, used or noted, and when another one comes below it."""


class SortedVictims:
    """Keeps every checkpoint in a sorted list by key, and is the tree's picker. O(log n) a change in Python."""

    heeds = True

    def __init__(self, tree: Tree, prices: Prices, key: Key) -> None:
        self.tree, self.prices, self.key = tree, prices, key
        self._list: SortedList = SortedList()
        self._entries: dict[NodeId, tuple[float, int, NodeId, int]] = {}
        """node -> (key, last use, node, stamp)"""
        self._uses = 0
        tree.picker = self

    def used(self, node: NodeId) -> None:
        self._uses += 1
        self._file(node, self._uses)
        above = self.tree.info(node).parent
        while above != NO_NODE and above not in self._entries:
            above = self.tree.info(above).parent
        if above != NO_NODE:
            self.changed(above)

    def changed(self, node: NodeId) -> None:
        entry = self._entries.get(node)
        if entry is not None:
            self._file(node, entry[1])

    def pick(self, protect: NodeId) -> Evicted | None:
        gone = []
        victim = None
        for entry in self._list:
            if self.tree.stamp(entry[2]) != entry[3]:
                gone.append(entry)  # it left the tree by another way
                continue
            victim = self.tree.remove(entry[2], protect)
            if victim is not None:
                gone.append(entry)
                break
        for entry in gone:
            self._list.remove(entry)
            del self._entries[entry[2]]
        return victim

    def _file(self, node: NodeId, use: int) -> None:
        old = self._entries.pop(node, None)
        if old is not None:
            self._list.remove(old)
        info = self.tree.info(node)
        if info.state == NO_STATE:
            return
        entry = (self.key(info, use, self.prices), use, node, info.stamp)
        self._entries[node] = entry
        self._list.add(entry)

    # -- as a keeper

    def requested(self, scope: ScopeId, prompt: Int32, now: float) -> int:
        self.tree.time(now)
        return 0

    def finished(self, request: int, note: int) -> None:
        """The tree itself was told, and told this."""

    def resized(self, capacity_bytes: int) -> None:
        """Keys made from now on know it."""
        self.prices = self.prices._replace(capacity_bytes=capacity_bytes)

    def stats(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True, slots=True)
class Custom:
    """Victims by a key of one's own. `Custom(lambda info, use, prices: use)` is LRU, some times slower."""

    key: Key
    superseded_first: tuple[Kind, ...] = PASSED

    def classes(self) -> UInt8:
        return ranks(self.superseded_first)

    def keeper(self, tree: Tree, prices: Prices) -> Keeper:
        return SortedVictims(tree, prices, self.key)
