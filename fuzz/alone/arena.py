"""Random operations on an arena against its slow model, with `check()` and a comparison to the byte after each."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from k3mem.errors import Corrupted
from k3mem.fuzz.alone.arena_model import Model
from k3mem.pool import PAGE, STATE, Arena, Fit
from k3mem.types import Int32

K3 = {"page_bytes": 1_769_472, "state_bytes": 56_171_520}
GEOMETRIES: dict[str, dict[str, Any]] = {
    "k3": {"capacity_bytes": 12 * 56_171_520 + 77 * 9216, "scratch_bytes": 9216, **K3},
    "state_is_20_pages": {"capacity_bytes": 3 + 121, "page_bytes": 1, "state_bytes": 20, "align": 8},
    "non_multiples": {"capacity_bytes": 997, "page_bytes": 7, "state_bytes": 31, "scratch_bytes": 13, "align": 16},
    "page_larger_than_state": {"capacity_bytes": 400, "page_bytes": 24, "state_bytes": 5, "align": 1},
    "equal": {"capacity_bytes": 300, "page_bytes": 10, "state_bytes": 10, "align": 1},
    "smallest": {"capacity_bytes": 16, "page_bytes": 3, "state_bytes": 5, "align": 1},
    "split": {"capacity_bytes": 600, "page_bytes": 7, "state_bytes": 31, "align": 16, "split": 0.6},
}
WEIGHTS = {"alloc": 8, "free": 7, "ref": 2, "lease": 1, "unlease": 3, "make_room": 5, "compact": 1, "cancel": 2,
           "settle": 3, "drain": 1, "breach": 1, "lease_twice": 1, "strand": 1, "free_leased": 1}  # fmt: skip


def refused(call: Callable[[], object]) -> bool:
    """Whether the arena says that its caller is wrong."""
    try:
        call()
    except Corrupted:
        return True
    return False


class Actor:
    """One seeded run; an operation is a method named in WEIGHTS. `seen` says which outcomes the run reached."""

    def __init__(self, seed: int, geometry: dict[str, Any]) -> None:
        self.rng = random.Random(seed)
        self.arena = Arena(**geometry)
        self.model = Model(self.arena, round(100 * geometry["split"]) if "split" in geometry else None)
        self.seen: set[str] = set()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])()
            self.model.compare()
            self.room_is_what_the_other_kind_leaves()

    def demand(self) -> tuple[int, int]:
        return self.rng.choice([0, 0, 1, 2, 5, 20]), self.rng.choice([0, 0, 0, 1, 1, 3])

    def budget(self) -> int:
        return self.rng.choice([0, 1, self.arena.page_bytes, 3 * self.arena.state_bytes, 2**60])

    def some(self, kind: int, most: int) -> list[int]:
        ids = sorted(self.model.refs[kind])
        return self.rng.sample(ids, min(len(ids), self.rng.randint(0, most)))

    def alloc(self) -> None:
        n = self.demand()
        fit = self.model.fits(n)
        assert self.arena.fits(*n) == fit
        got = self.arena.alloc(*n)
        self.seen.add(f"alloc {fit.name}")
        assert (got is not None) == (fit == Fit.NOW)
        for kind, ids in enumerate(got or ()):
            assert len(ids) == n[kind]
            self.model.allocated(kind, ids.tolist())

    def free(self) -> None:
        kind = self.rng.randint(0, 1)
        after = self.model.settled + self.rng.choice([-1, 0, 0, 0, 1, 2])
        ids = [i for i in self.some(kind, (20, 4)[kind]) if i not in self.model.leases[kind]]
        ids += [i for i in ids if self.model.refs[kind][i] > 1 and self.rng.random() < 0.5]
        free = (self.arena.free_pages, self.arena.free_states)[kind]
        assert sorted(free(ids, after=after)) == sorted(self.model.freed(kind, ids, after))

    def ref(self) -> None:
        for i in self.some(PAGE, 2):
            self.arena.ref(i)
            self.model.refs[PAGE][i] += 1

    def lease(self) -> None:
        kind = self.rng.randint(0, 1)
        for i in self.some(kind, 2):
            self.arena.lease(kind, i)
            self.model.leases[kind][i] = self.model.leases[kind].get(i, 0) + 1

    def unlease(self) -> None:
        for kind in (PAGE, STATE):
            for i in [i for i in self.model.leases[kind] if self.rng.random() < 0.6]:
                self.arena.unlease(kind, i)
                self.model.leases[kind][i] -= 1
                if not self.model.leases[kind][i]:
                    del self.model.leases[kind][i]

    def make_room(self) -> None:
        n, budget = self.demand(), self.budget()
        fit = self.model.fits(n)
        moves = self.arena.make_room(*n, budget)
        assert (len(moves) > 0) == (fit == Fit.MOVES)
        self.follow(moves, budget)
        if fit == Fit.MOVES:
            self.seen.add("made room")
            assert len(set(moves[:, 1].tolist())) == 1, "one kind gives way"
            assert self.model.fits(n) in ((Fit.NOW,) if budget == 2**60 else (Fit.NOW, Fit.MOVES))
            self.needed(moves, n)

    def needed(self, moves: Int32, n: tuple[int, int]) -> None:
        """Without the last move the demand would not fit."""
        self.arena.undo(moves[-1:])
        assert self.arena.fits(*n) == Fit.MOVES
        again = self.arena.make_room(*n, 1)
        assert again.tolist() == moves[-1:].tolist()

    def compact(self) -> None:
        budget = self.budget()
        moves = self.arena.compact(budget)
        self.follow(moves, budget)
        if budget == 2**60:
            for kind in (PAGE, STATE):
                assert self.model.frontier(kind) == max(
                    len(self.model.used(kind)), max(self.model.stuck(kind), default=-1) + 1
                )

    def follow(self, moves: Int32, budget: int) -> None:
        moved = sum(self.model.bytes[kind] for kind in moves[:, 1].tolist())
        assert moved <= budget or len(moves) == 1
        self.model.moved(moves)

    def cancel(self) -> None:
        """A plan of moves and allocations that is taken back: everything is where it was."""
        table, before = self.arena.tables(), self.arena.usage()
        counted = self.arena.moves_count, self.arena.moved_bytes
        moves = self.arena.compact(2**60) if self.rng.random() < 0.5 else self.arena.make_room(*self.demand(), 2**60)
        self.seen.add("cancelled moves" if len(moves) else "cancelled nothing")
        got = self.arena.alloc(*self.demand())
        if got:
            self.arena.free_states(got[1])
            self.arena.free_pages(got[0])
        self.arena.undo(moves)
        assert self.arena.usage() == before
        assert (self.arena.moves_count, self.arena.moved_bytes) == counted
        assert all((now == then).all() for now, then in zip(self.arena.tables(), table, strict=True))
        for kind, _, place in [(m[1], m[2], m[2]) for m in moves.tolist()]:
            self.model.changed[kind].add(next(i for i, p in self.model.place[kind].items() if p == place))

    def settle(self) -> None:
        step = self.model.settled + self.rng.choice([-1, 0, 1, 1, 2])
        if any(self.model.pending):
            self.seen.add("settled")
        self.arena.settle(step)
        self.model.settle(step)

    def drain(self) -> None:
        changed = [set(ids) for ids in self.model.changed]
        self.model.compare_drain()
        if self.rng.random() < 0.5:
            self.arena.redirty(sorted(changed[PAGE]), sorted(changed[STATE]))
            for ids, again in zip(self.model.changed, changed, strict=True):
                ids.update(again)

    def breach(self) -> None:
        """What no caller may do changes nothing."""
        kind = self.rng.randint(0, 1)
        free = (self.arena.free_pages, self.arena.free_states)[kind]
        bad = self.rng.choice([0, -1, 2**31 - 1, *self.model.leases[kind], *range(1, 5)])
        refs = self.model.refs[kind].get(bad, 0)
        if bad in self.model.leases[kind] or not refs:
            wrong = [*self.some(kind, 3), *[bad] * (refs + 1)]
            assert refused(lambda: free(wrong))
        if not refs:
            assert refused(lambda: self.arena.lease(kind, bad))
        if bad not in self.model.leases[kind]:
            assert refused(lambda: self.arena.unlease(kind, bad))

    def lease_twice(self) -> None:
        """Two users of one entry; one ends."""
        for kind in (PAGE, STATE):
            for i in self.some(kind, 1):
                self.arena.lease(kind, i)
                self.arena.lease(kind, i)
                self.arena.unlease(kind, i)
                self.model.leases[kind][i] = self.model.leases[kind].get(i, 0) + 1

    def strand(self) -> None:
        """A leased entry beyond holes: they cannot be closed."""
        kind, n = self.rng.choice((PAGE, STATE)), self.rng.randint(2, 5)
        got = self.arena.alloc(*((n, 0) if kind == PAGE else (0, n)))
        if got is None:
            return
        ids = got[kind].tolist()
        self.model.allocated(kind, ids)
        last = max(ids, key=lambda i: self.model.place[kind][i])
        self.arena.lease(kind, last)
        self.model.leases[kind][last] = 1
        rest = [i for i in ids if i != last]
        free = (self.arena.free_pages, self.arena.free_states)[kind]
        assert sorted(free(rest)) == sorted(self.model.freed(kind, rest, 0))

    def free_leased(self) -> None:
        """The last reference to a leased entry cannot go, nor does anything given beside it."""
        for kind, free in ((PAGE, self.arena.free_pages), (STATE, self.arena.free_states)):
            others = [i for i in self.model.refs[kind] if i not in self.model.leases[kind]][:1]
            for i in list(self.model.leases[kind]):
                wrong = [*others, *[i] * self.model.refs[kind][i]]
                assert refused(partial(free, wrong))

    def room_is_what_the_other_kind_leaves(self) -> None:
        model, arena = self.model, self.arena
        for kind, room in ((PAGE, arena.room_pages), (STATE, arena.room_states)):
            peer, size = 1 - kind, model.bytes[kind]
            low = max(len(model.used(peer)), max(model.stuck(peer), default=-1) + 1)
            for moves, frontier in ((False, model.frontier(peer)), (True, low)):
                places = min((arena.state_top - frontier * model.bytes[peer]) // size, model.limits[kind] // size)
                assert room(moves) == places - len(model.used(kind))
