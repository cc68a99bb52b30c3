"""RADIX-3: resume depth == state depth, and at least one token is computed, also when everything is known."""

from __future__ import annotations

from k3mem.plan import Row
from tests.cases import plant
from tests.cases.helpers import Scene, cached, rows_of, what_is_wrong


def scenario() -> None:
    scene = Scene()
    scene.serve("R1", cached(128), 1, hints=(64,))
    assert scene.checkpoints(cached(128)) == [64, 128]
    for id, length, hit in (("R2", 128, 64), ("R3", 64, 0), ("R4", 65, 64)):
        first = len(scene.plans)
        assert scene.serve(id, cached(length)) == hit, id
        rows = [row for plan in scene.plans[first:] for row in rows_of(plan, Row.PREFILL)]
        assert [(start, count) for _, start, count in rows] == [(hit, length - hit)], id
    scene.settle()


def test_a_whole_prompt_hit_computes_its_last_tokens() -> None:
    scenario()


def test_a_hit_to_the_very_end_fails() -> None:
    with plant.whole_prompt_hits():
        assert what_is_wrong(scenario)


def test_a_hit_shortened_for_kv_alone_fails() -> None:
    with plant.hit_reduced_for_kv_only():
        assert what_is_wrong(scenario)


def test_the_shortened_hit_gives_wrong_tokens() -> None:
    scene = Scene()
    scene.serve("R1", cached(128), 1, hints=(64,))
    with plant.hit_reduced_for_kv_only():
        scene.serve("R2", cached(128), 8)
    assert scene.got["R2"] != scene.expected["R2"]


@plant.needs_mutants
def test_a_match_beyond_its_limit_fails() -> None:
    assert plant.with_mutant(plant.LIMIT, f"{__name__}:scenario")
    assert plant.with_mutant(0, f"{__name__}:scenario") == ""
