"""Events must be true: numbered without gaps, in order, and a checkpoint only once the step that wrote it committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from k3mem.engine import Engine
from k3mem.fuzz.oracle import Found
from k3mem.plan import Plan, Result
from k3mem.radix import Kind, Published
from k3mem.request import Outputs
from k3mem.sched.core import Flight


class News:
    """Watches one engine's log, its tree's publications and its scheduler's commits."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen = 0
        """Number of the next event."""
        self.committed = {0}
        """Steps that committed; 0: before the first."""
        self.published: dict[tuple[int, str], list[int]] = {}
        """(depth, kind) -> steps that published such a checkpoint, while no event has told of them."""
        self.seated: dict[object, tuple[int, int]] = {}
        """Request -> (depth at which the plan being launched seats it, tokens that it computes again)."""
        self.again = 0
        """Tokens computed again so far."""
        scheduler, tree = engine.scheduler, engine.scheduler.core.cache.tree
        self._commit, self._publish = scheduler.commit, tree.publish
        scheduler.commit, tree.publish = self.commit, self.publish  # type: ignore[method-assign]

    def commit(self, flight: Flight, result: Result) -> Outputs:
        """As the scheduler's."""
        out = self._commit(flight, result)
        self.committed.update(range(flight.plan.step, flight.plan.step + flight.plan.repeat))
        return out

    def publish(self, node: Any, tokens: Any, end: int, pages: Any, state: int = -1, kind: Kind = Kind.CHUNK_END,
                stamp: int = 0) -> Published:
        """As the tree's."""
        out = self._publish(node, tokens, end, pages, state, kind, stamp)  # type: ignore[arg-type]
        if out.taken:
            self.published.setdefault((end, kind.name.lower()), []).append(stamp)
        return out

    def read(self) -> Counter[str]:
        """Check what is new; how many of each kind. Raises Found."""
        kinds: Counter[str] = Counter()
        for event in self.engine.events(self.seen):
            if event.seq != self.seen:
                raise Found("oracle", f"event {event.seq} comes where number {self.seen} is due")
            self.seen += 1
            kinds[event.kind] += 1
            if event.kind == "checkpoint":
                self._checkpoint(event.depth, event.detail)
            elif event.kind == "admit":
                self._admit(event.id, event.depth)
        counted = self.engine.scheduler.core.metrics.resumed_tokens
        if counted != self.again:
            raise Found("oracle", f"{counted} tokens are counted as computed again, {self.again} were")
        return kinds

    def launching(self, plan: Plan, admitted: Iterable[tuple[Any, bool, int]]) -> None:
        """A plan is about to be launched. `admitted`: its (seat, first admission, kind)."""
        depths = {seat.lane: seat.depth for seat in plan.seats}
        self.seated = {seat.job.request.id: (depths[seat.lane], 0 if first else seat.target - depths[seat.lane])
                       for seat, first, _ in admitted if seat.lane in depths}

    def _admit(self, request: object, depth: int) -> None:
        told, again = self.seated.pop(request, (-1, 0))
        if depth != told:
            raise Found("oracle", f"an event tells that request {request} was let in at {depth}, the plan {told}")
        self.again += again

    def _checkpoint(self, depth: int, kind: str) -> None:
        stamps = self.published.get((depth, kind), [])
        sure = [stamp for stamp in stamps if stamp in self.committed]
        if not sure:
            raise Found("oracle", f"an event tells of a checkpoint at {depth} ({kind}), whose step has not committed")
        stamps.remove(sure[0])


