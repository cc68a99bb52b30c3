"""SNAP-4: donate only what was written at that depth. An executor that exposes a row's final state only gets its rows
cut at every checkpoint."""

from __future__ import annotations

from k3mem.executors.mock import MockExecutor
from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, named, what_is_wrong


def scenario(capture: str = "final") -> None:
    scene = Scene(capture=capture)
    scene.serve("R1", cached(130))
    depths = [depth for plan in scene.plans for _, depth, _ in named(plan)]
    assert depths == [128]
    scene.verify()
    assert scene.serve("R2", diverge(cached(129), "B", 9)) == 128
    scene.settle()


def test_a_row_is_cut_where_only_its_end_can_be_captured() -> None:
    scene = Scene(capture="final")
    scene.serve("R1", cached(130))
    assert [plan.length.tolist() for plan in scene.plans if len(plan.tokens)] == [[128], [2]]
    scenario()


def test_a_capable_executor_takes_it_inside() -> None:
    for capture in ("grid", "any"):
        scene = Scene(capture=capture)
        scene.serve("R1", cached(130))
        assert [named(plan) for plan in scene.plans if len(plan.snapshots)] == [[(0, 128, 130)]]
        scenario(capture)


def test_a_target_that_was_never_filled_fails() -> None:
    with plant.all_of(plant.capture_ignored(), plant.interior_never_filled()):
        assert "differ" in what_is_wrong(scenario) or "poison" in what_is_wrong(scenario)


def test_a_target_that_was_not_written_stops_the_engine() -> None:
    with plant.all_of(plant.capture_ignored(), plant.interior_never_filled(admitted=True)):
        assert "Corrupted: step 1 did not write a prefill snapshot" in what_is_wrong(scenario)


def test_ignoring_the_profile_fails_by_itself() -> None:
    with plant.capture_ignored():
        assert "captures 'final' only" in what_is_wrong(scenario)


def test_a_scene_sees_an_executor_that_claims_too_much() -> None:
    with plant.interior_never_filled():
        scene = Scene(executor=MockExecutor(capture="any", strict_handout=False))
        scene.serve("R1", cached(130))
        assert scene.differences()
