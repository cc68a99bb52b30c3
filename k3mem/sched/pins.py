"""Pins: a session's newest checkpoint is kept for a while. Soft: where nothing else could give way, pins do."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from k3mem.sched.cache import Cache
from k3mem.types import NO_STATE, Int32, NodeId, ScopeId

MOST_SESSIONS = 1 << 14
"""Sessions whose last path is remembered, the least recently ended first to be forgotten."""


@dataclass(slots=True)
class _Pin:
    until: float
    node: NodeId | None
    """The locked node; None while the session has no checkpoint."""


@dataclass(slots=True)
class Pins:
    """Pinned sessions and where every session stood last."""

    cache: Cache
    _paths: OrderedDict[Hashable, tuple[ScopeId, Int32]] = field(default_factory=OrderedDict)
    """Session -> tokens of its last published path."""
    _pins: dict[Hashable, _Pin] = field(default_factory=dict)

    def pin(self, session: Hashable, until: float) -> None:
        """Keep the session's newest checkpoint, and each newer one in its place, until that time. O(its tokens)."""
        self.unpin(session)
        self._pins[session] = _Pin(until, self._lock(session))

    def unpin(self, session: Hashable) -> None:
        """Let go; nothing happens where the session is not pinned. O(log n)."""
        pin = self._pins.pop(session, None)
        if pin is not None and pin.node is not None:
            self.cache.tree.unlock(pin.node)

    def published(self, session: Hashable, scope: ScopeId, tokens: Int32) -> None:
        """A request of the session ended; `tokens` is the path that it left."""
        if session is None:
            return
        self._paths[session] = (scope, tokens)
        self._paths.move_to_end(session)
        if len(self._paths) > MOST_SESSIONS:
            self._paths.popitem(last=False)
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

    @property
    def nodes(self) -> list[NodeId]:
        """Nodes locked by pins."""
        return [pin.node for pin in self._pins.values() if pin.node is not None]

    def _lock(self, session: Hashable) -> NodeId | None:
        path = self._paths.get(session)
        if path is None:
            return None
        scope, tokens = path
        found = self.cache.match(scope, tokens, len(tokens), 1 << 60)
        if found.state == NO_STATE:
            return None
        self.cache.tree.lock(found.node)
        return found.node
