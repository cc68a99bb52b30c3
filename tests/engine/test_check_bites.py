"""check() bites: one wrong word in any table of the scheduler, in a running world, is found and named."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from k3mem.errors import Corrupted
from k3mem.plan import PAGE
from k3mem.pool import ExtraBuffer
from k3mem.request import Request
from k3mem.sched.core import Core
from k3mem.sched.job import End, Job, Seated
from k3mem.sched.lanes import Phase
from tests.engine.test_matrix import PLAIN, world
from tests.world import World

CELL = PLAIN | {"page_tokens": 16, "eager": False, "in_flight": 1, "states": 24, "window": 1}
Spoil = Callable[[Core, Random], None]


def running(seed: int, wanted: Callable[[Seated, Core], bool] = lambda seat, core: True) -> World:
    """A world in which at least three requests run, one of them as wanted."""
    w = world(CELL, seed, 60)
    while True:
        w.act()
        w.one_step()
        core = w.engine.scheduler.core
        seats = core.lanes.taken()
        if w.steps > 8 and len(seats) > 2 and core.queue and any(wanted(seat, core) for seat in seats):
            w.engine.check()
            return w
        assert w.engine.has_work or w.made < w.requests, "no such moment in this world"


def some(core: Core, rng: Random) -> Seated:
    return rng.choice(core.lanes.taken())


def word(table: str) -> Spoil:
    def spoil(core: Core, rng: Random) -> None:
        lane = some(core, rng).lane
        array = getattr(core.lanes, table)
        old = int(array[lane])
        while int(array[lane]) == old:
            array[lane] = rng.choice([old - 1, old + 1, 0, rng.randrange(100)])

    return spoil


def free_lane(table: str, value: int) -> Spoil:
    def spoil(core: Core, rng: Random) -> None:
        lane = core.lanes._free[0]
        getattr(core.lanes, table)[lane] = value

    return spoil


def field(name: str, *choices: int) -> Spoil:
    """Another value in a field of a seat: near, or one of `choices`."""
    def spoil(core: Core, rng: Random) -> None:
        seat = some(core, rng)
        old = getattr(seat, name)
        setattr(seat, name, rng.choice([v for v in (old - 1, old + 1, *choices) if v != old]))

    return spoil


def another_state(core: Core, rng: Random) -> None:
    one, other = rng.sample(core.lanes.taken(), 2)
    one.state = other.state


def another_node(core: Core, rng: Random) -> None:
    one = some(core, rng)
    nodes = [n for n in core.cache.tree.walk().node.tolist() if n != one.node]
    one.node = rng.choice(nodes)


def page_entry(owned: bool) -> Spoil:
    def spoil(core: Core, rng: Random) -> None:
        seat = rng.choice([s for s in core.lanes.taken() if s.owned > 0 or not owned])
        index = rng.randrange(seat.owned) if owned else rng.randrange(seat.owned, seat.page_count)
        old = int(seat.pages[index])
        seat.pages[index] = rng.choice([p for p in (0, old + 1, rng.randrange(1, 60)) if p != old])

    return spoil


def lost_from_queue(core: Core, rng: Random) -> None:
    core.queue.pop(0)


def lost_from_jobs(core: Core, rng: Random) -> None:
    del core.jobs[rng.choice(list(core.jobs))]


def queued_and_seated(core: Core, rng: Random) -> None:
    core.queue.add(some(core, rng).job)


def wrong_key(core: Core, rng: Random) -> None:
    job = core.jobs.pop(rng.choice(list(core.jobs)))
    core.jobs["other"] = job


def stranger_in_queue(core: Core, rng: Random) -> None:
    job: Job = core.queue[0]
    core.queue.add(Job(Request("stranger", [1], 1), job.scope, job.serial, job.tokens, 1, 1, 2))


def rank_changed(core: Core, rng: Random) -> None:
    core.queue[0].serial = core.serial + 5


def job_count(core: Core, rng: Random) -> None:
    some(core, rng).job.count += 1


def address(table: str, column: int) -> Spoil:
    """A lane's list lies elsewhere, or is of another length."""
    def spoil(core: Core, rng: Random) -> None:
        getattr(core.lanes, table)[some(core, rng).lane, column] += 4

    return spoil


def rank_word(core: Core, rng: Random) -> None:
    core.lanes.rank[some(core, rng).lane, rng.randrange(3)] += 1


def id_of_another(core: Core, rng: Random) -> None:
    one, other = rng.sample(core.lanes.taken(), 2)
    core.lanes.ids[one.lane] = core.lanes.ids[other.lane]


def list_of_a_free_lane(core: Core, rng: Random) -> None:
    core.lanes.held[core.lanes._free[0]] = core.lanes.held[some(core, rng).lane]


def page_forgotten(core: Core, rng: Random) -> None:
    """A page of a seat's own counts as written to, or as new, against what is so."""
    seat = rng.choice([s for s in core.lanes.taken() if s.owned < s.page_count])
    page = seat.pages[[rng.randrange(seat.owned, seat.page_count)]]
    core.reserved[PAGE].set(page, not core.reserved[PAGE].get(page)[0])


def opening_changed(core: Core, rng: Random) -> None:
    core.queue[0].opening = b"another"


def nobody_begins_alike(core: Core, rng: Random) -> None:
    job = next(job for job in core.queue if job.opening is not None)
    core.queue._alike.pop((job.scope, job.opening or b""))


def ending(core: Core, rng: Random) -> None:
    core.ending ^= {some(core, rng).lane}


def ended_but_rows_go_on(core: Core, rng: Random) -> None:
    seat = rng.choice([s for s in core.lanes.taken() if s.end is None])
    seat.end = End.RETRACT


def free_twice(core: Core, rng: Random) -> None:
    core.lanes._free.append(core.lanes._free[0])


def seat_lost(core: Core, rng: Random) -> None:
    core.lanes.seats[some(core, rng).lane] = None


def step_number(core: Core, rng: Random) -> None:
    core.step += rng.choice([-1, 1])


def last_step_to_come(core: Core, rng: Random) -> None:
    core.lanes.last_step[some(core, rng).lane] = core.step + 1


def running_count(core: Core, rng: Random) -> None:
    core.lanes.running += 1


def state_leaked(core: Core, rng: Random) -> None:
    core.cache.arena.alloc(0, 1)


def page_leaked(core: Core, rng: Random) -> None:
    core.cache.arena.alloc(1, 0)


def lock_leaked(core: Core, rng: Random) -> None:
    core.cache.tree.lock(core.cache.tree.root(some(core, rng).job.scope))


CASES: dict[str, tuple[Spoil, str]] = {
    "phase": (word("phase"), "lanes"),
    "generation": (word("generation"), "lanes"),
    "launched": (word("launched"), r"lanes\.launched"),
    "inflight": (word("inflight"), r"lanes\.inflight"),
    "covered": (word("covered"), r"lanes\.(covered|launched)"),
    "touched": (word("touched"), r"lanes\.touched"),
    "limit": (word("limit"), r"lanes\.limit"),
    "rank": (rank_word, r"lanes\.rank"),
    "ids": (id_of_another, "lanes: the tenant"),
    "text, its place": (address("text", 0), r"lanes\.text"),
    "text, its length": (address("text", 1), r"lanes\.text"),
    "held, its place": (address("held", 0), r"held"),
    "held, its length": (address("held", 1), r"held"),
    "held, its count": (address("held", 2), r"lanes\.(covered|touched)"),
    "held of a free lane": (list_of_a_free_lane, r"held"),
    "reserved": (page_forgotten, r"lanes\.touched"),
    "queue, an opening": (opening_changed, "queue: the opening"),
    "queue, who begins alike": (nobody_begins_alike, "queue: those who begin alike"),
    "phase of a free lane": (free_lane("phase", Phase.DECODE), "lanes"),
    "inflight of a free lane": (free_lane("inflight", 1), r"lanes\.inflight"),
    "seats": (seat_lost, "lanes"),
    "free": (free_twice, "lanes"),
    "running": (running_count, r"lanes\.running"),
    "seat.lane": (field("lane"), "lanes"),
    "seat.generation": (field("generation"), "lanes"),
    "seat.owned": (field("owned"), r"seat\.owned"),
    "seat.touched": (field("touched"), r"touched"),
    "seat.page_count": (field("page_count"), r"lanes\.covered"),
    "seat.target": (field("target", 1 << 20), r"seat\.target|lanes\.(launched|phase)"),
    "seat.prefilled": (field("prefilled"), r"lanes\.(launched|phase)|seat\.target"),
    "seat.node": (another_node, r"seat\.node"),
    "seat.node, no such": (field("node", 1 << 20), r"seat\.node"),
    "seat.node_depth": (field("node_depth"), r"seat\.(node|owned)"),
    "seat.state": (field("state", 0, 1 << 20), r"seat\.state|states"),
    "seat.state of another": (another_state, r"seat\.state"),
    "seat.pages, own": (page_entry(owned=False), r"seat\.pages|page"),
    "seat.pages, the tree's": (page_entry(owned=True), r"seat\.pages"),
    "lanes.last_step": (last_step_to_come, r"lanes\.last_step"),
    "seat.end": (ended_but_rows_go_on, r"lanes\.phase"),
    "queue, one lost": (lost_from_queue, "jobs"),
    "queue, one twice": (queued_and_seated, "jobs"),
    "queue, a stranger": (stranger_in_queue, "jobs"),
    "queue, out of order": (rank_changed, "queue|serial"),
    "jobs, one lost": (lost_from_jobs, "jobs"),
    "jobs, wrong key": (wrong_key, "jobs"),
    "job.count": (job_count, r"job|lanes\.launched|seat\.target"),
    "ending": (ending, "ending"),
    "step": (step_number, "flights"),
    "arena, a state": (state_leaked, "states"),
    "arena, a page": (page_leaked, "page"),
    "tree, a lock": (lock_leaked, "lock|seats"),
}
SEVERAL = range(4)


@pytest.mark.parametrize("seed", SEVERAL)
@pytest.mark.parametrize("name", sorted(CASES))
def test_a_wrong_word_is_found_and_its_table_named(name: str, seed: int) -> None:
    spoil, table = CASES[name]
    w = running(seed, lambda seat, core: seat.owned > 0 and len(core.lanes._free) > 0)
    spoil(w.engine.scheduler.core, Random(seed))
    with pytest.raises(Corrupted, match=table):
        w.engine.check()


def test_corruption_latches_the_engine() -> None:
    w = running(0)
    core = w.engine.scheduler.core
    lane = core.lanes.taken()[0].lane
    core.lanes.limit[lane] += 1
    with pytest.raises(Corrupted, match="lanes.limit"):
        w.engine.check()
    core.lanes.limit[lane] -= 1
    for call in (w.engine.check, w.engine.step, w.engine.plan, lambda: w.engine.abort(0),
                 lambda: w.engine.submit(Request("late", [1], 1))):
        with pytest.raises(Corrupted, match=r"latched.*lanes\.limit"):
            call()


@pytest.mark.parametrize("spoil", [
    lambda extra: setattr(extra, "depth", 5000),
    lambda extra: setattr(extra, "pending_depth", -1),
    lambda extra: setattr(extra, "pending", None),
])
def test_the_extra_buffers_are_checked(spoil: Callable[[ExtraBuffer], None]) -> None:
    w = world(CELL | {"interval": 32, "deterministic": True}, 3, 40)
    while not (pending := [s for s in w.engine.scheduler.core.lanes.taken() if s.extra.pending is not None]):
        w.act()
        w.one_step()
    w.engine.check()
    spoil(pending[0].extra)
    with pytest.raises(Corrupted, match="ExtraBuffer"):
        w.engine.check()
