"""Session admission: who may bring a working set into the arena.

The caches of more sessions than fit evict each other's prefixes, and each session then computes its own again at every
turn. So a *family* (a session and the sub-agents under it) is either *in*, and its requests pass to the scheduler's
queue, or it is out, and they are *held*:

    submit --> in? ---------------------------------> queue --> lane --> end
                |                                       ^                 |
                +--> held: oldest of the best priority -+                 +--> all ended, or quiet too long: out
                        fits | outranks | bound | nothing else to do

A family is in while a request of it waits or runs, and then until its sessions have ended or have paused longer than
most pauses last (a learned quantile). A held request holds nothing and is in no other queue. A whole family goes in at
once, so parent and child never wait for each other here.

Somebody who has waited for `bound` seconds goes in whether it fits or not; so does one of higher priority, where that
makes it fit. In turn families that have been in longest are *suspended*: they go out at their next quiet moment and
queue up like everybody. Where nothing runs and nothing waits, the first of those held goes in: the server never idles
for the sake of a cache.

Time is read at plans and submissions only, so that plans that stand for many steps see the same times as single ones.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

from sortedcontainers import SortedKeyList

from k3mem.policy import SessionAdmission
from k3mem.sched.family import STATES, Family, Line
from k3mem.sched.job import Job, Rank
from k3mem.sched.learn import Pauses, Pressure

MOST_GONE = 1 << 14
"""Families that are out whose last moment is remembered; the first that went are forgotten first."""
MOST_WAITS = 1 << 16
"""Waits of held requests that are kept for statistics, the newest."""
LEARN = 1 / 64
"""Weight of a new sample in a running mean."""


class Sessions:
    """Which families are in, and whose requests are held. Of a family that is out only its last moment is kept.

    `fits(pages, states)` says whether an empty arena would hold so much; `cached(job)` how many leading tokens of a
    new session's first prompt are cached already. Times in seconds, never falling. O(log held) a call unless said.
    """

    def __init__(self, policy: SessionAdmission, span: int, fits: Callable[[int, int], bool],
                 cached: Callable[[Job], int]) -> None:
        self.policy = policy
        self.span = span
        self.held: SortedKeyList = SortedKeyList(key=_rank)
        """Held jobs, best rank first: by priority, then in order of arrival."""
        self.waits: deque[float] = deque(maxlen=MOST_WAITS)
        """Seconds that requests were held which did not go in at once; the newest."""
        self.longest = 0.0
        self.counts = {"held": 0, "overdue": 0, "suspended": 0}
        """Requests that were held; of those, that went in because of the bound; families suspended."""
        self.pages = self.states = 0
        """Sum of the working sets of families that are in."""
        self.holding = not policy.auto
        self._fits, self._cached = fits, cached
        self._in: dict[Hashable, Family] = {}
        self._quiet: OrderedDict[Hashable, float] = OrderedDict()
        """Families in without a request inside, by the time of their last."""
        self._gone: OrderedDict[Hashable, float] = OrderedDict()
        """Families out, by the time they went; when their last request ended, inf once they are back."""
        self._roots: dict[Hashable, Hashable] = {}
        """Session -> key of its family, of families that are in."""
        self._inside: dict[Job, Family] = {}
        """Jobs with a session that wait in the scheduler's queue or run."""
        self._back: set[Job] = set()
        """Those of them without a lane so far whose session was in before."""
        self._arrived: OrderedDict[Job, float] = OrderedDict()
        """Held jobs in order of arrival."""
        self._over: set[Hashable] = set()
        """Sessions of held jobs that have ended: those jobs are their last."""
        self._settling: list[tuple[Family, Line]] = []
        """Lines that lost their last job since the last plan or submission."""
        self._refused: Job | None = None
        """The first of those held, if it was judged and nothing has changed since."""
        self._joined = False
        """A session went in since the last release: one that is held may be under it."""
        self._now = self._planned = -math.inf
        """Time of the last plan or submission, and of the last plan."""
        self._pauses = Pauses()
        self._pressure = Pressure()
        self._growth = 0.0
        """Tokens that a session's prompts grow by from one to the next, running mean."""
        self._stay = 1.0
        """Requests of a family from going in to going out, running mean."""

    # -- what a scheduler tells

    def arrive(self, job: Job, now: float, busy: bool = False) -> bool:
        """A request was submitted: True if it goes to the queue, else it is held, at least until the next `release`.
        `busy`: others wait, or their prompts run."""
        if job.request.session is None:
            return True
        self._settle(now)
        self._over.discard(job.request.session)
        self._pressure.arrived(busy)
        key = self._key(job)
        since = self._quiet.get(key, self._gone.get(key, math.inf))
        if since < math.inf:
            self._pauses.add(max(0.0, now - since))
        self._expire(now)
        key = self._key(job)  # a family that has just gone out may have been its parent's
        family = self._in.get(key)
        if family is not None:
            self._enter(job, family, now)
            return True
        if key in self._gone:
            self._gone[key] = math.inf
        self.held.add(job)
        self._arrived[job] = now
        return False

    def release(self, now: float, idle: bool) -> list[Job]:
        """Jobs that are held no longer and go to the queue; asked at each plan. `idle`: nothing waits or runs. O(1)
        where nothing has changed; O(held + families in) where somebody goes in."""
        self._settle(now)
        self._planned = now
        if not self._arrived:
            self._joined = False
            self.holding = not self.policy.auto or self._pressure.high
            return []
        self._expire(now)
        out = self._relatives(now)
        while self.held and self._may(self.held[0]):
            out += self._let_in(self.held[0], now)
        while self._arrived and now >= next(iter(self._arrived.values())) + self.policy.bound:
            job = next(iter(self._arrived))
            self.counts["overdue"] += 1
            self._make_way(job, overdue=True)
            out += self._let_in(job, now)
        if idle and not out:
            out += self._let_in(self.held[0], now)
        out += self._relatives(now)
        if not self._arrived and self.policy.auto and self.holding:
            self.holding = False
            self._pressure = Pressure()
        return out

    def remove(self, job: Job) -> bool:
        """A job ended; whether it was held."""
        if self._arrived.pop(job, None) is None:
            return False
        self.held.remove(job)
        self._forget_over(job.request.session)
        return True

    def left(self, job: Job) -> None:
        """A job left queue and lanes for good."""
        family = self._inside.pop(job, None)
        self._back.discard(job)
        if family is None:
            return
        line = family.lines[job.request.session]
        line.jobs -= 1
        family.jobs -= 1
        self._resize(line, job.count if not line.jobs else max(job.count, line.tokens))
        if not line.jobs:
            self._settling.append((family, line))

    def computed(self, job: Job) -> None:
        """A job was given its first lane; its hit is known."""
        if job in self._back and job.hit is not None:
            self._back.discard(job)
            lost = job.hit.causes.get("kv_evicted", 0) + job.hit.causes.get("no_state", 0)
            self._pressure.computed(job.hit.input - job.hit.hit, lost)

    def end(self, session: Hashable) -> None:
        """A session has ended, as far as its caller knows: what it has sent is its last. If it sends another request,
        it has not. O(held)."""
        self._gone.pop(session, None)
        self._over.add(session)
        self._forget_over(session)
        family = self._in.get(self._roots.get(session, session))
        if family is not None and session in family.lines:
            family.lines[session].over = True
            self._forget_ended(family)

    def clear(self) -> None:
        """All requests were dropped."""
        self.held.clear()
        self._arrived.clear()
        self._over.clear()
        self._inside.clear()
        self._back.clear()
        self._settling.clear()
        for family in list(self._in.values()):
            self._out(family, math.inf)

    def changed(self) -> None:
        """The arena has another size: judge again."""
        self._refused = None

    @property
    def next_change(self) -> float:
        """Before this moment `release` lets nobody in, unless a request comes or ends, or nothing runs."""
        if not self._arrived:
            return math.inf
        first = next(iter(self._quiet.values()), math.inf) + self.idle_limit
        return min(first, next(iter(self._arrived.values())) + self.policy.bound)

    @property
    def idle_limit(self) -> float:
        """Pause in seconds after which a family is out."""
        return self._pauses.quantile(self.policy.idle_quantile, self.policy.idle)

    def stats(self) -> dict[str, Any]:
        """Gauges and counters as plain data."""
        return {**self.counts, "longest_wait": self.longest, "bound": self.policy.bound, "waiting": len(self.held),
                "active": len(self._in), "idle_limit": self.idle_limit, "pages": self.pages, "states": self.states,
                "holding": self.holding}

    # -- who goes in

    def _may(self, job: Job) -> bool:
        """Whether the first of those held goes in now. O(families in) where it does not fit."""
        if not self.holding or not self._in:
            return True
        if job is self._refused:
            return False
        pages, states = self._need(job)
        if self._room(self.pages + pages, self.states + states) or self._make_way(job, overdue=False):
            return True
        self._refused = job
        return False

    def _room(self, pages: int, states: int) -> bool:
        share = self.policy.share
        return self._fits(math.ceil(pages / share), math.ceil(states / share))

    def _need(self, job: Job) -> tuple[int, int]:
        """Pages and states that a held job's session would bring."""
        return self._size(job.count, self._shared(job)), STATES

    def _shared(self, job: Job) -> int:
        """Leading tokens of a session's first prompt that are others' bytes."""
        return 0 if self._key(job) in self._gone else self._cached(job)

    def _size(self, tokens: int, shared: int) -> int:
        """Pages of a session that stands at `tokens`: with half of the growth expected from a family's going in to its
        going out, since those in at any moment are half-way on average."""
        end = tokens + int(self._growth * self._stay / 2)
        return max(0, -(-end // self.span) - shared // self.span)

    def _make_way(self, job: Job, overdue: bool) -> bool:
        """Suspend families until a job fits: those of lower priority; for one that is `overdue` also its equals, those
        that have been in longest first. Whether any were: nobody is, where it would not help one that is not overdue.
        O(families in log)."""
        rank = job.request.priority
        pages, states = self._need(job)
        staying = [f for f in self._in.values() if not f.suspended]
        pages += sum(f.pages for f in staying)
        states += sum(f.states for f in staying)
        victims: list[Family] = []
        for family in sorted(staying, key=lambda f: (f.priority, f.since)):
            if self._room(pages, states) or family.priority > rank or (family.priority == rank and not overdue):
                break
            victims.append(family)
            pages -= family.pages
            states -= family.states
        if not victims or not (overdue or self._room(pages, states)):
            return False
        for family in victims:
            self.counts["suspended"] += 1
            family.suspended = True
            if not family.jobs:
                self._out(family, self._quiet.get(family.key, self._now))
        return True

    def _let_in(self, first: Job, now: float) -> list[Job]:
        """A held job and all others of its family, in order of rank."""
        key = self._key(first)
        jobs = [job for job in self.held if self._key(job) == key]
        shared = {job: self._shared(job) for job in jobs}
        self._gone.pop(key, None)
        family = self._in.get(key)
        if family is None:
            family = self._in[key] = Family(key, now, first.request.priority)
        for job in jobs:
            self.held.remove(job)
            wait = now - self._arrived.pop(job)
            if wait > 0:
                self.counts["held"] += 1
                self.waits.append(wait)
                self.longest = max(self.longest, wait)
            self._enter(job, family, now, shared[job])
        for job in jobs:
            self._forget_over(job.request.session)
        return jobs

    def _relatives(self, now: float) -> list[Job]:
        """Held jobs that turned out to be under a session that has gone in. O(held) for each time that one has."""
        out: list[Job] = []
        while self._joined:
            self._joined = False
            near = [job for job in self.held if self._key(job) in self._in]
            while near:
                out += self._let_in(near[0], now)
                near = [job for job in near if job in self._arrived]
        return out

    def _enter(self, job: Job, family: Family, now: float, shared: int | None = None) -> None:
        """A job of a family that is in goes to the queue."""
        session = job.request.session
        line = family.lines.get(session)
        if line is None:
            line = family.lines[session] = Line(self._shared(job) if shared is None else shared)
            self.states += STATES
            self._roots[session] = family.key
            self._joined = True
        else:
            self._growth += LEARN * (max(0, job.count - line.prompt) - self._growth)
            self._back.add(job)
        line.prompt = job.count
        self._resize(line, job.count if not line.jobs else max(job.count, line.tokens))
        line.jobs += 1
        line.last = now
        line.over = session in self._over
        family.jobs += 1
        family.turns += 1
        family.priority = job.request.priority
        self._inside[job] = family
        self._quiet.pop(family.key, None)
        self._refused = None
        if len(family.lines) > 1:
            limit = now - self.idle_limit
            for name in [s for s, other in family.lines.items() if not other.jobs and other.last <= limit]:
                self._drop(family, name)

    # -- who goes out

    def _settle(self, now: float) -> None:
        """Families whose last request ended before now: out if suspended or over, else quiet from now on."""
        self._now = now
        for family, line in self._settling:
            line.last = now
            if self._in.get(family.key) is not family:
                continue
            self._forget_ended(family)
            if not family.jobs and family.lines:
                if family.suspended:
                    self._out(family, now)
                else:
                    self._quiet[family.key] = now
                    self._quiet.move_to_end(family.key)
        self._settling.clear()

    def _expire(self, now: float) -> None:
        """Quiet families go out when their pause has become too long. O(1) amortised."""
        limit = self.idle_limit
        while self._quiet:
            key, since = next(iter(self._quiet.items()))
            if now < since + limit:
                return
            self._out(self._in[key], since)

    def _forget_over(self, session: Hashable) -> None:
        """Whether a session has ended is known of its line, once none of its jobs is held. O(held) for one that has."""
        if session in self._over and all(job.request.session != session for job in self._arrived):
            self._over.remove(session)

    def _forget_ended(self, family: Family) -> None:
        """Drop sessions that have ended; a family without any goes out."""
        for session in [s for s, line in family.lines.items() if line.over and not line.jobs]:
            self._drop(family, session)
        if not family.lines:
            self._out(family, math.inf)

    def _out(self, family: Family, since: float) -> None:
        """A family goes out. `since`: when its last request ended; inf where nobody is expected back."""
        key = family.key
        for session in list(family.lines):
            self._drop(family, session)
        del self._in[key]
        self._quiet.pop(key, None)
        self._refused = None
        self._stay += LEARN * (family.turns - self._stay)
        if since < math.inf:
            self._gone[key] = since
            self._gone.move_to_end(key)
            if len(self._gone) > MOST_GONE:
                self._gone.popitem(last=False)

    def _drop(self, family: Family, session: Hashable) -> None:
        """Forget a session of a family that is in."""
        self.pages -= family.lines.pop(session).pages
        self.states -= STATES
        self._roots.pop(session)
        self._refused = None

    def _resize(self, line: Line, tokens: int) -> None:
        pages = self._size(tokens, line.shared)
        self.pages += pages - line.pages
        line.tokens, line.pages = tokens, pages
        self._refused = None

    def _key(self, job: Job) -> Hashable:
        """Name of a request's family: the session at the top, as far as the sessions that are in tell."""
        session, parent = job.request.session, job.request.parent_session
        if parent is None or session in self._roots:
            return self._roots.get(session, session)
        return self._roots.get(parent, parent)


def _rank(job: Job) -> Rank:
    return job.rank
