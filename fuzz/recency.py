"""Who is evicted: what goes first for every policy, and of the rest the least recently used where that is the policy,
told from uses alone.

A use of a checkpoint is its publication and each admission that restores from it. The tree is asked which checkpoints
may go at all, and which are superseded or over; their order is known here.
"""

from __future__ import annotations

from typing import Any

from k3mem.fuzz.oracle import Found
from k3mem.radix import Evicted, Note, Published, Tree
from k3mem.radix.kinds import PASSED
from k3mem.types import NO_NODE, NodeId

MOST = 64
"""Checkpoints beyond which nobody is compared: evictions are watched where memory is tight."""


class Recency:
    """Watches one tree; `by_use`: the least recently used goes."""

    def __init__(self, tree: Tree, by_use: bool = True) -> None:
        self.tree = tree
        self.by_use = by_use
        self.clock = 0
        self.cheap = False
        """Whether only what the policy puts first may go."""
        self.used: dict[int, int] = {}
        """State id of a checkpoint -> time of its last use."""
        self._publish, self._evict = tree.publish, tree.evict
        tree.publish, tree.evict = self.publish, self.evict  # type: ignore[method-assign]

    def use(self, state: int) -> None:
        """A checkpoint was published or restored from."""
        self.clock += 1
        self.used[state] = self.clock

    def publish(self, *args: Any, **named: Any) -> Published:
        """As the tree's."""
        out = self._publish(*args, **named)
        state = self.tree.info(out.node).state
        given = args[4] if len(args) > 4 else named.get("state", -1)
        if given >= 0 and state >= 0:
            self.use(state)
        return out

    def evict(self, protect: NodeId = NO_NODE) -> Evicted | None:
        """As the tree's. Raises Found where another one should have gone."""
        if self.tree.counters().checkpoints > MOST:
            return self._evict(protect)
        could = self._could(protect)
        out = self._evict(protect)
        if out is None:
            if could:
                raise Found("oracle", f"nothing is evicted, though states {sorted(could)} may go")
            return None
        first = sorted(state for state, late in could.items() if not late)
        if out.state < 0:
            return out
        if out.state not in could:
            raise Found("oracle", f"state {out.state} was evicted, which is in use")
        late = could[out.state]
        if late and self.cheap:
            raise Found("oracle", f"state {out.state} was evicted for an optional target")
        if late and first:
            raise Found("oracle", f"state {out.state} was evicted before the superseded {first}")
        rivals = [state for state, other in could.items() if other == late]
        oldest = min(rivals, key=self._last)
        if self.by_use and self._last(oldest) < self._last(out.state):
            raise Found("oracle", f"state {out.state} was evicted, used after state {oldest}")
        return out

    def _last(self, state: int) -> int:
        return self.used.get(state, 0)

    def _could(self, protect: NodeId) -> dict[int, bool]:
        """State -> whether it goes after those that are superseded, of all that may go."""
        safe, node = set[int](), protect
        while node != NO_NODE:
            safe.add(node)
            node = self.tree.info(node).parent
        walk, out = self.tree.walk(), {}
        for node, state in zip(walk.node.tolist(), walk.state.tolist(), strict=True):
            if state >= 0 and node not in safe:
                info = self.tree.info(node)
                if not info.lock:
                    over = info.note == Note.OVER and info.children < 2
                    out[state] = not (over or info.superseded and info.kind in PASSED)
        return out
