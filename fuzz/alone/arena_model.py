"""Slow models of the arena: a byte map of who owns what, and a memory that moves as an executor would move it."""

from __future__ import annotations

import math

import numpy as np

from k3mem.pool import PAGE, STATE, Arena, Fit

SINK, HOLE, PENDING, GAP, TOP = -1, -2, -3, -4, -5


class Model:
    """What an arena should hold, as dicts and sets, and its bytes as one array cell per `unit` bytes."""

    def __init__(self, arena: Arena, split_percent: int | None = None) -> None:
        self.arena = arena
        top = arena.state_top
        states = top if split_percent is None else top * split_percent // 100
        self.limits = (top if split_percent is None else top - states, states)
        self.bytes = (arena.page_bytes, arena.state_bytes)
        self.unit = math.gcd(arena.page_bytes, arena.state_bytes, arena.state_top, arena.capacity_bytes)
        self.place: tuple[dict[int, int], dict[int, int]] = ({0: 0}, {0: 0})
        self.refs: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.leases: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.pending: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.changed: tuple[set[int], set[int]] = (set(), set())
        self.settled = 0
        self.memory = np.zeros(arena.capacity_bytes // self.unit, np.int64)
        self.serial = 0
        self.tag: dict[tuple[int, int], int] = {}

    # -- regions, in units

    def region(self, kind: int, place: int) -> slice:
        size = self.bytes[kind]
        low = place * size if kind == PAGE else self.arena.state_top - (place + 1) * size
        assert low >= 0 and low + size <= self.arena.state_top
        return slice(low // self.unit, (low + size) // self.unit)

    def used(self, kind: int) -> set[int]:
        return set(self.place[kind].values()) | set(self.pending[kind])

    def frontier(self, kind: int) -> int:
        return max(self.used(kind)) + 1

    def holes(self, kind: int) -> list[int]:
        return sorted(set(range(self.frontier(kind))) - self.used(kind))

    def stuck(self, kind: int) -> set[int]:
        return set(self.pending[kind]) | {self.place[kind][i] for i in self.leases[kind]}

    def paint(self) -> np.ndarray:
        """One label per unit; raises AssertionError where two owners overlap."""
        cells = np.full(len(self.memory), GAP, np.int64)
        cells[self.arena.state_top // self.unit :] = TOP
        for kind in (PAGE, STATE):
            labels = {p: SINK if i == 0 else 1 for i, p in self.place[kind].items()}
            labels |= dict.fromkeys(self.pending[kind], PENDING) | dict.fromkeys(self.holes(kind), HOLE)
            for place, label in labels.items():
                at = self.region(kind, place)
                assert (cells[at] == GAP).all(), "two owners of one byte"
                cells[at] = label
        return cells

    # -- what fits, by trial

    def _overlap(self, frontiers: list[int]) -> bool:
        sizes = [f * b for f, b in zip(frontiers, self.bytes, strict=True)]
        return sum(sizes) > self.arena.state_top or any(s > most for s, most in zip(sizes, self.limits, strict=True))

    def _frontier_with(self, kind: int, n: int, move: bool) -> int:
        used, stuck = self.used(kind), self.stuck(kind)
        while move:
            last, hole = max(used), next(p for p in range(len(used) + 1) if p not in used)
            if last in stuck or last < hole or last == 0:
                break
            used = used - {last} | {hole}
        for _ in range(n):
            used = used | {next(p for p in range(len(used) + 1) if p not in used)}
        return max(used) + 1

    def fits(self, n: tuple[int, int]) -> Fit:
        for move, fit in ((False, Fit.NOW), (True, Fit.MOVES)):
            if not self._overlap([self._frontier_with(k, n[k], move) for k in (PAGE, STATE)]):
                return fit
        return Fit.NO

    # -- the arena did something

    def allocated(self, kind: int, ids: list[int]) -> None:
        places = (self.arena.page_places, self.arena.state_places)[kind](ids).tolist()
        for i, p in zip(ids, places, strict=True):
            assert i not in self.place[kind] and p not in self.used(kind)
            holes = self.holes(kind)
            assert p == (holes[0] if holes else self.frontier(kind)), "not the lowest place"
            self.place[kind][i] = p
            self.refs[kind][i] = 1
            self.changed[kind].add(i)
            self.serial += 1
            self.tag[kind, i] = self.serial
            self.memory[self.region(kind, p)] = self.serial

    def freed(self, kind: int, ids: list[int], after: int) -> list[int]:
        gone = []
        for i in ids:
            self.refs[kind][i] -= 1
            if self.refs[kind][i]:
                continue
            gone.append(i)
            del self.refs[kind][i], self.tag[kind, i]
            self.changed[kind].discard(i)
            place = self.place[kind].pop(i)
            if after > self.settled:
                self.pending[kind][place] = after
        return gone

    def settle(self, step: int) -> None:
        self.settled = max(step, self.settled)
        for pending in self.pending:
            for p in [p for p, after in pending.items() if after <= self.settled]:
                del pending[p]

    def moved(self, moves: np.ndarray) -> None:
        """Carry moves out on the memory as one batch, in any order, and follow them in the tables."""
        seen = np.zeros(len(self.memory), bool)
        for batch, kind, source, destination in moves.tolist():
            assert batch == 0
            for place in (source, destination):
                at = self.region(kind, place)
                assert not seen[at].any(), "byte ranges of one batch overlap"
                seen[at] = True
            assert source not in self.stuck(kind), "a leased or pending place moved"
            assert destination not in self.used(kind)
            self._carry(kind, source, destination)

    def undone(self, moves: np.ndarray) -> None:
        for _, kind, source, destination in moves.tolist()[::-1]:
            self._carry(kind, destination, source)

    def _carry(self, kind: int, source: int, destination: int) -> None:
        (entry,) = (i for i, p in self.place[kind].items() if p == source)
        assert entry != 0, "a sink moved"
        self.place[kind][entry] = destination
        self.changed[kind].add(entry)
        self.memory[self.region(kind, destination)] = self.memory[self.region(kind, source)]
        self.memory[self.region(kind, source)] = -1

    # -- does the arena agree?

    def compare(self) -> None:
        self.arena.check()
        u, cells = self.arena.usage(), self.paint()
        count = {label: int((cells == label).sum()) * self.unit for label in (SINK, 1, HOLE, PENDING, GAP, TOP)}
        assert u.fixed + u.pad == count[SINK] + count[TOP]
        assert (u.live, u.holes, u.pending, u.gap) == (count[1], count[HOLE], count[PENDING], count[GAP])
        assert u.fixed + u.live + u.holes + u.pending + u.gap + u.pad == self.arena.capacity_bytes
        assert (u.live_pages, u.live_states) == tuple(len(p) - 1 for p in self.place)
        assert (u.hole_pages, u.hole_states) == tuple(len(self.holes(k)) for k in (PAGE, STATE))
        assert (u.frontier_pages, u.frontier_states) == (self.frontier(PAGE), self.frontier(STATE))
        for kind, table in enumerate(self.arena.tables()):
            assert dict(table.tolist()) == self.place[kind]
        for kind, i in self.tag:
            assert (self.memory[self.region(kind, self.place[kind][i])] == self.tag[kind, i]).all(), "bytes were lost"
        assert all(self.arena.refs(i) == n for i, n in self.refs[PAGE].items())

    def compare_drain(self) -> None:
        for kind, table in enumerate(self.arena.drain()):
            assert len(table) == len(self.changed[kind])
            assert dict(table.tolist()) == {i: self.place[kind][i] for i in self.changed[kind]}
            self.changed[kind].clear()
