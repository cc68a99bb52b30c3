"""A family of sessions that is in (see `sessions`): a session and the sub-agents under it, and what they hold."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

STATES = 2
"""A session needs a working state, and beside it the checkpoint of its newest prompt or answer."""


@dataclass(slots=True, eq=False)
class Line:
    """One session of a family that is in: one path of the tree."""

    shared: int
    """Leading tokens that were cached before its first request: others' bytes."""
    tokens: int = 0
    """Depth of its newest request: prompt, and the answer once that has ended."""
    prompt: int = 0
    pages: int = 0
    """Counted for it in the sum of working sets."""
    jobs: int = 0
    """Its requests that wait in the scheduler's queue or run."""
    last: float = -math.inf
    """When it was last seen."""
    over: bool = False
    """Its caller said that it has ended."""


@dataclass(slots=True, eq=False)
class Family:
    """A session and all those under it."""

    key: Hashable
    """The session at the top."""
    since: float
    """When it went in."""
    priority: int
    """Of its newest request."""
    lines: dict[Hashable, Line] = field(default_factory=dict)
    jobs: int = 0
    turns: int = 0
    """Requests that went in with it."""
    suspended: bool = False
    """It goes out at its next quiet moment."""

    @property
    def pages(self) -> int:
        """Of its working set."""
        return sum(line.pages for line in self.lines.values())

    @property
    def states(self) -> int:
        """Of its working set."""
        return STATES * len(self.lines)
