"""PAGE-1: depth decides whether there is a prior state, not the length of the step: at depth 0 the state is zero."""

from __future__ import annotations

import pytest

from k3mem.plan import Row
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, rows_of, text, what_is_wrong

R2 = text("R2", 40)


def chunks(budget: int) -> list[int]:
    """R2 after R0 has used and left every state; the lengths of R2's chunks."""
    policy = Policy(token_budget=budget, max_running=2, steps_in_flight=0, caching=False)
    scene = Scene(states=2, pages=30, policy=policy)
    scene.submit("R0", text("R0", 70), 3)
    scene.submit("R0b", text("R0b", 30), 3)
    scene.run()
    if budget == 65:
        scene.submit("R1", text("R1", 64), 3)
    scene.submit("R2", R2, 5)
    first = len(scene.plans)
    while scene.engine.has_work:
        scene.step()
        scene.verify()
    scene.settle()
    lanes = {seat.lane for plan in scene.plans[first:] for seat in plan.seats if seat.prompt == 40}
    assert len(lanes) == 1
    return [n for plan in scene.plans[first:] for lane, _, n in rows_of(plan, Row.PREFILL) if lane in lanes]


def scenario() -> None:
    assert chunks(1) == [1] * 40
    assert chunks(39) == [39, 1]
    assert chunks(65) == [40]


@pytest.mark.parametrize(("budget", "lengths"), [(1, [1] * 40), (39, [39, 1]), (65, [40])])
def test_a_cold_prompt_starts_from_zero_however_short_its_first_chunk(budget: int, lengths: list[int]) -> None:
    assert chunks(budget) == lengths


def test_a_prompt_of_one_token_starts_from_zero() -> None:
    scene = Scene(states=1, pages=30, policy=Policy(caching=False, max_running=1))
    for i in range(3):
        scene.serve(i, text(f"P{i}", 1), 4)
    scene.settle()


def test_clearing_by_the_length_of_the_step_fails() -> None:
    with plant.single_tokens_are_decodes():
        assert what_is_wrong(scenario)
