"""Who was last where: for each request, its path cut by who visited each part of it before.

A request that resumes at depth d needs the KV of its path down to d, each part held since its last visit, and the
state at d. Visitors grow older with depth, so a path falls into few sections, each with one last visitor:

      0          D1              D2      D3                 end
      |----------|---------------|-------|----- nobody -----|
       visitor p1 >    p2        >  p3

Inside a section all costs and gains are linear in depth, so only its end is worth resuming at: the sections are the
request's *options*. Re-labelling a path with its newest visitor is the `access` of a link-cut tree, so all requests
together have O(n log n) sections, however many blocks the paths have.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from k3mem.replay.trace import Trace
from k3mem.types import Int32, Int64


@dataclass(frozen=True, slots=True)
class Visits:
    """Sections of all requests of a trace, in file order; those of request t are first[t] .. first[t + 1] - 1, by
    depth. Depths in units of the grid."""

    grid: int
    """Tokens a unit."""
    input: Int64
    """[n] prompt tokens."""
    end: Int64
    """[n] deepest depth with a checkpoint: whole units below the prompt's last token."""
    first: Int64
    """[n + 1]"""
    last: Int64
    """[options] the request before this one that visited the section last."""
    depth: Int64
    """[options] where the section ends."""

    @property
    def requests(self) -> int:
        return len(self.input)

    @property
    def owner(self) -> Int64:
        """[options] the request that an option belongs to. O(options)."""
        return np.repeat(np.arange(self.requests), np.diff(self.first))

    @property
    def length(self) -> Int64:
        """[options] units of the section. O(options)."""
        above = np.concatenate(([0], self.depth[:-1]))
        above[self.first[:-1][np.diff(self.first) > 0]] = 0
        return self.depth - above

    @property
    def known(self) -> Int64:
        """[n] the deepest depth that could hit in memory without limit. O(n)."""
        some = np.diff(self.first) > 0
        out = np.zeros(self.requests, np.int64)
        out[some] = self.depth[self.first[1:][some] - 1]
        return out


class _Run:
    """Units top + 1 .. bottom of one path, all last visited by `visitor`, whose ids they have. Forks: depth, first
    unit below it -> the run that leaves there."""

    __slots__ = ("ids", "top", "bottom", "visitor", "forks")

    def __init__(self, ids: Int32, top: int, bottom: int, visitor: int, forks: _Forks) -> None:
        self.ids = ids
        self.top = top
        self.bottom = bottom
        self.visitor = visitor
        self.forks = forks


_Forks = dict[int, dict[bytes, _Run]]


class VisitLog:
    """Takes requests in file order, `unit` ids to a unit of depth. Memory: O(runs), which keep views of the ids."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self._root: _Forks = {0: {}}
        self._count = 0

    def visit(self, ids: Int32, end: int) -> list[tuple[int, int]]:
        """(last visitor, depth) of each section of a path of `end` units; then the path is this request's.

        O(ids) for comparing, O(sections + forks on the path) beside it.
        """
        me, unit = self._count, self.unit
        self._count += 1
        out: list[tuple[int, int]] = []
        mine: _Forks = {}
        start, depth, forks = self._root[0], 0, mine
        while depth < end:
            found = start if depth == 0 else forks.get(depth, {})
            run = found.pop(ids[depth * unit : (depth + 1) * unit].tobytes(), None)
            if run is None:
                break
            depth = self._common(run, ids, end)
            out.append((run.visitor, depth))
            below = run.forks
            if depth < run.bottom:
                mine.update({at: fork for at, fork in below.items() if at <= depth})
                below = {at: fork for at, fork in below.items() if at > depth}
                rest = _Run(run.ids, depth, run.bottom, run.visitor, below)
                key = run.ids[depth * unit : (depth + 1) * unit].tobytes()
                mine.setdefault(depth, {})[key] = rest
            else:
                mine.update(below)
        if end:
            self._root[0][ids[:unit].tobytes()] = _Run(ids, 0, end, me, mine)
        return out

    def _common(self, run: _Run, ids: Int32, end: int) -> int:
        """Depth down to which a path of `end` units goes along a run whose first unit it shares."""
        unit, bottom = self.unit, min(run.bottom, end)
        a, b = run.top * unit, bottom * unit
        differs = ids[a:b] != run.ids[a:b]
        first = int(differs.argmax())
        return run.top + first // unit if differs[first] else bottom


def visits(trace: Trace, grid: int, limit: int | None = None) -> Visits:
    """The sections of a trace's first `limit` requests; grid: a multiple of the trace's block, in tokens."""
    if grid % trace.block:
        raise ValueError(f"a grid of {grid} tokens is no multiple of the trace's block of {trace.block}")
    turns = trace.turns[:limit]
    return collect(((turn.blocks, turn.input) for turn in turns), grid // trace.block, grid)


def collect(requests: Iterable[tuple[Int32, int]], unit: int, grid: int) -> Visits:
    """The sections of requests given as (ids of whole blocks, prompt tokens), `unit` ids to a grid of tokens."""
    log = VisitLog(unit)
    inputs, ends, first, last, depth = (array("q") for _ in range(5))
    first.append(0)
    for ids, tokens in requests:
        end = (tokens - 1) // grid
        for visitor, down in log.visit(ids, end):
            last.append(visitor)
            depth.append(down)
        inputs.append(tokens)
        ends.append(end)
        first.append(len(last))
    return Visits(grid, *(np.array(a, np.int64) for a in (inputs, ends, first, last, depth)))
