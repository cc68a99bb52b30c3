"""RADIX-12: a checkpoint is valid iff its whole token prefix lies inside the common prefix; resuming from an older one
takes nothing from other branches."""

from __future__ import annotations

from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, what_is_wrong


def scenario() -> None:
    scene = Scene(states=30, pages=300)
    scene.serve("R1", cached(200), 1, hints=(64, 128, 192))
    first = [64, 128, 192]
    assert set(scene.checkpoints(cached(200))) >= set(first)
    for id, prompt, hit in (("R2", diverge(cached(150), "B", 40), 128), ("R3", cached(200), 192),
                            ("R4", diverge(cached(70), "C", 40), 64)):
        assert scene.serve(id, prompt) == hit, id
        assert set(scene.checkpoints(cached(200))) >= set(first), f"{id} deleted a checkpoint of another branch"
    scene.settle()


def test_each_branch_resumes_from_its_own_deepest() -> None:
    scenario()


def test_a_match_beyond_the_shared_part_fails() -> None:
    with plant.loose_match():
        assert what_is_wrong(scenario)


def test_a_resume_that_deletes_deeper_checkpoints_fails() -> None:
    with plant.resume_deletes_deeper():
        assert what_is_wrong(scenario)
