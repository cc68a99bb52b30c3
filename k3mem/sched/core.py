"""What planning and committing share: the scheduler's whole state, in one place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from sortedcontainers import SortedKeyList

from k3mem.executor import Capabilities, Ticket
from k3mem.metrics import Metrics
from k3mem.plan import PAGE, STATE, Plan
from k3mem.policy import Policy
from k3mem.request import Output
from k3mem.sched.builder import Builder, PrefillRow, Snapshot
from k3mem.sched.cache import Cache
from k3mem.sched.job import Job, Rank, Seated
from k3mem.sched.lanes import Lanes
from k3mem.sched.pins import Pins
from k3mem.shape import Shape
from k3mem.types import Int32

if TYPE_CHECKING:
    from k3mem.sched.forward import Forward


class Drafter(Protocol):
    """Proposes tokens for a request from its committed tokens (a host drafter)."""

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        """Up to `limit` guesses, ids of the vocabulary, for what follows `tokens` (a read-only view; ids from the
        vocabulary's size on stand for media). An empty array is fine. What this raises comes out of `plan()`."""
        ...


@dataclass(slots=True, eq=False)
class Flight:
    """A launched, uncommitted step, with all that its commit or its failure needs."""

    plan: Plan
    ticket: Ticket
    decode_lanes: Int32
    windows: Int32
    prefill: list[PrefillRow]
    snapshots: list[Snapshot]
    written: list[tuple[Int32, int]]
    """(page ids that a prefill row writes, first row written in the first of them)."""
    ends_lane: bool
    """Its commit may free a lane or make a request start decoding: something a following plan would use."""


@dataclass(slots=True, eq=False)
class Core:
    """One engine's scheduling state. Plain data: the verbs live in `admit`, `prefill`, `decode`, `commit`, ..."""

    shape: Shape
    policy: Policy
    cache: Cache
    lanes: Lanes
    capabilities: Capabilities
    clock: Callable[[], float]
    pins: Pins
    drafter: Drafter | None = None
    window: int = 1
    """Largest VERIFY window (1 + drafts)."""
    queue: SortedKeyList = field(default_factory=lambda: SortedKeyList(key=_rank))
    """Waiting jobs by rank."""
    jobs: dict[Hashable, Job] = field(default_factory=dict)
    """All jobs that wait or hold a lane, by request id."""
    ending: set[int] = field(default_factory=set)
    """Lanes that drain."""
    serial: int = 0
    """Number of the next submission."""
    admissions: int = 0
    """Number of the next first admission."""
    wanting: Job | None = None
    """The job at which the last plan's admission stopped, if running requests of lower priority are in its way and
    nobody has left since: the next plan starts by retracting one."""
    step: int = 0
    """Number of the newest launched step."""
    flights: deque[Flight] = field(default_factory=deque)
    open: Builder | None = None
    """The plan that was made and neither launched nor cancelled."""
    deltas: list[tuple[Seated, int, Int32]] = field(default_factory=list)
    """Runs of page lists (seat, first index, pages) that the device does not know yet."""
    outputs: list[Output] = field(default_factory=list)
    """Ends that no commit reports: aborted and expired requests."""
    resync: bool = False
    failures: int = 0
    """Failed steps since the last commit."""
    waits_for: str = "nothing"
    """Why the last call of plan() returned None."""
    timed: bool = False
    """Whether any request had a deadline."""
    stalls: int = 0
    """Empty plans in a row while requests wait and nothing is in flight."""
    blocked: bool = False
    """The last plan's admission stopped at a job that did not fit, or found no lane, and nobody waited as a follower:
    another try changes nothing before some lane ends."""
    forward: Forward | None = None
    """The executor's fast-forward, where it has one."""
    until: float = math.inf
    """Plans may stand for steps planned before this moment: the next arrival that the caller knows of."""
    move_left: int = 0
    """Bytes that this plan may still move."""
    slotted: set[int] = field(default_factory=set)
    """Lanes whose seats hold targets that followers wait for."""

    @property
    def metrics(self) -> Metrics:
        return self.cache.metrics

    @property
    def span(self) -> int:
        """Positions of one page."""
        return self.shape.page_span

    def moves(self, b: Builder, moves: Int32) -> None:
        """Put one batch of moves into the plan and journal it. Entries to which nothing has been written yet only
        change their place."""
        if not len(moves):
            return
        arena = self.cache.arena
        b.journal.append(lambda: arena.undo(_still_there(self, moves)))
        stale = np.zeros(len(moves), np.bool_)
        for kind in (PAGE, STATE):
            of_kind = moves[:, 1] == kind
            ids = arena.ids_at(kind, moves[of_kind, 3])
            stale[of_kind] = b.is_fresh(kind, ids) | np.isin(ids, _unwritten(self, kind))
        real = moves[~stale]
        b.move(real)
        total = int(np.where(real[:, 1] == PAGE, self.shape.page_bytes, self.shape.state_bytes).sum())
        self.move_left -= total
        self.metrics.move_count += len(real)
        self.metrics.move_bytes += total
        self.metrics.events["move"] += len(real)


def drop_dead_moves(core: Core, b: Builder) -> None:
    """Take out of the plan the moves of entries that this plan evicted afterwards, whoever has their places now.
    O(moves)."""
    dead: set[tuple[int, int]] = set()
    """(kind, place) whose content, as it stands before the batches looked at already, nobody needs."""
    known: set[tuple[int, int]] = set()
    for i in range(len(b.moves) - 1, -1, -1):
        batch, keep = b.moves[i], np.ones(len(b.moves[i]), np.bool_)
        for kind in (PAGE, STATE):
            of_kind = np.flatnonzero(batch[:, 1] == kind)
            ids = core.cache.arena.ids_at(kind, batch[of_kind, 3])
            gone = (ids < 0) | b.is_fresh(kind, ids)
            for j, now_gone in zip(of_kind.tolist(), gone.tolist(), strict=True):
                source, destination = (kind, int(batch[j, 2])), (kind, int(batch[j, 3]))
                keep[j] = not (destination in dead if destination in known else now_gone)
                known |= {source, destination}
                dead.add(destination)
                (dead.discard if keep[j] else dead.add)(source)
        b.moves[i] = batch[keep]


def _unwritten(core: Core, kind: int) -> Int32:
    """Ids taken by earlier plans, to which no launched plan writes: reserved pages, targets held for followers."""
    seats = core.lanes.taken()
    if kind == STATE:
        return np.array([state for seat in seats for state in seat.slots.values()], np.int32)
    return np.concatenate([np.zeros(0, np.int32), *(s.pages[s.touched : s.page_count] for s in seats)])


def _still_there(core: Core, moves: Int32) -> Int32:
    """Moves whose entry is still at its destination: what was evicted meanwhile needs no way back."""
    alive = np.zeros(len(moves), np.bool_)
    for kind in (PAGE, STATE):
        of_kind = moves[:, 1] == kind
        alive[of_kind] = core.cache.arena.ids_at(kind, moves[of_kind, 3]) >= 0
    return moves[alive]


def _rank(job: Job) -> Rank:
    return job.rank
