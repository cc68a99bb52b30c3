"""What planning and committing share: the scheduler's whole state, in one place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from k3mem.executor import Capabilities, Ticket
from k3mem.metrics import Metrics
from k3mem.plan import Plan
from k3mem.policy import Policy
from k3mem.request import Output
from k3mem.sched.builder import Builder, PrefillRow, Snapshot
from k3mem.sched.cache import Cache
from k3mem.sched.flags import Flags
from k3mem.sched.job import Job, Seated
from k3mem.sched.lanes import Lanes, Rows
from k3mem.sched.pins import Pins
from k3mem.sched.queue import Queue
from k3mem.sched.sessions import Sessions
from k3mem.shape import Shape
from k3mem.spec import Draft, Drafter, Planner
from k3mem.types import Int32

if TYPE_CHECKING:
    from k3mem.sched.forward import Forward
    from k3mem.sched.speculate import Proposal


@dataclass(slots=True, eq=False)
class Flight:
    """A launched, uncommitted step, with all that its commit or its failure needs."""

    plan: Plan
    ticket: Ticket
    rows: Rows
    """Its decode and verify rows."""
    prefill: list[PrefillRow]
    snapshots: list[Snapshot]
    written: list[tuple[Int32, int]]
    """(page ids that a prefill row writes, first row written in the first of them)."""
    ends_lane: bool
    """Its commit may free a lane or make a request start decoding: something a following plan would use."""
    proposal: Proposal | None = None
    """What drafters proposed for its decode and verify rows."""
    pause: float = 0.0
    """Seconds for which nothing was in flight before its launch."""


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
    queue: Queue
    """Waiting jobs by rank."""
    drafter: Drafter | None = None
    window: int = 1
    """Largest VERIFY window (1 + drafts)."""
    planner: Planner | None = None
    """Chooses how much of what is drafted is verified; None: everything."""
    ended: float | None = None
    """When the last committed step ended, on the executor's clock; None where it does not say."""
    quiet: float | None = None
    """When the engine, on its own clock, learned that nothing is in flight; None where something is."""
    ends_drafts: Callable[[Hashable], None] | None = None
    """The drafter's `ended`, where it has one."""
    drafts_lane: Callable[[int, int, Int32, int], Int32 | Draft] | None = None
    """The drafter's `draft_lane`, where it has one."""
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
    lent: list[Seated] = field(default_factory=list)
    """Seats that followers lent their rank at the last judgement."""
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
    priorities: set[int] = field(default_factory=set)
    """All that requests had so far."""
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
    reserved: tuple[Flags, Flags] = field(default_factory=Flags.of_both)
    """By kind and id: handed out, and no launched plan has written to it yet."""
    planned: float = 0.0
    """The time of the last plan."""
    move_left: int = 0
    """Bytes that this plan may still move."""
    sessions: Sessions | None = None
    """Who is held back before the queue; None: nobody."""
    metrics: Metrics = field(init=False)
    span: int = field(init=False)
    """Positions of one page."""
    grid: int = field(init=False)
    """The shape's."""

    def __post_init__(self) -> None:
        self.metrics, self.span, self.grid = self.cache.metrics, self.shape.page_span, self.shape.grid

    def forget(self, job: Job) -> None:
        """A job has ended, or is dropped: it waits nowhere and holds no lane."""
        del self.jobs[job.request.id]
        if self.sessions is not None:
            self.sessions.left(job)
        self.undraft(job.request.id)

    def undraft(self, request_id: Hashable) -> None:
        """Tell the drafter that a request has ended. What it raises is an event: the request has ended all the same."""
        if self.ends_drafts is None:
            return
        try:
            self.ends_drafts(request_id)
        except Exception as e:  # the caller's code: anything may come
            self.cache.log.add("drafter", request_id, detail=f"ended(): {type(e).__name__}: {e}")

    @property
    def held(self) -> int:
        """Jobs held back before the queue."""
        return 0 if self.sessions is None else len(self.sessions.held)

    @property
    def now(self) -> float:
        """The time that eviction goes by, in seconds: that of the last plan, so that a plan that stands for many steps
        leaves the same ages as single ones; the clock's where nothing is in flight."""
        return self.planned if self.flights else self.clock()
