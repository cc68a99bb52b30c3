"""ABORT-5: a request that starts again from depth 0 starts from a zero state, whatever its state id held before; with a
checkpoint it starts from that."""

from __future__ import annotations

from k3mem.policy import Policy
from k3mem.sched import close
from tests.cases import plant
from tests.cases.helpers import Scene, text, what_is_wrong

PROMPT = text("R1", 75)


def resumed(caching: bool) -> list[int]:
    """R1 is retracted at depth 80 and comes back at once, alone; depths of its seats."""
    policy = Policy(max_running=2, steps_in_flight=0, caching=caching, answer_ends=False)
    scene = Scene(states=2, pages=40, policy=policy)
    scene.submit("R1", PROMPT, 30)
    scene.until(lambda: scene.core.lanes.launched[0] == 80)
    before = scene.seat("R1").state
    close.retract(scene.core, scene.seat("R1"))
    scene.step()
    assert scene.seat("R1").state == before, "the same state id comes back"
    scene.verify()
    scene.run()
    scene.settle()
    return [seat.depth for plan in scene.plans for seat in plan.seats]


def scenario() -> None:
    assert resumed(caching=False) == [0, 0]
    assert resumed(caching=True) == [0, 64]


def test_recompute_starts_from_zero_or_from_a_checkpoint() -> None:
    scenario()


def test_a_state_that_is_not_reset_fails() -> None:
    with plant.states_are_not_zeroed(lambda plan: plan.step > 1):
        assert what_is_wrong(scenario)
