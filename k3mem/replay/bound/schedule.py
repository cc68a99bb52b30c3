"""A schedule below the bound: which states and which KV to hold from one request to the next, and what then hits.

Its rules are those of arrival-order replay, but for the depths at which checkpoints may be placed: anywhere on the
grid that a request computes, or where one is still held. A state held from request p to request t at depth d holds all
KV above it:

                     d
    p  |-------------s-----      p computed depth d, or was itself given the state
       |  KV 0..d    s           held in every slot from p to t; what others visit meanwhile is held on from there
    t  |-------------s-------->  resumes here

Every held byte belongs to one interval between two visits, as in the bound: of a request's path the KV of a section, or
one state. The schedule is built greedily from the solution of the bound's program.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from k3mem.replay.bound.prices import Bound, Costs, Program
from k3mem.replay.bound.visits import Visits
from k3mem.types import Int64


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which checkpoints are held into each request. Depths in units of the grid."""

    resume: Int64
    """[requests] depth at which each resumes; 0: nothing hits."""
    states: list[frozenset[int]]
    """Per request: depths on its path whose states are held from their last visitor to it."""
    kv: Int64
    """[requests] units of its path whose KV is held from their last visitors to it."""
    held: Int64
    """[requests - 1] bytes from each request to the next."""


def feasible(visits: Visits, costs: Costs, bound: Bound) -> Schedule:
    """The better of two greedy schedules: requests by what their best options are worth at the bound's prices, and by
    the share that the program gives them first. What does not fit whole is tried once more, cut to what does.

    `visits` must be clipped to `costs.deepest`. O(options x (requests / 8 of numpy's sums + states passed on)).
    """
    if not len(visits.last):
        return Builder(visits, costs).finish()
    program = Program(visits, costs)
    cumulated = np.concatenate(([0.0], np.cumsum(bound.prices * costs.capacity)))
    worth = program.saved - program.cost(cumulated)
    orders = np.argsort(-worth, kind="stable"), np.lexsort((-worth, -np.round(bound.shares, 2)))
    return max((_greedy(visits, costs, order) for order in orders), key=lambda schedule: int(schedule.resume.sum()))


def _greedy(visits: Visits, costs: Costs, order: Int64) -> Schedule:
    builder = Builder(visits, costs)
    owner, depth = visits.owner.tolist(), visits.depth.tolist()
    for option in order.tolist():
        if not builder.resume[owner[option]]:
            builder.place(owner[option], depth[option])
    for option in order.tolist():
        t = owner[option]
        if not builder.resume[t] and (fitting := builder.fitting(t, option)) > 0:
            builder.place(t, fitting)
    return builder.finish()


class Builder:
    """A schedule that grows. Each request is placed once at most; what does not fit changes nothing."""

    def __init__(self, visits: Visits, costs: Costs) -> None:
        n = visits.requests
        self.costs = costs
        self.first: list[int] = visits.first.tolist()
        self.last: list[int] = visits.last.tolist()
        self.depth: list[int] = visits.depth.tolist()
        self.resume = [0] * n
        self.kv = [0] * n
        self.states: list[set[int]] = [set() for _ in range(n)]
        self.given: list[set[int]] = [set() for _ in range(n)]
        """Depths at which a request's own forward pass leaves a state, for those who come after it."""
        self.since: list[dict[int, int]] = [{} for _ in range(n)]
        """Depth -> the request since when the KV above it is held into this one, all visits between included."""
        self.held = np.zeros(max(0, n - 1), np.int64)
        self._added: list[tuple[set[int], int]] = []
        self._changed: list[tuple[int, int, int, int | None]] = []
        self._spans: list[tuple[int, int, int]] = []

    def place(self, t: int, depth: int) -> bool:
        """Let request t resume at `depth` if everything that it needs fits."""
        assert self.resume[t] == 0 < depth
        self._added.clear()
        self._changed.clear()
        self._spans.clear()
        self.resume[t] = depth
        self._keep_states(t, depth)
        if self._fits():
            return True
        self.resume[t] = 0
        for some, entry in self._added:
            some.remove(entry)
        for t, kv, at, before in reversed(self._changed):
            self.kv[t] = kv
            if before is None:
                del self.since[t][at]
            else:
                self.since[t][at] = before
        return False

    def fitting(self, t: int, option: int) -> int:
        """The deepest depth of an option's section that may fit, its KV beside one state; 0 or less: none."""
        above = self.depth[option - 1] if option > self.first[t] else 0
        room = self.costs.capacity - self.costs.state - int(self.held[self.last[option] : t].max())
        return min(self.depth[option], max(self.kv[t], above) + room // self.costs.unit) if room >= 0 else 0

    def finish(self) -> Schedule:
        """What was placed. The builder is not to be used after."""
        return Schedule(np.array(self.resume, np.int64), [frozenset(some) for some in self.states],
                        np.array(self.kv, np.int64), self.held)

    def _keep_states(self, t: int, depth: int) -> None:
        """Hold the state at `depth` into t, and into its givers back to one that computes it. What t was to compute
        for others, and now resumes below, it must be given as well."""
        todo = [(t, depth), *((t, shallower) for shallower in self.given[t] if shallower < depth)]
        while todo:
            t, depth = todo.pop()
            if not self._add(self.states[t], depth):
                continue
            giver = self.last[self._section(t, depth)]
            self._spans.append((giver, t, self.costs.state))
            self._keep_kv(t, depth, giver)
            if self.resume[giver] > depth:
                todo.append((giver, depth))
            else:
                self._add(self.given[giver], depth)

    def _keep_kv(self, t: int, depth: int, since: int) -> None:
        """Hold the KV of t's path down to `depth` in all slots from request `since` to t."""
        todo = [(t, depth)]
        while todo:
            t, depth = todo.pop()
            known = self.since[t]
            if any(at >= depth and begin <= since for at, begin in known.items()):
                continue
            before, above = self.kv[t], 0
            self._changed.append((t, before, depth, known.get(depth)))
            known[depth] = since
            self.kv[t] = max(before, depth)
            for i in range(self.first[t], self._section(t, depth) + 1):
                bottom, visitor = min(self.depth[i], depth), self.last[i]
                units = bottom - max(above, before)
                if units > 0:
                    self._spans.append((visitor, t, units * self.costs.unit))
                if visitor > since:
                    todo.append((visitor, bottom))
                above = bottom

    def _section(self, t: int, depth: int) -> int:
        return bisect_left(self.depth, depth, self.first[t], self.first[t + 1])

    def _add(self, some: set[int], depth: int) -> bool:
        """Add to a set; False if it was there."""
        if depth in some:
            return False
        some.add(depth)
        self._added.append((some, depth))
        return True

    def _fits(self) -> bool:
        """Add the spans to what is held, unless that exceeds the capacity somewhere."""
        held, capacity = self.held, self.costs.capacity
        for start, stop, size in self._spans:
            held[start:stop] += size
        if all(int(held[start:stop].max()) <= capacity for start, stop, _ in self._spans):
            return True
        for start, stop, size in self._spans:
            held[start:stop] -= size
        return False
