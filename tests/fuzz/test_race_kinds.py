"""Every kind of race is found by name, and has a witness: an order of the two commands that changes a byte, or, where
the kind is benign, no order that does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from k3mem.errors import Effect
from k3mem.executors.mock import Fault, Faults, MockExecutor
from k3mem.executors.mock.streams import Command as Work
from k3mem.executors.mock.streams import Streams
from k3mem.fuzz.race import BENIGN, KINDS, Command, Judge, Race, Space
from k3mem.fuzz.race.space import ranges
from k3mem.fuzz.record import Recorder
from k3mem.plan import PAGE, STATE
from tests.fuzz.race_cases import BENIGN_CASES, CASES, LAYOUT, Case, decodes, outcome, reversed_phases, scene
from tests.plans import layout_of, small_shape

SEEDS = 24
READ = 1_000_000
"""Event of the mock's: the transfer has read."""
ACROSS = ("moved_while_read", "unordered", "stuck", "no_resync")
"""Kinds that need more than plans on one stream."""


def name(case: Case) -> str:
    return case.kind


def test_every_kind_has_a_case() -> None:
    assert {case.kind for case in CASES} | set(ACROSS) | set(BENIGN) == set(KINDS)
    assert {case.kind for case in BENIGN_CASES} == set(BENIGN)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_race_is_reported_by_name(case: Case) -> None:
    report, _ = outcome(case.plans())
    assert case.kind in report.kinds
    race = next(race for race in report.races if race.kind == case.kind)
    assert race.first and race.second and race.place and race.edge


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_race_has_an_order_that_changes_a_byte(case: Case) -> None:
    if case.other is None:
        assert len({outcome(case.plans(), seed)[1] for seed in range(SEEDS)}) > 1
    else:
        assert outcome(case.plans())[1] != outcome(case.other())[1]


def test_without_a_race_every_order_leaves_the_same() -> None:
    """The outcomes above differ by the order alone, not by the seed's junk."""
    host, plans = scene()
    plans = [*plans, decodes(host).add("moves", (0, PAGE, 1, 20), (0, PAGE, 4, 21)).add("page_table", (1, 20), (4, 21))]
    assert len({outcome(plans, seed)[1] for seed in range(SEEDS)}) == 1


@pytest.mark.parametrize("kind", ["restored_before_write", "lost_write", "use_before_write", "wrong_prefix",
                                  "stale_entry", "stale_lane", "wrong_position"])
def test_the_right_order_is_clean(kind: str) -> None:
    other = next(case.other for case in CASES if case.kind == kind)
    assert other is not None
    report, _ = outcome(other())
    assert kind not in report.kinds


@pytest.mark.parametrize("case", BENIGN_CASES, ids=name)
def test_a_benign_race_is_counted_and_changes_nothing_in_any_order(case: Case) -> None:
    report, first = outcome(case.plans())
    assert not report.races
    assert report.benign[case.kind] > 0
    assert {outcome(case.plans(), seed)[1] for seed in range(SEEDS)} == {first}
    assert outcome([reversed_phases(plan.build()) for plan in case.plans()])[1] == first


# -- other streams


def transfer(moves: bool, waits: bool) -> tuple[list[Race], set[object]]:
    """A transfer reads page place 2 after step 1, while step 2 writes or moves it. (races, what it may have read)"""
    races: list[Race] = []
    read: set[object] = set()
    for seed in range(SEEDS):
        host, plans = scene(lanes=1)
        plan = decodes(host, lanes=[0])
        if moves:
            plan.add("moves", (0, PAGE, 2, 20)).add("page_table", (2, 20))
        judge, mock = Judge(), MockExecutor(seed)
        executor = Recorder(mock, judge)
        executor.attach(LAYOUT)
        executor.collect(executor.launch(plans[0].build()))

        def copy(mock: MockExecutor = mock) -> None:
            page = mock.device.memory.pages[2]
            read.add(None if page is None else tuple(page.rows[0]))

        mock._streams.put("host", Work(copy, signals=READ if waits else -1))
        low, high = judge.space.of(PAGE, 2)
        judge.command(Command("host", "transfer: page place 2", reads=ranges([(low, high)]),
                              waits=(("forward", 1),), signals=("read",)))
        if waits:
            mock._streams.put("forward", Work(lambda: None, waits=(READ,)))
            judge.command(Command("forward", "step 2: waits", waits=("read",)))
        executor.collect(executor.launch(plan.build()))
        mock._streams.drain()
        races += judge.finish().races
    return races, read


@pytest.mark.parametrize(("moves", "kind"), [(True, "moved_while_read"), (False, "unordered")])
def test_a_transfer_without_an_event_races_with_the_next_step(moves: bool, kind: str) -> None:
    races, read = transfer(moves, waits=False)
    assert kind in {race.kind for race in races}
    assert any("transfer: page place 2" in (race.first, race.second) for race in races)
    assert len(read) > 1


@pytest.mark.parametrize("moves", [True, False])
def test_an_event_orders_them(moves: bool) -> None:
    races, read = transfer(moves, waits=True)
    assert not races
    assert len(read) == 1


def test_a_command_that_waits_for_ever_is_stuck() -> None:
    judge = Judge()
    judge.put(LAYOUT)
    judge.command(Command("host", "transfer", waits=("never",)))
    assert judge.finish().kinds == {"stuck": 1}
    streams = Streams(Random(0), shuffle=False)
    streams.put("host", Work(lambda: None, waits=(1,), signals=2))
    with pytest.raises(RuntimeError, match="stuck"):
        streams.until(2)


@pytest.mark.parametrize("at", ["launch", "collect"])
def test_a_plan_after_a_failure_must_be_a_resync(at: str) -> None:
    def run(faults: Faults | None) -> tuple[set[str], object]:
        host, plans = scene(lanes=1)
        report, left = outcome([*plans, decodes(host, lanes=[0]), decodes(host, 7, lanes=[0])], faults=faults)
        return set(report.kinds), left

    kinds, after_failure = run(Faults([Fault(2, at, Effect.UNKNOWN)]))  # type: ignore[arg-type]
    without, right = run(None)
    assert "no_resync" in kinds
    assert "use_before_write" in kinds
    assert not without
    assert after_failure != right


def test_memory_lost_with_the_contents_is_nobodys() -> None:
    host, plans = scene(lanes=1)
    lost = Faults([Fault(2, "collect", Effect.CONTENTS_LOST)])
    report, _ = outcome([*plans, decodes(host, lanes=[0]), decodes(host, 7, lanes=[0])], faults=lost)
    assert {"no_resync", "use_before_write"} <= set(report.kinds)


def test_a_step_without_effect_leaves_memory_as_it_was() -> None:
    host, plans = scene(lanes=1)
    failed = decodes(host, lanes=[0]).add("zero_pages", 1)
    again = host.plan(resync=True).decode(0, 6)
    again.add("page_table", (0, 0), (1, 1), (2, 2), (3, 3)).add("state_table", (0, 0), (1, 1))
    again.add("lane_pages", (0, 0, 1), (0, 1, 2), (0, 2, 3))
    seat = plans[0].entries["seats"][0]
    report, _ = outcome([*plans, failed, again.add("seats", type(seat)(
        lane=0, generation=1, scope=b"scope", state=1, depth=6, prompt=6, limit=12, last_token=5,
    ))], faults=Faults([Fault(2, "collect", Effect.NO_EFFECT)]))
    assert not report.races
    assert report.failures == 1


# -- the judge itself


def test_plans_without_results_are_judged_by_their_worst_case() -> None:
    host, plans = scene()
    builders = [*plans, host.plan().verify(0, 6, [1, 2]).decode(1, 6), host.plan().decode(0, 7).decode(1, 7)]
    judge = Judge()
    judge.put(LAYOUT)
    for builder in builders:
        judge.put(builder.build())
    assert not judge.finish().races
    judge = Judge()
    judge.put(LAYOUT)
    for builder in [*builders[:2], host.plan().decode(0, 7).snapshot(8, 2).decode(1, 7)]:
        judge.put(builder.build())
    assert set(judge.finish().kinds) == {"target_in_use"}


def test_a_plan_that_stands_for_many_steps_is_judged_whole() -> None:
    host, plans = scene()
    judge, mock = Judge(), MockExecutor(fast_forward=True)
    executor = Recorder(mock, judge)
    executor.attach(LAYOUT)
    executor.collect(executor.launch(plans[0].build()))
    many = host.plan(repeat=4).decode(0, 6).decode(1, 6)
    executor.collect(executor.launch(many.build()))
    executor.collect(executor.launch(decodes(host, 10).build()))
    report = judge.finish()
    assert not mock.violations
    assert not report.races
    assert report.steps == 6


def test_the_report_is_plain_data() -> None:
    report, _ = outcome(CASES[0].plans())
    data = report.as_dict()
    assert data["kinds"]["moves_overlap"] == 1
    assert data["races"][0]["kind"] == "moves_overlap"
    assert str(report.races[0]).startswith("moves_overlap: step 2: moves")
    assert data["pairs"] >= 1 and data["commands"] > 5


def test_bytes_are_those_of_the_entry() -> None:
    space = Space(LAYOUT)
    assert space.describe(*space.rows(3, 1, 3)) == "bytes 130..149, page place 3 rows 1..2, state place 40"
    assert space.describe(*space.of(STATE, 0)).endswith("state place 0")


@pytest.mark.parametrize("dcp", [1, 2, 3])
def test_places_of_both_kinds_meet_where_their_bytes_do(dcp: int) -> None:
    space = Space(layout_of(small_shape(dcp=dcp)))
    for place in range(space.states):
        low, high = space.of(STATE, place)
        overlap = [p for p in range(space.pages)
                   if max(space.of(PAGE, p)[0], low) < min(space.of(PAGE, p)[1], high)]
        assert list(space.under(STATE, place)) == overlap
        assert all(place in space.under(PAGE, page) for page in overlap)
    pages = np.array([2, 5], np.int32)
    assert space.whole_pages(pages).tolist() == [list(space.of(PAGE, page)) for page in pages.tolist()]
    assert space.whole_pages(pages).tolist() == [list(space.rows(page, 0, space.span)) for page in pages.tolist()]
    assert space.of(PAGE, 1) == (40 * dcp, 80 * dcp)
