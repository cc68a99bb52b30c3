"""API-1: a miss says what was known and why it was no use; hit and causes add up to the prompt.

A cause for states that are on the host only waits for that tier.
"""

from __future__ import annotations

from k3mem.request import Hit
from tests.cases import plant
from tests.cases.helpers import Scene, cached, text, what_is_wrong


def asked(scene: Scene, id: str, prompt: list[int]) -> Hit:
    """What `probe` says; the admission that follows must say the same."""
    hit = scene.engine.probe(prompt)
    scene.serve(id, prompt, 6)
    assert scene.jobs[id].hit == hit, "probe and admission disagree"
    assert hit.input == len(prompt) == hit.hit + sum(hit.causes.values())
    return hit


def scenario() -> None:
    scene = Scene(states=20, pages=200)
    assert scene.shape.grid == 64, "the unit of a hit"
    short = text("short", 50)
    assert asked(scene, "short", short).causes == {"never_seen": 50}
    again = asked(scene, "short again", short)
    assert (again.kv_match, again.hit) == (50, 0)
    assert again.causes == {"off_grid": 49, "last_token": 1}, "known, but below the grid"

    asked(scene, "A", cached(130))
    scene.tombstone(cached(130), 128)
    lost = asked(scene, "state evicted", cached(130))
    assert (lost.kv_match, lost.hit) == (130, 0)
    assert lost.causes == {"no_state": 128, "off_grid": 1, "last_token": 1}

    scene.cache.give_back(scene.tree.flush())
    asked(scene, "B", text("B", 130))
    while (victim := scene.tree.evict()) is not None:
        scene.cache.discard(victim)
    gone = asked(scene, "all evicted", text("B", 130))
    assert (gone.kv_match, gone.known, gone.hit) == (0, 130, 0)
    assert gone.causes == {"kv_evicted": 128, "off_grid": 1, "last_token": 1}

    scene.serve("exact", text("exact", 64), 1)
    exact = asked(scene, "exact again", text("exact", 64))
    assert (exact.kv_match, exact.hit, exact.causes) == (64, 0, {"last_token": 64})
    stats = scene.engine.stats()
    assert stats["input_tokens"] == stats["hit_tokens"] + sum(stats["causes"].values())
    scene.settle()


def test_every_miss_has_its_cause() -> None:
    scenario()


def test_another_tenants_prompt_is_named_as_such() -> None:
    scene = Scene()
    scene.serve("a", cached(130), salt="a")
    scene.serve("b", cached(130), salt="b")
    hit = scene.jobs["b"].hit
    assert hit is not None and (hit.hit, hit.causes) == (0, {"other_scope": 130})


def test_reporting_the_joint_hit_alone_fails() -> None:
    with plant.only_the_joint_hit():
        assert what_is_wrong(scenario)
