"""Failing steps: what is raised, what is left of the bytes, and what the next plan must be."""

from __future__ import annotations

from typing import Any

import pytest

from k3mem.errors import Effect, StepFailed
from k3mem.executors.mock import Fault, Faults, MockExecutor, MockTicket
from k3mem.plan import Seat
from tests.plans import Host, PlanBuilder, layout_of, run, small_shape

PROMPT = [5, 3, 8, 1, 9, 2]
SEEDS = range(6)


class Scene:
    """Step 1: lane 1 absorbs PROMPT, with a checkpoint at 4. Steps 2 and 3: decode, with moves and new pages."""

    def __init__(self, seed: int, fault: Fault) -> None:
        self.executor = MockExecutor(seed, faults=Faults([fault]))
        layout = layout_of(small_shape())
        self.executor.attach(layout)
        self.host = Host(layout)
        first = self.host.plan()
        self.state = self.host.seat(first, 1, prompt=6, limit=12)
        self.pages = [entry[2] for entry in first.entries["lane_pages"]]
        self.checkpoint = self.host.new_state(first, zero=False)
        self.tables = first.entries
        run(self.executor, first.prefill(1, 0, PROMPT, True).snapshot(4, self.checkpoint))

    def second(self) -> PlanBuilder:
        plan = self.host.plan()
        plan.add("moves", (0, 0, self.pages[2], 40)).add("page_table", (self.pages[2], 40))
        return plan.decode(1, 6)

    def resync(self) -> PlanBuilder:
        """Lane 2 resumes at the checkpoint, on the first page; everything else is forgotten."""
        plan = self.host.plan(resync=True)
        plan.add("page_table", (self.pages[0], self.pages[0])).add("state_table", (self.checkpoint, self.checkpoint))
        self.host.seat(plan, 2, prompt=6, limit=12, depth=4, checkpoint=self.checkpoint, shared=self.pages[:1])
        return plan.prefill(2, 4, PROMPT[4:], True)

    def fail(self) -> StepFailed:
        """Launch steps 2 and 3, step 2 fails at its collect."""
        ticket = self.executor.launch(self.second().build())
        self.executor.launch(self.host.plan().decode(1, 7).build())
        with pytest.raises(StepFailed) as caught:
            self.executor.collect(ticket)
        return caught.value

    def audit(self, depth: int, state: int) -> list[str]:
        return self.executor.audit([(b"scope", PROMPT, depth, state, self.pages)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("effect", list(Effect))
def test_a_failure_at_collect_says_its_effect(effect: Effect, seed: int) -> None:
    assert Scene(seed, Fault(2, "collect", effect)).fail().effect is effect


@pytest.mark.parametrize("seed", SEEDS)
def test_no_effect_leaves_all_bytes(seed: int) -> None:
    scene = Scene(seed, Fault(2, effect=Effect.NO_EFFECT))
    scene.fail()
    assert scene.audit(6, scene.state) == []
    assert scene.audit(4, scene.checkpoint) == []
    assert scene.executor.violations == []


@pytest.mark.parametrize("seed", SEEDS)
def test_unknown_poisons_what_the_failed_steps_write_and_nothing_else(seed: int) -> None:
    scene = Scene(seed, Fault(2, effect=Effect.UNKNOWN))
    scene.fail()
    memory = scene.executor.device.memory
    assert not memory.state_alive(scene.state)
    page = memory.pages[scene.pages[1]]
    assert page is not None
    assert [page.labels[row] == -1 for row in range(4)] == [False, False, True, True]
    assert memory.pages[40] is None
    assert scene.audit(4, scene.checkpoint) == []
    assert scene.executor.violations == []


@pytest.mark.parametrize("seed", SEEDS)
def test_contents_lost_poisons_everything(seed: int) -> None:
    scene = Scene(seed, Fault(2, effect=Effect.CONTENTS_LOST))
    scene.fail()
    assert all(page is None for page in scene.executor.device.memory.pages)
    assert scene.audit(4, scene.checkpoint)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("effect", [Effect.NO_EFFECT, Effect.UNKNOWN])
def test_a_resync_goes_on_from_what_is_left(effect: Effect, seed: int) -> None:
    scene = Scene(seed, Fault(2, effect=effect))
    scene.fail()
    (result,) = run(scene.executor, scene.resync())
    assert result.tokens.tolist() == scene.executor.fresh_output(b"scope", PROMPT, scene.tables["seats"][0].sampling, 1)
    assert scene.executor.violations == []


@pytest.mark.parametrize("seed", SEEDS)
def test_standing_on_damage_is_reported(seed: int) -> None:
    scene = Scene(seed, Fault(2, effect=Effect.UNKNOWN))
    scene.fail()
    plan = scene.host.plan(resync=True)
    plan.add("page_table", *[(page, page) for page in scene.pages]).add("state_table", (scene.state, scene.state))
    plan.add("seats", Seat(lane=1, generation=1, scope=b"scope", state=scene.state, depth=6, prompt=6, limit=12,
                           last_token=1))
    run(scene.executor, plan.add("lane_pages", *scene.tables["lane_pages"]).decode(1, 6))
    assert any("which is poison" in violation for violation in scene.executor.violations)


def test_the_plan_after_a_failure_must_be_a_resync() -> None:
    scene = Scene(0, Fault(2, effect=Effect.NO_EFFECT))
    scene.fail()
    scene.executor.launch(scene.host.plan().decode(1, 6).build())
    assert "no resync" in scene.executor.violations[0]


def test_a_dropped_ticket_is_not_collected() -> None:
    scene = Scene(0, Fault(2))
    ticket = scene.executor.launch(scene.second().build())
    later = scene.executor.launch(scene.host.plan().decode(1, 7).build())
    for expected in (ticket, later):
        with pytest.raises(StepFailed):
            scene.executor.collect(expected)
    assert "out of launch order" in scene.executor.violations[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("effect", list(Effect))
def test_a_failure_at_launch_leaves_earlier_steps_collectable(effect: Effect, seed: int) -> None:
    scene = Scene(seed, Fault(3, "launch", effect))
    ticket: MockTicket = scene.executor.launch(scene.second().build())
    with pytest.raises(StepFailed) as caught:
        scene.executor.launch(scene.host.plan().decode(1, 7).build())
    assert caught.value.effect is effect
    assert scene.executor.collect(ticket).accepted.tolist() == [1]
    assert scene.executor.violations == []


def test_faults_are_the_same_for_the_same_seed() -> None:
    def struck(seed: int) -> list[Any]:
        faults = Faults(rate=0.3, seed=seed)
        return [faults.strike(step) for step in range(50)]

    assert struck(1) == struck(1) != struck(2)
    assert 0 < sum(fault is not None for fault in struck(1)) < 50
