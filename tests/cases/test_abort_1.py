"""ABORT-1: a checkpoint is optional: where no state is free and none may be evicted, it is skipped and counted."""

from __future__ import annotations

from k3mem.plan import STATE
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import HUGE, Scene, cached, diverge, text, what_is_wrong


def scenario() -> None:
    """Three states: R1's own, the checkpoint it stands on, and one under transfer."""
    policy = Policy(token_budget=64, max_running=4, steps_in_flight=0, chunk_ends=False, prompt_ends=False)
    scene = Scene(states=3, pages=30, state_bytes=HUGE, policy=policy)
    scene.serve("base", cached(64), 1)
    scene.serve("other", text("other", 64), 1)
    other = scene.nodes(text("other", 64))[64]
    state = scene.tree.info(other).state
    scene.tree.lock(other)
    scene.arena.lease(STATE, state)
    scene.submit("R1", diverge(cached(64), "R1", 150), 3, hints=(128, 192))
    scene.step()
    scene.verify()
    assert scene.hit("R1") == 64
    assert scene.core.metrics.skipped_snapshots == 1, "the boundary at 128 finds no state"
    assert scene.checkpoints(scene.line("R1")) == [64] and scene.core.lanes.running == 1
    scene.arena.unlease(STATE, state)
    scene.tree.unlock(other)
    scene.step()
    scene.verify()
    assert scene.checkpoints(scene.line("R1")) == [64, 192], "the next boundary finds one"
    assert scene.core.metrics.skipped_snapshots == 1
    scene.run()
    scene.settle()


def crowded() -> None:
    """One step with a prefix hit, two boundaries and a single spare state."""
    policy = Policy(token_budget=256, max_running=4, follow=False)
    scene = Scene(states=4, pages=40, state_bytes=HUGE, policy=policy)
    scene.serve("base", cached(64), 1)
    for id in ("R1", "R2"):
        scene.submit(id, diverge(cached(64), id, 90), 3, hints=(128,))
    scene.step()
    scene.verify()
    plan = scene.plans[-1]
    assert len(plan.restores) == 2 and len(plan.snapshots) == 1
    assert scene.core.metrics.skipped_snapshots == 1
    scene.run()
    scene.settle()


def test_no_room_for_a_checkpoint_is_counted_and_nothing_else() -> None:
    scenario()


def test_one_spare_state_serves_one() -> None:
    crowded()


def test_a_checkpoint_that_must_not_be_skipped_fails() -> None:
    with plant.a_target_is_a_must():
        assert "no state for a checkpoint" in what_is_wrong(scenario)


def test_one_spare_state_for_two_fails() -> None:
    with plant.one_spare_for_two():
        assert what_is_wrong(crowded)
