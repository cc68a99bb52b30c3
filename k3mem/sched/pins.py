"""Pins: a session's newest checkpoint is kept for a while. Soft: where nothing else could give way, pins do; those
beyond a share of the arena to anybody who needs the room, the others to the last one that runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from k3mem.errors import Corrupted
from k3mem.sched.cache import Cache
from k3mem.types import NO_NODE, NO_STATE, NodeId, ScopeId

MOST_SESSIONS = 1 << 14
"""Sessions whose newest checkpoint is remembered, the least recently ended first to be forgotten; and most pins, the
oldest first to end."""


class _Place(NamedTuple):
    """A checkpoint by name. Node ids are reused; scope, depth and stamp tell tenants apart (two could agree in all
    only if the id changed hands within the commit of one step; a pin would then keep the other one, no worse)."""

    node: NodeId
    scope: ScopeId
    depth: int
    stamp: int
    ticket: int = 0
    """The eviction policy's number of the request that left it."""


@dataclass(slots=True)
class _Pin:
    until: float
    node: NodeId | None
    """The locked node; None while the session has no checkpoint."""


@dataclass(slots=True)
class Pins:
    """Pinned sessions, and the newest checkpoint of every session that could be pinned. A few words a session."""

    cache: Cache
    _places: OrderedDict[Hashable, _Place] = field(default_factory=OrderedDict)
    """Session -> the deepest checkpoint on its last published path."""
    _pins: dict[Hashable, _Pin] = field(default_factory=dict)

    def pin(self, session: Hashable, until: float) -> None:
        """Keep the session's newest checkpoint, and each newer one in its place, until that time. O(log n)."""
        self.unpin(session)
        if len(self._pins) >= MOST_SESSIONS:
            self.unpin(next(iter(self._pins)))
        self._pins[session] = _Pin(until, self._lock(session))

    def unpin(self, session: Hashable) -> None:
        """Let go; nothing happens where the session is not pinned. O(log n)."""
        pin = self._pins.pop(session, None)
        if pin is not None and pin.node is not None:
            self.cache.tree.unlock(pin.node)

    def published(self, session: Hashable, node: NodeId, ticket: int = 0) -> None:
        """A request of the session ended; `node` is the deepest one that it stood on, locked still. O(path)."""
        if session is None:
            return
        self._places.pop(session, None)
        place = self._newest(node)
        if place is not None:
            self._places[session] = place._replace(ticket=ticket)
            if len(self._places) > MOST_SESSIONS:
                self._places.popitem(last=False)
        pin = self._pins.get(session)
        if pin is not None:
            self.pin(session, pin.until)

    def expire(self, now: float) -> None:
        """Let go of pins whose time is over. O(pins)."""
        for session in [s for s, pin in self._pins.items() if pin.until <= now]:
            self.unpin(session)

    def give_way(self) -> bool:
        """Let go of all pins; whether there were any."""
        held = any(pin.node is not None for pin in self._pins.values())
        for session in list(self._pins):
            self.unpin(session)
        return held

    def give_one(self, kept: int) -> bool:
        """Let go of the oldest pin, if all together keep more than `kept` bytes; whether any was. O(pinned pages
        log)."""
        if not self._pins or self.bytes <= kept:
            return False
        for session, pin in self._pins.items():
            if pin.node is not None:
                self.unpin(session)
                return True
        return False

    @property
    def bytes(self) -> int:
        """Bytes of the checkpoints that are pinned and of the KV on their paths, each page once. O(pinned pages
        log)."""
        tree, shape, nodes = self.cache.tree, self.cache.shape, set(self.nodes)
        pages = [tree.pages(node) for node in nodes]
        distinct = len(np.unique(np.concatenate(pages))) if pages else 0
        states = sum(tree.state(node) != NO_STATE for node in nodes)
        return distinct * shape.page_bytes + states * shape.state_bytes

    @property
    def nodes(self) -> list[NodeId]:
        """Nodes locked by pins."""
        return [pin.node for pin in self._pins.values() if pin.node is not None]

    def _newest(self, node: NodeId) -> _Place | None:
        """The deepest checkpoint at or above a node that is in the tree."""
        while node != NO_NODE:
            info = self.cache.tree.info(node)
            if info.state != NO_STATE:
                return _Place(node, info.scope, info.depth, info.stamp)
            node = info.parent
        return None

    def newest(self, session: Hashable) -> _Place | None:
        """The session's newest checkpoint; None where it is gone, or was never known. O(1)."""
        place = self._places.get(session)
        if place is None:
            return None
        try:
            info = self.cache.tree.info(place.node)
        except Corrupted:  # no node has this number now
            info = None
        if info is None or info.state == NO_STATE or place[1:4] != (info.scope, info.depth, info.stamp):
            del self._places[session]  # evicted: it can be pinned again when its next request has ended
            return None
        return place

    def _lock(self, session: Hashable) -> NodeId | None:
        place = self.newest(session)
        if place is None:
            return None
        self.cache.tree.lock(place.node)
        return place.node
