"""Seats of running requests: the per-lane numbers that every step reads, as arrays."""

from __future__ import annotations

import numpy as np

from k3mem.errors import Corrupted
from k3mem.sched.job import Seated
from k3mem.types import Lane


class Phase:
    """What a lane does. Plain ints: arrays of them are compared at every step."""

    FREE = 0
    PREFILL = 1
    DECODE = 2
    DRAIN = 3
    """Gets no row any more; leaves when its last launched step commits."""


class Lanes:
    """Fixed number of seats. O(1) to take and leave; all arrays have one entry a lane."""

    def __init__(self, count: int) -> None:
        self.phase = np.zeros(count, np.int8)
        self.generation = np.zeros(count, np.int32)
        self.launched = np.zeros(count, np.int32)
        """Absorbed depth after all launched steps (deepest possible while a VERIFY row is in flight)."""
        self.inflight = np.zeros(count, np.int32)
        """Launched, uncommitted rows."""
        self.covered = np.zeros(count, np.int32)
        """Positions below this have a page."""
        self.touched = np.zeros(count, np.int32)
        """Pages below this index hold nothing of earlier tenants (mirror of `Seated.touched`)."""
        self.last_step = np.zeros(count, np.int64)
        """Last launched step with a row of the lane's tenant."""
        self.watched = np.zeros(count, np.bool_)
        """The tenant may end where the host cannot foresee it: stop ids, or a stop of the caller's."""
        self.watching = False
        """Whether any tenant so far was watched."""
        self.limit = np.zeros(count, np.int32)
        self.seats: list[Seated | None] = [None] * count
        self._free = list(range(count - 1, -1, -1))
        self.running = 0

    def __len__(self) -> int:
        return len(self.seats)

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def take(self) -> Lane:
        """A free lane under a new generation."""
        lane = self._free.pop()
        self.generation[lane] += 1
        self.inflight[lane] = 0
        self.running += 1
        return Lane(lane)

    def sit(self, seat: Seated, phase: int, launched: int, covered: int) -> None:
        lane = seat.lane
        self.seats[lane] = seat
        self.phase[lane] = phase
        self.launched[lane] = launched
        self.covered[lane] = covered
        self.limit[lane] = seat.job.limit
        self.last_step[lane] = 0
        request = seat.job.request
        self.watched[lane] = request.stop is not None or bool(request.sampling.stop_ids)
        self.watching |= bool(self.watched[lane])

    def leave(self, lane: Lane) -> None:
        """Free a lane; its generation dies with the tenant."""
        if self.phase[lane] == Phase.FREE and self.seats[lane] is None:
            raise Corrupted(f"lane {lane} was freed twice; report this with the engine's recent plans")
        self.seats[lane] = None
        self.phase[lane] = Phase.FREE
        self._free.append(lane)
        self.running -= 1

    def seat(self, lane: int) -> Seated:
        """The tenant of a lane that has one."""
        seat = self.seats[lane]
        if seat is None:
            raise Corrupted(f"lane {lane} has no tenant; report this with the engine's recent plans")
        return seat

    def in_phase(self, phase: int) -> list[Seated]:
        """Tenants of all lanes in a phase. O(lanes)."""
        return [self.seat(lane) for lane in np.flatnonzero(self.phase == phase).tolist()]

    def taken(self) -> list[Seated]:
        return [seat for seat in self.seats if seat is not None]

    def check(self) -> None:
        """Every invariant of the table. Raises Corrupted. O(lanes)."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise Corrupted("lanes: a lane is free twice")
        for lane, seat in enumerate(self.seats):
            if (seat is None) != (lane in free) or (seat is None) != (self.phase[lane] == Phase.FREE):
                raise Corrupted(f"lanes: lane {lane} is both free and taken, or neither")
            if self.inflight[lane] < 0 or (seat is None and self.inflight[lane]):
                raise Corrupted(f"lanes.inflight[{lane}] = {self.inflight[lane]}")
            if seat is None:
                continue
            if seat.lane != lane or seat.generation != self.generation[lane]:
                raise Corrupted(f"lanes: the tenant of lane {lane} believes to be ({seat.lane}, {seat.generation})")
            if self.phase[lane] != Phase.DRAIN and self.launched[lane] > self.covered[lane]:
                raise Corrupted(f"lanes.launched[{lane}] = {self.launched[lane]} lies beyond its pages")
        if self.running != len(self.seats) - len(free):
            raise Corrupted(f"lanes.running = {self.running}, but {len(self.seats) - len(free)} lanes are taken")
