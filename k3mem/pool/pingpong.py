"""A running request's extra buffer: the latest snapshot and, around a boundary, the next one. No byte moves here."""

from __future__ import annotations

from k3mem.errors import Corrupted
from k3mem.types import StateId


class ExtraBuffer:
    """The ping-pong pair of one request: at most two states, `latest` and `pending`.

    A step that captures a depth names a target (`begin`). When it commits, the target is written and becomes the
    latest (`landed`) or was not written (`missed`). The latest may leave to the tree (`donate`) at any time; the
    pair then fills again from the next target. Depths only grow. All methods are O(1) and raise Corrupted, changing
    nothing, when called out of turn.

    >>> buffer = ExtraBuffer()
    >>> buffer.begin(StateId(7), 64)
    >>> buffer.landed() is None
    True
    >>> buffer.begin(StateId(9), 128)
    >>> buffer.landed()
    7
    >>> buffer.donate()
    (9, 128)
    """

    __slots__ = ("depth", "latest", "pending", "pending_depth")

    def __init__(self) -> None:
        self.latest: StateId | None = None
        """The newest written snapshot that is still ours."""
        self.depth = -1
        """Depth of the newest written snapshot, in tokens, also after it was donated; -1: none was written."""
        self.pending: StateId | None = None
        """The target of a step in flight."""
        self.pending_depth = -1
        """Depth that the step in flight captures; -1: none."""

    def __repr__(self) -> str:
        return f"ExtraBuffer({self.latest} at {self.depth}, pending {self.pending} at {self.pending_depth})"

    def begin(self, target: StateId, depth: int) -> None:
        """A launched step will write `target` at `depth`, which is deeper than everything written before."""
        if self.pending is not None:
            raise Corrupted(f"{self}: target {target} begins before the pending one has landed or missed")
        if target == self.latest or target <= 0:
            raise Corrupted(f"{self}: state {target} cannot be a target")
        if depth <= self.depth:
            raise Corrupted(f"{self}: depth {depth} is not deeper than the last one")
        self.pending, self.pending_depth = target, depth

    def landed(self) -> StateId | None:
        """The pending target was written and is the latest now. Returns the latest before, which the caller owns."""
        old, new = self.latest, self._take_pending("landed")
        self.latest, self.depth = new, self.pending_depth
        self.pending_depth = -1
        return old

    def missed(self) -> StateId:
        """The pending target was not written. Returns it; the caller owns it."""
        target = self._take_pending("missed")
        self.pending_depth = -1
        return target

    def donate(self) -> tuple[StateId, int]:
        """The latest leaves: (state, depth); the caller owns it."""
        if self.latest is None:
            raise Corrupted(f"{self}: nothing to donate")
        state, self.latest = self.latest, None
        return state, self.depth

    def release(self) -> list[StateId]:
        """Everything leaves, the latest first; the caller owns it. The buffer is as new."""
        states = [state for state in (self.latest, self.pending) if state is not None]
        self.latest = self.pending = None
        self.depth = self.pending_depth = -1
        return states

    def check(self) -> None:
        """Raises Corrupted unless at most two distinct states are held and the pending one is deeper."""
        if self.latest is not None and (self.latest <= 0 or self.depth < 0):
            raise Corrupted(f"{self}: latest without a state or a depth")
        if (self.pending is None) != (self.pending_depth < 0):
            raise Corrupted(f"{self}: pending state and depth disagree")
        if self.pending is None:
            return
        if self.pending <= 0 or self.pending == self.latest or self.pending_depth <= self.depth:
            raise Corrupted(f"{self}: pending is not a new state at a deeper depth")

    def _take_pending(self, what: str) -> StateId:
        if self.pending is None:
            raise Corrupted(f"{self}: {what}, but no step has a target of ours")
        target, self.pending = self.pending, None
        return target
