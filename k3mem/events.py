"""What happened, for whoever watches an engine: a bounded log of small records, numbered without gaps."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One event. `kind` is one of submit, admit, checkpoint, evict, retract, end, failure, flush, drafter, planner."""

    seq: int
    kind: str
    step: int
    """Newest launched step when it was recorded."""
    id: Any = None
    """Request, where it concerns one."""
    depth: int = 0
    """Tokens: resume depth of an admit, depth of a checkpoint or of what was evicted."""
    detail: str = ""
    """Kind of checkpoint, reason of an end, effect of a failure, what a drafter raised when it was told of an end, or a
    planner when it was told of a step."""


class EventLog:
    """The last `size` events. A checkpoint is recorded when the step that writes it has committed."""

    def __init__(self, size: int) -> None:
        self._events: deque[tuple[int, str, int, Any, int, str]] = deque(maxlen=size)
        """Fields of events: records are made for those who look."""
        self._unsure: deque[tuple[int, int, str]] = deque()
        """(stamp, depth, kind) of checkpoints whose step has not committed."""
        self.seq = 0
        """Number of events recorded so far; the newest has number seq - 1."""
        self.step = 0
        """The newest launched step."""

    def add(self, kind: str, id: Any = None, depth: int = 0, detail: str = "") -> None:
        """Record an event. O(1)."""
        self._events.append((self.seq, kind, self.step, id, depth, detail))
        self.seq += 1

    def checkpoint(self, stamp: int, depth: int, kind: str) -> None:
        """A checkpoint is in the tree; it becomes an event once step `stamp` has committed. O(1)."""
        self._unsure.append((stamp, depth, kind))

    def committed(self, step: int) -> None:
        """Step `step` has committed. O(events that this makes sure)."""
        unsure = self._unsure
        while unsure and unsure[0][0] <= step:
            _, depth, kind = unsure.popleft()
            self.add("checkpoint", depth=depth, detail=kind)

    def failed(self, step: int) -> None:
        """Steps from `step` on failed: their checkpoints never were."""
        self._unsure = deque(entry for entry in self._unsure if entry[0] < step)

    def since(self, seq: int) -> list[Event]:
        """Events numbered `seq` and up that are still kept. O(those)."""
        newest = [Event(*event) for event in islice(reversed(self._events), max(0, self.seq - seq))]
        newest.reverse()
        return newest
