"""RADIX-1: a checkpoint's depth is its node's end, always: a state cannot be trimmed with the KV it came with."""

from __future__ import annotations

from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, text, what_is_wrong

R2 = diverge(cached(96), "B", 97)
"""193 tokens, so that 192 is the last grid depth below the prompt's end."""


def scenario() -> None:
    scene = Scene(page_tokens=1, pages=1200)
    scene.serve("R1", cached(129), hints=(64,))
    assert scene.checkpoints(cached(129))[:2] == [64, 128]
    assert scene.serve("R2", R2) == 64
    assert 192 in scene.checkpoints(R2)
    fork = scene.tree.info(scene.nodes(R2)[96])
    assert (fork.state, fork.children) == (-1, 2), "the fork is a tombstone"
    assert scene.serve("R3", [*cached(96), *text("X", 20)]) == 64
    scene.settle()


def test_a_fork_between_checkpoints_has_no_state() -> None:
    scenario()


def test_an_insert_trimmed_below_its_state_fails() -> None:
    with plant.published_at_most(96):
        assert what_is_wrong(scenario)


def test_a_trimmed_insert_shows_in_the_audit() -> None:
    scene = Scene(page_tokens=1, pages=1200)
    scene.serve("R1", cached(129), hints=(64,))
    with plant.published_at_most(96):
        scene.serve("R2", R2)
    assert scene.differences()
