"""RADIX-8: a shared prompt with unique ends gets a checkpoint at the grid depth below the place where they part."""

from __future__ import annotations

from k3mem.policy import Policy
from k3mem.radix import Kind
from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, what_is_wrong

PROMPTS = [diverge(cached(150), f"T{i}", 70) for i in range(8)]


def scenario() -> None:
    scene = Scene(states=40, pages=400)
    hits = [scene.serve(i, prompt, 1) for i, prompt in enumerate(PROMPTS)]
    assert hits == [0, 0] + [128] * 6
    second = scene.jobs[1].hit
    assert second is not None and (second.kv_match, second.hit, second.kind) == (150, 0, -1)
    assert second.causes == {"no_state": 128, "off_grid": 22, "never_seen": 70}
    stats = scene.engine.stats()
    assert stats["causes"]["no_state"] == 128, "what the second request lost shows"
    assert stats["created"]["branch"] == 1
    assert stats["hits_by_kind"] == {int(Kind.BRANCH): 6}
    scene.settle()


def test_the_second_request_plants_what_the_others_use() -> None:
    scenario()


def test_a_prompt_that_nobody_shares_plants_none() -> None:
    scene = Scene()
    scene.serve(0, PROMPTS[0], 1)
    scene.serve(1, diverge([], "other", 220), 1)
    assert "branch" not in scene.engine.stats()["created"]


def test_all_at_once_they_wait_for_one_prefill() -> None:
    scene = Scene(states=40, pages=400, policy=Policy(token_budget=64, max_running=16))
    for i, prompt in enumerate(PROMPTS):
        scene.submit(i, prompt, 1)
    scene.run()
    assert [scene.hit(i) for i in range(8)] == [0] + [128] * 7
    scene.settle()


def test_without_branch_checkpoints_it_fails() -> None:
    with plant.no_anchor(Kind.BRANCH):
        assert what_is_wrong(scenario)
