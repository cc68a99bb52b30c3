"""SPEC-4: a window that reaches over a grid depth leaves a checkpoint there iff the committed tokens do."""

from __future__ import annotations

import pytest

from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, Script, cached, text, what_is_wrong

POLICY = Policy(interval=64, max_running=4)


def window_at_62(right: list[int]) -> Scene:
    """R1 decodes to depth 62, then verifies windows of 4 with this many right drafts."""
    script = Script({"R1": [(0, 0), (0, 0), *[(3, n) for n in right]]})
    scene = Scene(policy=POLICY, drafter=script, window=4)
    scene.submit("R1", cached(60), 10)
    scene.until(lambda: len(scene.got["R1"]) == 3)
    scene.drain()
    assert scene.core.lanes.launched[0] == 62
    return scene


def scenario() -> None:
    scene = window_at_62([0])
    line = scene.line("R1")
    scene.until(lambda: len(scene.got["R1"]) == 4)
    assert scene.plans[-1].snapshots[:, 1].tolist() == [64], "the window may pass it"
    assert scene.checkpoints(line) == [], "token 64 was rejected"
    target = scene.plans[-1].snapshots[0, 2]
    scene.verify()
    scene.until(lambda: len(scene.got["R1"]) > 4)
    assert scene.plans[-1].snapshots[:, 1:].tolist() == [[64, target]], "the same target once more"
    assert scene.checkpoints(line) == [64]
    scene.verify()
    scene.run()
    assert scene.serve("R2", [*line[:66], *text("X", 20)], 8) == 64
    scene.settle()


def test_a_rejected_depth_has_no_checkpoint_until_it_is_committed() -> None:
    scenario()


@pytest.mark.parametrize("right", [[0, 0, 0], [1, 0], [2, 3], [3], [0, 3], [0, 1, 2]])
def test_whatever_is_accepted_the_checkpoint_is_right(right: list[int]) -> None:
    scene = window_at_62(right)
    line = scene.line("R1")
    while scene.engine.has_work:
        scene.step()
        scene.verify()
        absorbed = 60 + len(scene.got["R1"]) - 1
        assert (64 in scene.checkpoints(line)) == (absorbed >= 64)
    assert scene.serve("R2", [*line[:66], *text("X", 20)], 8) == 64
    scene.settle()


def test_publishing_what_was_not_written_fails() -> None:
    with plant.unwritten_is_published():
        assert what_is_wrong(scenario)


def test_a_state_over_rejected_drafts_fails() -> None:
    with plant.snapshot_over_drafts():
        assert what_is_wrong(scenario)


def test_a_state_over_rejected_drafts_shows_in_the_audit() -> None:
    with plant.snapshot_over_drafts():
        scene = window_at_62([0])
        scene.until(lambda: len(scene.got["R1"]) == 4)
    assert scene.differences()
