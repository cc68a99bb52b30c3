"""When turns start: at their recorded arrivals (open loop), or after the answers before them (closed loop)."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import Protocol

from k3mem.replay.options import BadOption
from k3mem.replay.trace import Trace, Turn


class Feed(Protocol):
    """Hands out turns as their time comes. Times in virtual seconds."""

    def ready(self, now: float) -> list[tuple[float, Turn]]:
        """(start, turn) of every turn that starts at or before `now`, in order of time."""
        ...

    def next_time(self) -> float | None:
        """Start of the next turn known so far; None if none is."""
        ...

    def ended(self, turn: Turn, t: float) -> None:
        """A turn's answer was complete at t."""
        ...


class OpenFeed:
    """Turns at their recorded arrivals, counted from the first. Raises BadOption where the trace has none."""

    def __init__(self, trace: Trace, limit: int | None) -> None:
        turns = trace.turns[:limit]
        if not trace.has_arrivals or any(turn.arrival is None for turn in turns):
            raise BadOption(f"{trace.name} has no arrival times: replay it with --loop closed")
        starts = [turn.arrival or 0.0 for turn in turns]
        zero = min(starts, default=0.0)
        order = sorted(range(len(turns)), key=lambda i: (starts[i], i))
        self._left = deque((starts[i] - zero, turns[i]) for i in order)
        self.total = len(turns)

    def ready(self, now: float) -> list[tuple[float, Turn]]:
        out = []
        while self._left and self._left[0][0] <= now:
            out.append(self._left.popleft())
        return out

    def next_time(self) -> float | None:
        return self._left[0][0] if self._left else None

    def ended(self, turn: Turn, t: float) -> None:
        """Nobody waits for an answer."""


class ClosedFeed:
    """`concurrency` sessions at once, in file order. A turn starts `think` seconds (at most `gap_cap`) after the
    answer before it in its stream; the first turn of a session when a session before it has ended; the first turn of
    a sub-agent after the turn that spawned it, or with its session where that is unknown."""

    def __init__(self, trace: Trace, limit: int | None, concurrency: int, gap_cap: float | None) -> None:
        turns = trace.turns[:limit]
        self._cap = gap_cap
        self._following: dict[int, Turn] = {}
        self._spawned: dict[int, list[Turn]] = defaultdict(list)
        self._first: dict[str, list[Turn]] = defaultdict(list)
        self._left: dict[str, int] = defaultdict(int)
        last: dict[str, Turn] = {}
        inside = {turn.index for turn in turns}
        for turn in turns:
            self._left[turn.session] += 1
            before = last.get(turn.stream)
            if before is not None:
                self._following[before.index] = turn
            elif turn.parent is not None and turn.parent in inside:
                self._spawned[turn.parent].append(turn)
            else:
                self._first[turn.session].append(turn)
            last[turn.stream] = turn
        self._sessions = deque(self._left)
        self._heap: list[tuple[float, int, Turn]] = []
        self._count = 0
        self.total = len(turns)
        for _ in range(min(concurrency, len(self._sessions))):
            self._open(0.0)

    def ready(self, now: float) -> list[tuple[float, Turn]]:
        out = []
        while self._heap and self._heap[0][0] <= now:
            start, _, turn = heapq.heappop(self._heap)
            out.append((start, turn))
        return out

    def next_time(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def ended(self, turn: Turn, t: float) -> None:
        following = self._following.get(turn.index)
        if following is not None:
            self._push(t + self._gap(following), following)
        for first in self._spawned.get(turn.index, ()):
            self._push(t + self._gap(first), first)
        self._left[turn.session] -= 1
        if not self._left[turn.session] and self._sessions:
            self._open(t)

    def _open(self, t: float) -> None:
        for turn in self._first[self._sessions.popleft()]:
            self._push(t, turn)

    def _gap(self, turn: Turn) -> float:
        return turn.think if self._cap is None else min(turn.think, self._cap)

    def _push(self, t: float, turn: Turn) -> None:
        heapq.heappush(self._heap, (t, self._count, turn))
        self._count += 1
