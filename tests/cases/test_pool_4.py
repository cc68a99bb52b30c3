"""POOL-4: bytes that change their role are cleared: unwritten rows of a page and a cold request's state read as zero.

(Poison of the mock stands for NaN. Refusing non-finite values at donation is a debug check of executors with floats.)
"""

from __future__ import annotations

from k3mem.plan import PAGE, STATE
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, text, what_is_wrong


def overlaps(scene: Scene) -> int:
    """Pairs of a page place and a state place that share bytes and were both in use at some time."""
    memory = scene.executor.device.memory
    pages = {place for plan in scene.plans for place in plan.page_table[:, 1].tolist()}
    states = {place for plan in scene.plans for place in plan.state_table[:, 1].tolist()}
    ranges = [memory.bytes_of(PAGE, place) for place in pages]
    return sum(low < high2 and low2 < high for low, high in ranges
               for low2, high2 in (memory.bytes_of(STATE, place) for place in states))


def scenario() -> None:
    scene = Scene(states=8, pages=12, policy=Policy(max_running=4, token_budget=256))
    for turn in range(3):
        for i in range(5):
            scene.submit(f"short {turn} {i}", text(f"s{turn}{i}", 69), 5)
        scene.run()
        scene.serve(f"long {turn}", text(f"l{turn}", 600), 6)
        scene.verify()
        scene.serve(f"five rows {turn}", text(f"f{turn}", 21), 2)
    assert overlaps(scene), "no bytes changed their role"
    scene.settle()


def test_bytes_between_the_kinds_are_clean_for_either() -> None:
    scenario()


def test_pages_handed_out_as_they_are_fail() -> None:
    with plant.pages_are_not_zeroed():
        assert what_is_wrong(scenario)


def test_states_handed_out_as_they_are_fail() -> None:
    with plant.states_are_not_zeroed():
        assert what_is_wrong(scenario)
