"""Session admission on a clock to set: who goes in, who is held, for how long, and what is left of them."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from k3mem.errors import Corrupted
from k3mem.policy import SessionAdmission
from k3mem.request import Request
from k3mem.sched.family import STATES
from k3mem.sched.job import Job
from k3mem.sched.learn import FEW, MEMORY, Pauses, Pressure
from k3mem.sched.sessions import Sessions
from k3mem.sched.sessions_check import check_sessions
from k3mem.types import ScopeId

SPAN = 10


class Door:
    """Sessions in front of an arena of so many pages, and the requests that went past."""

    def __init__(self, pages: int = 100, **policy: Any) -> None:
        self.pages = pages
        self.now = 0.0
        self.shared: dict[Hashable, int] = {}
        """Tokens of a session's first prompt that others have cached."""
        self.sessions = Sessions(SessionAdmission(**{"share": 1.0, **policy}), SPAN,
                                 lambda pages, states: pages <= self.pages,
                                 lambda job: self.shared.get(job.request.session, 0))
        self.jobs: dict[Hashable, Job] = {}
        self.inside: list[Hashable] = []
        self.waits: dict[Hashable, float] = {}
        self._arrived: dict[Hashable, float] = {}
        self._serial = 0

    def come(self, session: Hashable, pages: int = 40, parent: Hashable = None, priority: int = 0,
             busy: bool = False) -> Hashable:
        """A request of a session: its id."""
        name = f"{session}.{self._serial}"
        request = Request(name, [1] * (pages * SPAN), 5, session=session, parent_session=parent, priority=priority)
        n = len(request.prompt)
        job = Job(request, ScopeId(0), self._serial, request.prompt, n, n, n + 5)
        self._serial += 1
        self.jobs[name] = job
        self._arrived[name] = self.now
        if self.sessions.arrive(job, self.now, busy):
            self._pass(job)
        check_sessions(self.sessions, self.jobs)
        return name

    def plan(self, idle: bool = False) -> list[Hashable]:
        """Ids of those that go in now."""
        out = self.sessions.release(self.now, idle)
        for job in out:
            self._pass(job)
        check_sessions(self.sessions, self.jobs)
        return [job.request.id for job in out]

    def _pass(self, job: Job) -> None:
        self.inside.append(job.request.id)
        self.waits[job.request.id] = self.now - self._arrived[job.request.id]

    def finish(self, name: Hashable, answer: int = 0) -> None:
        """A request that is inside ends, after so many tokens."""
        job = self.jobs.pop(name)
        self.inside.remove(name)
        job.append(np.ones(answer, np.int32))
        self.sessions.left(job)
        check_sessions(self.sessions, self.jobs)

    def end(self, session: Hashable) -> None:
        self.sessions.end(session)
        check_sessions(self.sessions, self.jobs)

    @property
    def held(self) -> list[Hashable]:
        return [job.request.id for job in self.sessions.held]


def test_sessions_go_in_until_their_working_sets_fill_the_share() -> None:
    door = Door(share=0.5, pages=200)
    names = [door.come(s) for s in "abc"]
    assert door.plan() == names[:2] and door.held == names[2:]
    assert (door.sessions.pages, door.sessions.states) == (80, 2 * STATES)


def test_a_request_of_no_session_is_never_held() -> None:
    door = Door(pages=1)
    assert [door.come(None), door.come(None)] == door.inside


def test_the_end_of_a_session_makes_room_at_once_and_a_pause_does_not() -> None:
    door = Door(pages=50)
    a, b = door.come("a"), door.come("b")
    assert door.plan() == [a]
    door.finish(a)
    door.now = 5.0
    assert door.plan() == [] and door.held == [b]
    door.end("a")
    assert door.plan() == [b] and door.waits[b] == 5.0 and door.sessions.longest == 5.0


def test_a_session_that_is_in_comes_and_goes_freely() -> None:
    door = Door(pages=50)
    a, b = door.come("a"), door.come("b")
    door.plan()
    for turn in range(5):
        door.finish(a)
        door.now += 10.0
        assert door.plan() == []
        a = door.come("a")
        assert a in door.inside, f"turn {turn}"
    assert door.held == [b]


def test_a_session_that_pauses_for_longer_than_most_goes_out() -> None:
    door = Door(pages=50, idle=30.0)
    a, b = door.come("a"), door.come("b")
    door.plan()
    door.finish(a)
    door.now = 1.0
    assert door.plan() == [] and door.sessions.next_change == 31.0
    door.now = 30.9
    assert door.plan() == []
    door.now = 31.0
    assert door.plan() == [b]
    assert door.come("a") in door.held, "it queues up like everybody when it is back"


def test_how_long_a_pause_may_be_is_learned() -> None:
    door = Door(pages=1000, idle=1e6, idle_quantile=0.9)
    for turn in range(2 * FEW):
        name = door.come("a")
        door.plan()
        door.finish(name)
        door.now += 1.0
        door.plan()
        door.now += 300.0 if turn % 20 == 19 else 8.0
    assert 8.0 <= door.sessions.idle_limit <= 8.0 * 2**0.5


def test_the_first_to_come_is_the_first_to_go_in_however_small_the_others_are() -> None:
    door = Door(pages=100)
    a = door.come("a", 60)
    door.plan()
    large, small = door.come("large", 90), door.come("small", 10)
    assert door.plan() == [] and door.held == [large, small]
    door.finish(a)
    door.end("a")
    assert door.plan() == [large, small]


def test_nobody_waits_for_longer_than_the_bound() -> None:
    door = Door(pages=50, bound=100.0)
    a = door.come("a")
    door.plan()
    late = [door.come(f"s{i}") for i in range(3)]
    door.now = 99.0
    assert door.plan() == [] and door.sessions.next_change == 100.0
    door.now = 100.0
    assert door.plan() == late, "whether they fit or not"
    assert door.sessions.counts == {"held": 3, "overdue": 3, "suspended": 3}
    assert a in door.inside, "what is inside stays there"


def test_who_goes_in_for_the_bound_takes_the_turn_of_who_has_been_in_longest() -> None:
    door = Door(pages=100, bound=100.0)
    a, b = door.come("a"), door.come("b")
    door.plan()
    c = door.come("c")
    door.now = 100.0
    assert door.plan() == [c]
    door.now = 101.0
    door.finish(a)
    door.finish(b)
    door.plan()
    assert door.come("a") in door.held and door.come("b") in door.inside
    assert door.plan() == [], "there is no room for a until somebody leaves"


def test_a_suspended_session_keeps_its_place_while_a_request_of_it_is_inside() -> None:
    door = Door(pages=50, bound=10.0)
    door.come("a")
    door.plan()
    door.come("b")
    door.now = 10.0
    door.plan()
    child = door.come("a.child", parent="a")
    assert child in door.inside, "the child of one that is inside passes"


def test_a_whole_family_goes_in_at_once() -> None:
    door = Door(pages=50, bound=1e9)
    a = door.come("a")
    door.plan()
    family = [door.come("p"), door.come("p.1", parent="p"), door.come("p.1.1", parent="p.1"),
              door.come("p.2", parent="p")]
    assert door.plan() == [] and door.held == family
    door.finish(a)
    door.end("a")
    assert sorted(door.plan()) == sorted(family), "though together they do not fit"
    assert door.come("p.1.1.1", parent="p.1.1") in door.inside


def test_a_parent_that_waits_for_its_child_does_not_pause() -> None:
    door = Door(pages=1000, idle=30.0)
    p = door.come("p")
    door.plan()
    child = door.come("c", parent="p")
    door.finish(p)
    door.plan()
    door.now = 500.0
    door.plan()
    door.finish(child)
    door.plan()
    door.now = 510.0
    assert door.come("p") in door.inside


def test_the_end_of_a_child_gives_back_its_share_only() -> None:
    door = Door(pages=1000)
    door.come("p", 40)
    door.plan()
    child = door.come("c", 30, parent="p")
    assert door.sessions.pages == 70
    door.end("c")
    assert door.sessions.pages == 70, "a request of it is inside"
    door.finish(child)
    door.plan()
    assert door.sessions.pages == 40


def test_children_that_nobody_ends_stop_counting_after_a_pause() -> None:
    door = Door(pages=10_000, idle=30.0)
    door.come("p", 40)
    door.plan()
    for i in range(20):
        child = door.come(f"c{i}", 30, parent="p")
        door.finish(child)
        door.plan()
        door.now += 20.0
    assert door.sessions.pages <= 40 + 3 * 30 + 3 * 30


def test_a_higher_priority_goes_first_and_makes_its_way() -> None:
    door = Door(pages=50)
    a = door.come("a")
    door.plan()
    low, high = door.come("low"), door.come("high", priority=1)
    assert door.held == [high, low]
    assert door.plan() == [high] and door.sessions.counts["suspended"] == 1
    door.finish(a)
    door.plan()
    assert door.come("a") in door.held


def test_a_higher_priority_suspends_nobody_where_that_would_not_help() -> None:
    door = Door(pages=100)
    door.come("equal", 70, priority=1)
    door.come("low", 20)
    door.plan()
    door.come("high", 60, priority=1)
    assert door.plan() == [] and door.sessions.counts["suspended"] == 0


def test_a_server_without_work_lets_one_in() -> None:
    door = Door(pages=50)
    a, b, c = (door.come(s) for s in "abc")
    door.plan()
    door.finish(a)
    assert door.plan(idle=True) == [b] and door.plan() == [] and door.held == [c]


def test_bytes_of_others_are_not_counted_twice() -> None:
    door = Door(pages=100)
    door.shared["b"] = 35 * SPAN
    a, b = door.come("a", 90), door.come("b", 40)
    assert door.plan() == [a, b] and door.sessions.pages == 95


def test_growth_is_expected_once_it_was_seen() -> None:
    door = Door(pages=1000, idle=1e6)
    size = 10
    for _ in range(100):
        name = door.come("a", size)
        door.plan()
        door.finish(name)
        size += 3
    last = size - 3
    assert door.sessions.pages > last


def test_a_request_that_ends_while_it_is_held_leaves_nothing() -> None:
    door = Door(pages=50)
    a, b = door.come("a"), door.come("b")
    door.plan()
    job = door.jobs.pop(b)
    assert door.sessions.remove(job) and not door.sessions.remove(job)
    check_sessions(door.sessions, door.jobs)
    door.finish(a)
    door.end("a")
    assert door.plan() == [] and (door.sessions.pages, door.sessions.states) == (0, 0)


def test_a_session_that_goes_on_after_its_end_has_not_ended() -> None:
    door = Door(pages=50)
    a = door.come("a")
    door.plan()
    door.end("a")
    again = door.come("a")
    door.finish(a)
    door.finish(again)
    door.plan()
    assert door.come("b") in door.held and door.plan() == []


def test_all_dropped_at_once() -> None:
    door = Door(pages=50)
    for s in "abc":
        door.come(s)
    door.plan()
    door.sessions.clear()
    door.jobs.clear()
    check_sessions(door.sessions, door.jobs)
    assert (door.sessions.pages, door.sessions.states, door.held) == (0, 0, [])


# -- auto


def pressed(door: Door, lost: int, computed: int, times: int, busy: bool = True) -> None:
    """A session that is in loses what it had cached, so many times."""
    from k3mem.request import Hit

    for _ in range(times):
        name = door.come("victim", busy=busy)
        door.plan()
        n = door.jobs[name].count
        door.jobs[name].hit = Hit(n, n - computed, n, n, 0, {"kv_evicted": lost, "never_seen": computed - lost})
        door.sessions.computed(door.jobs[name])
        door.finish(name)


@pytest.mark.parametrize(("lost", "busy", "holds"), [(300, True, True), (300, False, False), (20, True, False)])
def test_auto_holds_only_once_evictions_keep_the_server_busy(lost: int, busy: bool, holds: bool) -> None:
    door = Door(pages=50, auto=True)
    assert [door.come(s) for s in "ab"] == door.plan(), "at first it lets in what does not fit"
    pressed(door, lost, 400, 40, busy)
    door.plan()
    c = door.come("c", busy=busy)
    assert (door.plan() == []) == holds and (c in door.held) == holds


def test_auto_stops_once_nobody_is_held() -> None:
    door = Door(pages=50, auto=True)
    a, b = door.come("a"), door.come("b")
    door.plan()
    pressed(door, 300, 400, 40)
    door.plan()
    c = door.come("c")
    assert door.plan() == [] and door.sessions.holding
    for name in (a, b):
        door.finish(name)
    for session in ("a", "b", "victim"):
        door.end(session)
    assert door.plan() == [c] and not door.sessions.holding
    d = door.come("d")
    assert door.plan() == [d]


# -- what it learns


def test_pauses_quantile_is_the_upper_edge_of_a_bin_and_old_ones_fade() -> None:
    pauses = Pauses()
    for _ in range(FEW - 1):
        pauses.add(1.0)
    assert pauses.quantile(0.5, 7.0) == 7.0
    pauses.add(1.0)
    assert 1.0 < pauses.quantile(0.5, 7.0) <= 2**0.25
    for _ in range(3 * MEMORY):
        pauses.add(100.0)
    assert 100.0 < pauses.quantile(0.1, 7.0) <= 100.0 * 2**0.25
    for extreme in (0.0, 1e12):
        pauses.add(extreme)
    assert pauses.quantile(1.0, 7.0) > 1e6


def test_pressure_needs_samples() -> None:
    pressure = Pressure()
    for _ in range(15):
        pressure.computed(100, 100)
        pressure.arrived(True)
    assert not pressure.high
    pressure.computed(100, 100)
    assert pressure.high


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.1}, {"bound": -1}, {"idle": float("nan")},
                                   {"idle_quantile": 0}, {"bound": "1800"}])
def test_a_choice_that_cannot_be_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"session admission: {next(iter(wrong))}"):
        SessionAdmission(**wrong)


# -- anything goes


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_bound_holds_and_nobody_is_forgotten(seed: int) -> None:
    """Random sessions, children, priorities, pauses, ends and aborts; check() after each."""
    rng = random.Random(seed)
    bound = rng.choice([0.0, 5.0, 40.0])
    door = Door(pages=rng.choice([30, 100]), bound=bound, idle=rng.choice([0.0, 3.0, 20.0]), auto=seed % 3 == 0)
    step = 0.5
    names = [f"s{i}" for i in range(8)]
    for _ in range(600):
        what = rng.random()
        if what < 0.35:
            session = rng.choice(names)
            parent = rng.choice([None, None, *names])
            door.come(session, rng.randrange(1, 60), parent, rng.choice([0, 0, 0, 1]), rng.random() < 0.9)
        elif what < 0.6 and door.inside:
            door.finish(rng.choice(door.inside), rng.randrange(30))
        elif what < 0.65:
            door.end(rng.choice(names))
        elif what < 0.7 and door.held:
            job = door.jobs.pop(rng.choice(door.held))
            assert door.sessions.remove(job)
        elif what < 0.705:
            door.sessions.changed()
        else:
            door.now += step
            door.plan(idle=not door.inside)
            assert not (door.held and not door.inside), "the server never idles while somebody is held"
    while door.jobs:
        door.now += step
        door.plan(idle=not door.inside)
        for name in list(door.inside):
            door.finish(name)
    assert max(door.waits.values()) <= bound + step
    assert door.sessions.longest <= bound + step


SPOILS = [
    lambda s: setattr(s, "pages", s.pages + 1),
    lambda s: s._arrived.popitem(),
    lambda s: s._inside.popitem(),
    lambda s: s._quiet.clear(),
    lambda s: s._roots.popitem(),
    lambda s: setattr(s, "_planned", 1e9),
    lambda s: next(iter(s._in.values())).lines.clear(),
    lambda s: setattr(next(iter(s._in.values())), "jobs", 9),
    lambda s: s._gone.update({next(iter(s._in)): 0.0}),
    lambda s: setattr(next(f for k, f in s._in.items() if k in s._quiet), "suspended", True),
]


@pytest.mark.parametrize("spoil", SPOILS)
def test_check_bites(spoil: Any) -> None:
    door = Door(pages=80)
    a = door.come("a")
    door.come("b")
    door.plan()
    door.come("c")
    door.finish(a)
    door.now = 1.0
    door.plan()
    spoil(door.sessions)
    with pytest.raises(Corrupted, match="sessions: "):
        check_sessions(door.sessions, door.jobs)
