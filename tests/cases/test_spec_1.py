"""SPEC-1: after every step the state is that of the committed tokens, whether the step verified a window or not."""

from __future__ import annotations

import pytest

from k3mem.plan import Row
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, Script, text, what_is_wrong

STEPS = [(3, 2), (0, 0), (3, 3), (0, 0), (1, 0), (0, 0), (3, 1)]
"""(drafts, right ones) a step."""


def scenario(steps_in_flight: int = 1) -> None:
    script = Script({"R1": [*STEPS, *STEPS, *STEPS]})
    scene = Scene(policy=Policy(max_running=2, steps_in_flight=steps_in_flight), drafter=script, window=4)
    scene.submit("R1", text("R1", 20), 33)
    scene.until(lambda: scene.got["R1"])
    counts = []
    while scene.engine.has_work:
        before = len(scene.got["R1"])
        scene.step()
        scene.verify()
        counts.append(len(scene.got["R1"]) - before)
    assert [count for count in counts if count][:7] == [3, 1, 4, 1, 1, 1, 2]
    kinds = {Row(kind) for plan in scene.plans for kind in plan.kind.tolist()}
    assert kinds == {Row.PREFILL, Row.DECODE, Row.VERIFY}
    scene.settle()


@pytest.mark.parametrize("steps_in_flight", [0, 1, 2])
def test_windows_and_plain_steps_agree_on_the_state(steps_in_flight: int) -> None:
    scenario(steps_in_flight)


def test_speculation_changes_no_token() -> None:
    plain = Scene()
    plain.serve("R1", text("R1", 20), 33)
    fast = Scene(drafter=Script({"R1": STEPS}, rest=3), window=4)
    fast.serve("R1", text("R1", 20), 33)
    assert fast.got == plain.got and len(fast.plans) < len(plain.plans)


def test_a_fold_that_stops_at_the_first_row_fails() -> None:
    with plant.fold_stops_short():
        assert what_is_wrong(scenario)
