"""ACC-1: a request that waits owns nothing: a state is taken at admission only, and every way out of the queue gives
everything back. (There is no queue limit to drop a request; abort, deadline and refusal are the exits.)"""

from __future__ import annotations

import pytest

from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, text, what_is_wrong


def waiting() -> Scene:
    """The tree owns a checkpoint at 64; R0 holds the pages that R2, who shares 64 tokens, would need."""
    policy = Policy(max_running=4, steps_in_flight=0, chunk_ends=False, prompt_ends=False, answer_ends=False)
    scene = Scene(states=4, pages=24, policy=policy)
    scene.serve("base", cached(65), 1, hints=(64,))
    assert scene.checkpoints(cached(65)) == [64]
    pages = scene.arena.room_pages() - 10
    scene.submit("R0", text("R0", pages * 16 - 16), 12)
    scene.step()
    scene.submit("R2", diverge(cached(64), "R2", 200), 4, deadline=50.0)
    for _ in range(4):
        scene.step()
        owners(scene)
        assert scene.jobs["R2"] in scene.core.queue
    return scene


def owners(scene: Scene) -> None:
    """One owner a state: the tree's checkpoints and one for each running request."""
    usage, counters = scene.arena.usage(), scene.tree.counters()
    assert usage.live_states == counters.checkpoints + scene.core.lanes.running
    scene.verify()


def leave(how: str) -> None:
    scene = waiting()
    if how == "abort":
        scene.engine.abort("R2")
    elif how == "deadline":
        scene.now = 100.0
    scene.run()
    owners(scene)
    assert scene.reasons["R2"] == (how if how != "admission" else "length")
    if how == "admission":
        assert scene.hit("R2") == 64
    scene.settle()
    assert scene.arena.usage().live_states == scene.tree.counters().checkpoints == 1


WAYS = ("admission", "abort", "deadline")


def scenario() -> None:
    for how in WAYS:
        leave(how)


@pytest.mark.parametrize("how", WAYS)
def test_every_exit_returns_everything(how: str) -> None:
    leave(how)


def test_a_fork_before_admission_fails() -> None:
    with plant.fork_before_admission():
        assert what_is_wrong(scenario)


def test_a_lock_kept_by_a_refused_match_fails() -> None:
    with plant.refused_keeps_its_lock():
        assert what_is_wrong(scenario)
