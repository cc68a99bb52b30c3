"""How room is made: what a demand may evict, when it may give up, and in which batches entries move. Each raises Found.
"""

from __future__ import annotations

from typing import Any

from k3mem.fuzz.oracle import Found
from k3mem.fuzz.recency import Recency
from k3mem.plan import Plan
from k3mem.pool import Fit
from k3mem.sched.core import Core
from k3mem.types import NO_NODE

Move = tuple[int, ...]
"""(kind, source, destination)."""


class Rooms:
    """Watches one scheduler's cache and its arena, whichever that is when a plan is begun."""

    def __init__(self, core: Core, recency: Recency) -> None:
        self.core, self.recency = core, recency
        self.rounds: list[set[Move]] = []
        """Moves of each time that entries moved, since the last plan was begun."""
        cache = core.cache
        self._room, self._cheap = cache.room, cache.cheap_room
        cache.room, cache.cheap_room = self.room, self.cheap_room  # type: ignore[method-assign]
        self.arena: Any = None

    def room(self, pages: int, states: int, protect: Any = NO_NODE) -> Fit:
        """As the cache's: it gives up only where nothing is left that could go."""
        out = self._room(pages, states, protect)
        if out == Fit.NO and protect == NO_NODE and self.core.cache.tree.next_class() is not None:
            raise Found("oracle", f"no room for {pages} pages and {states} states, though something could go")
        return out

    def cheap_room(self, pages: int, states: int) -> Fit:
        """As the cache's: only what the policy puts first goes, and all of that before it gives up."""
        self.recency.cheap = True
        try:
            out = self._cheap(pages, states)
        finally:
            self.recency.cheap = False
        if out == Fit.NO and self.core.cache.tree.next_class() == 0:
            raise Found("oracle", f"no room for {pages} pages and {states} states, though something cheap could go")
        return out

    def make_room(self, *demand: Any) -> Any:
        """As the arena's."""
        return self._note(self._make_room(*demand))

    def compact(self, *budget: Any) -> Any:
        """As the arena's."""
        return self._note(self._compact(*budget))

    def _note(self, moves: Any) -> Any:
        self.rounds.append({tuple(move[1:4]) for move in moves.tolist()})
        return moves

    def begin(self) -> None:
        """A plan is about to be made."""
        self.rounds.clear()
        arena = self.core.cache.arena
        if arena is not self.arena:
            self.arena = arena
            self._make_room, self._compact = arena.make_room, arena.compact
            arena.make_room, arena.compact = self.make_room, self.compact  # type: ignore[assignment, method-assign]

    def batches(self, plan: Plan) -> None:
        """Later moves may use places that earlier ones have left: what moved at different times is in batches of its
        own, one after another."""
        batches: dict[int, set[Move]] = {}
        last = 0
        for batch, *move in plan.moves.tolist():
            if batch < last:
                raise Found("oracle", f"plan {plan.step}: batch {batch} comes after batch {last}")
            last = batch
            batches.setdefault(batch, set()).add(tuple(move))
        for batch, moves in batches.items():
            if not any(moves <= made for made in self.rounds):
                raise Found("oracle", f"plan {plan.step}: batch {batch} moves together what moved at different times")
