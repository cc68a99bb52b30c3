"""Requests that name their predecessor, laid out as streams."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple


class Seat(NamedTuple):
    """Where a request belongs."""

    session: str
    sub: int
    parent: int | None
    """Index of the turn at which the stream left another one."""


class Forks:
    """Streams of a forest of requests: the first successor of a request stays in its stream, others fork."""

    def __init__(self) -> None:
        self._at: dict[Hashable, tuple[Seat, int]] = {}
        self._continued: set[Hashable] = set()
        self._subs: dict[str, int] = {}

    def __contains__(self, request: Hashable) -> bool:
        return request in self._at

    def seat(self, request: Hashable, after: Hashable | None, session: str | None = None) -> Seat:
        """Where `request`, which follows `after`, would go; an unknown `after` makes it a root. O(1)."""
        known = self._at.get(after)
        name = str(request) if session is None else session
        if known is None:
            return Seat(name, self._subs.get(name, 0), None)
        seat, index = known
        if after in self._continued or (session is not None and session != seat.session):
            name = seat.session if session is None else session
            return Seat(name, self._subs.get(name, 0), index)
        return seat

    def take(self, request: Hashable, after: Hashable | None, seat: Seat, index: int) -> None:
        """`request` is the trace's turn `index` and sits at `seat`. O(1)."""
        self._at[request] = seat, index
        self._subs[seat.session] = max(self._subs.get(seat.session, 0), seat.sub + 1)
        self._continued.add(after)
