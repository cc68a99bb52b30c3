"""Every invariant of the scheduler's tables, and of their meeting with tree and arena. Each raises Corrupted naming the
table, the place in it, and what it should agree with. O(everything)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from k3mem.errors import Corrupted
from k3mem.plan import PAGE, Row
from k3mem.sched import suspect
from k3mem.sched.core import Core
from k3mem.sched.follow import MAX_SLOTS
from k3mem.sched.job import Job, Seated
from k3mem.sched.lanes import Phase
from k3mem.sched.sessions_check import check_sessions
from k3mem.types import NO_STATE, NodeId


def check(core: Core) -> None:
    """All of it, cheapest first. What concerns every lane is looked at over arrays (`suspect`); only where something is
    wrong does the rest of this file say what."""
    core.lanes.check()
    check_jobs(core)
    if core.sessions is not None:
        check_sessions(core.sessions, core.jobs)
    check_flights(core)
    tables = suspect.Tables.of_core(core)
    for i in np.flatnonzero(suspect.lanes(core, tables)).tolist():
        _accuse(f"the numbers of lane {tables.seats[i].lane}", check_lane, core, tables.seats[i])
    for i in np.flatnonzero(suspect.unwritten(core, tables)).tolist():
        _accuse(f"the numbers of lane {tables.seats[i].lane}", check_touched, core, tables.seats[i])
    core.cache.check()
    first, locks = suspect.places(core, tables)
    if first < len(tables.seats):
        _accuse(f"the place of lane {tables.seats[first].lane} in the tree", check_seat, core, tables.seats[first])
    if suspect.locks(core, tables, locks):
        _accuse("locks", check_locks, core)
    if suspect.pages(core, tables):
        _accuse("references to pages", check_pages, core)
    if suspect.states(core, tables, core.cache.tree.walk()):
        _accuse("owners of states", check_states, core)


def _accuse(what: str, named: Callable[..., None], *about: object) -> NoReturn:
    """Something is wrong with this: say what."""
    named(*about)
    raise Corrupted(f"{what}: two ways to look at it disagree; report this with the engine's recent plans")


def _fail(what: str, value: object, expected: object) -> NoReturn:
    raise Corrupted(f"{what} = {value}, but it should be {expected}; report this with the engine's recent plans")


def _same(what: str, value: object, expected: object) -> None:
    if value != expected:
        _fail(what, value, expected)


def check_jobs(core: Core) -> None:
    """A job waits in the queue, is held before it, or holds one lane; the queue is in order of rank."""
    queued = list(core.queue)
    seated = [seat.job for seat in core.lanes.taken()]
    held = [] if core.sessions is None else list(core.sessions.held)
    places = Counter(map(id, [*queued, *held, *seated]))
    admissions = []
    for key, job in core.jobs.items():
        if places[id(job)] != 1:
            _fail(f"jobs[{key!r}]: places in queue and lanes", places[id(job)], 1)
        request, prompt, limit = job.request, job.prompt, job.limit
        if request.id != key or prompt != len(request.prompt) or limit != prompt + request.max_new_tokens \
                or not prompt <= job.count <= min(limit, len(job.tokens)):
            _same(f"jobs[{key!r}].request.id", request.id, key)
            _check_job(job)
        if job.serial >= core.serial:
            _fail("serial", core.serial, f"above {job.serial} of job {key!r}")
        if job.admission is not None:
            admissions.append(job.admission)
    for job in (*queued, *held, *seated):
        if core.jobs.get(job.request.id) is not job:
            _fail(f"jobs.get({job.request.id!r})", core.jobs.get(job.request.id), "the job that waits or has a lane")
    ranks = [job.rank for job in queued]
    _same("queue: ranks", ranks, sorted(ranks))
    if any(job.reason is not None for job in [*queued, *held]):
        _fail("queue: ids of ended jobs", [j.request.id for j in [*queued, *held] if j.reason is not None], "empty")
    if any(job.admission is not None for job in held):
        _fail("held: ids of admitted jobs", [j.request.id for j in held if j.admission is not None], "empty")
    for wrong in core.queue.check():
        raise Corrupted(f"queue: {wrong}; report this with the engine's recent plans")
    if len(set(admissions)) < len(admissions) or max(admissions, default=-1) >= core.admissions:
        _fail("jobs: admissions", sorted(admissions), f"distinct and below {core.admissions}")
    if any(job.admission is None for job in seated):
        _fail("jobs: admissions of those on a lane", None, "a number each")


def _check_job(job: Job) -> None:
    name = f"job {job.request.id!r}"
    _same(f"{name}: prompt", job.prompt, len(job.request.prompt))
    _same(f"{name}: limit", job.limit, job.prompt + job.request.max_new_tokens)
    if not job.prompt <= job.count <= min(job.limit, len(job.tokens)):
        _fail(f"{name}: count", job.count, f"in {job.prompt}..{min(job.limit, len(job.tokens))}")


def check_flights(core: Core) -> None:
    """Steps in flight follow each other; each lane's rows in flight are counted."""
    step = core.step
    for flight in reversed(core.flights):
        _same("flights: last step", flight.plan.step + flight.plan.repeat - 1, step)
        step = flight.plan.step - 1
    rows = np.zeros(len(core.lanes), np.int64)
    for flight in core.flights:
        np.add.at(rows, flight.plan.lane, 1)
    for lane in np.flatnonzero(rows != core.lanes.inflight).tolist():
        _same(f"lanes.inflight[{lane}]", int(core.lanes.inflight[lane]), int(rows[lane]))


def check_lane(core: Core, seat: Seated) -> None:
    """One lane's numbers against its seat and its rows in flight."""
    lanes, lane, job = core.lanes, seat.lane, seat.job
    _same(f"lanes.rank[{lane}]", tuple(lanes.rank[lane].tolist()), seat.rank)
    _same(f"lanes.limit[{lane}]", int(lanes.limit[lane]), job.limit)
    _same(f"lanes.covered[{lane}]", int(lanes.covered[lane]), seat.page_count * core.span)
    sampled = sum(
        int(flight.plan.length[i]) * flight.plan.repeat if flight.plan.kind[i] != Row.PREFILL else 1
        for flight in core.flights for i in np.flatnonzero((flight.plan.lane == lane) & flight.plan.sample)
    )
    prefills = seat.prefilled < seat.target
    expected = seat.prefilled if prefills else job.count - 1 + sampled
    _same(f"lanes.launched[{lane}]", int(lanes.launched[lane]), expected)
    phase = Phase.DRAIN if seat.end is not None else Phase.PREFILL if prefills else Phase.DECODE
    _same(f"lanes.phase[{lane}]", int(lanes.phase[lane]), int(phase))
    _same(f"ending: whether lane {lane} is in it", lane in core.ending, seat.end is not None)
    if not -(-expected // core.span) <= seat.touched <= seat.page_count <= len(seat.pages):
        _fail(f"lane {lane}: lanes.touched", seat.touched, f"in {-(-expected // core.span)}..{seat.page_count}")
    if seat.target > job.count or seat.prefilled > seat.target:
        _fail(f"lane {lane}: seat.target", seat.target, f"in {seat.prefilled}..{job.count}")
    if lanes.last_step[lane] > core.step:
        _fail(f"lanes.last_step[{lane}]", int(lanes.last_step[lane]), f"at most {core.step}")


def check_touched(core: Core, seat: Seated) -> None:
    """Pages of a list below `touched` were written to, those from there on were not."""
    told = {int(page) for _, _, pages in core.open.lane_pages for page in pages} if core.open is not None else set()
    told |= {page for rows in core.open.fresh for page in rows[:, 2].tolist()} if core.open is not None else set()
    for index, page in enumerate(seat.pages[seat.owned : seat.page_count].tolist(), seat.owned):
        fresh = bool(core.reserved[PAGE].get(np.array([page], np.int32))[0]) and page not in told
        if fresh != (index >= seat.touched):
            _fail(f"lanes.touched[{seat.lane}]", seat.touched, f"{'at most' if fresh else 'above'} {index}, where page "
                  f"{page} stands")


def check_seat(core: Core, seat: Seated) -> None:
    """What a seat says of the tree: where it stands, and which pages of its list are the tree's."""
    tree, name = core.cache.tree, f"lane {seat.lane}: seat"
    try:
        info = tree.info(seat.node)
    except Corrupted as e:
        raise Corrupted(f"{name}.node = {seat.node}: {e}") from None
    if info.scope != seat.job.scope or info.depth != seat.node_depth or info.lock < 1:
        _fail(f"{name}.node", seat.node, f"a locked node at depth {seat.node_depth} of scope {seat.job.scope}, not "
              f"{info}")
    _same(f"{name}.owned", seat.owned, seat.node_depth // core.span)
    if info.depth:
        if not info.has_kv or not np.array_equal(tree.path_tokens(seat.node), seat.job.tokens[: info.depth]):
            _fail(f"{name}.node", seat.node, "a node with KV on the path of the seat's tokens")
        theirs = tree.pages(seat.node)[: seat.owned]
        wrong = np.flatnonzero(theirs != seat.pages[: seat.owned])
        if len(wrong):
            i = int(wrong[0])
            _fail(f"{name}.pages[{i}]", seat.pages[i], f"the tree's page {theirs[i]}")
    seat.extra.check()
    if len(seat.slots) > MAX_SLOTS or not seat.slots.keys() <= seat.anchors.keys():
        _fail(f"{name}.slots", seat.slots, f"at most {MAX_SLOTS}, each at an anchor of {seat.anchors}")


def check_locks(core: Core) -> None:
    """Every lock of the tree is a seat's, a pin's or a hold's."""
    tree = core.cache.tree
    holders = Counter([*(seat.node for seat in core.lanes.taken()), *core.pins.nodes]) + core.cache.holds
    for node, count in holders.items():
        _same(f"holders of node {node}", count, tree.info(node).lock)
    _same("holders of locks", holders.total(), tree.counters().locks)


def check_pages(core: Core) -> None:
    """Every reference to a page is the tree's or a seat's."""
    arena, tree = core.cache.arena, core.cache.tree
    held = arena.page_refs()
    refs = tree.page_refs(arena.page_id_end)
    for seat in core.lanes.taken():
        for index, page in enumerate(seat.pages[seat.owned : seat.page_count].tolist(), seat.owned):
            if not 0 < page < len(held) or refs[page] >= held[page]:
                _fail(f"lane {seat.lane}: seat.pages[{index}]", page, "a page of which this seat holds a reference")
            refs[page] += 1
    wrong = np.flatnonzero(refs[1:] != held[1 : len(refs)]) + 1
    if len(wrong):
        page = int(wrong[0])
        raise Corrupted(f"page {page} has {held[page]} references, but its owners hold {refs[page]}")


def check_states(core: Core) -> None:
    """Every live state has one owner."""
    owners: dict[int, str] = {}

    def own(state: int, name: str) -> None:
        if state in owners:
            raise Corrupted(f"{name} = {state}, which is also {owners[state]}")
        owners[state] = name

    walk = core.cache.tree.walk()
    for node, state in zip(walk.node.tolist(), walk.state.tolist(), strict=True):
        if state != NO_STATE:
            own(state, f"the checkpoint of node {NodeId(node)}")
    if core.open is not None:
        for row in core.open.prefill:
            for depth, target, _ in row.targets:
                own(target, f"open plan: target at {depth} of lane {row.seat.lane}")
    for seat in core.lanes.taken():
        name = f"lane {seat.lane}: seat"
        own(seat.state, f"{name}.state")
        for depth, state in seat.slots.items():
            own(state, f"{name}.slots[{depth}]")
        if seat.extra.latest is not None:
            own(seat.extra.latest, f"{name}.extra.latest")
        if seat.extra.pending is not None:
            own(seat.extra.pending, f"{name}.extra.pending")
    live = set(core.cache.arena.tables()[1][1:, 0].tolist())
    for state, owner in owners.items():
        if state not in live:
            raise Corrupted(f"{owner} = {state}, which is not live")
    if len(live) != len(owners):
        raise Corrupted(f"states {sorted(live - owners.keys())[:8]} are live, but nobody owns them")
