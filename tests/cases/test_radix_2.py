"""RADIX-2: the identical prompt again resumes from the largest grid depth strictly below its end, never from 0."""

from __future__ import annotations

from k3mem.radix import Kind
from tests.cases import plant
from tests.cases.helpers import Scene, cached, text, what_is_wrong


def scenario() -> None:
    scene = Scene()
    scene.serve("R1", cached(128), 1)
    assert scene.serve("R2", cached(128), 1) == 64
    assert scene.serve("R3", cached(128) + text("B", 9)) == 128
    assert scene.serve("R4", cached(127)) == 64
    assert scene.serve("R5", cached(128)) == 64
    scene.settle()


def test_an_identical_prompt_hits_whatever_its_length() -> None:
    scenario()


def test_every_length_around_the_grid_hits_when_repeated() -> None:
    scene = Scene(states=60, pages=900)
    for length in (65, 127, 128, 129, 191, 192, 193):
        prompt = text(f"P{length}", length)
        assert scene.serve(f"{length} cold", prompt) == 0
        assert scene.serve(f"{length} again", prompt) == (length - 1) // 64 * 64
    scene.settle()


def test_without_a_checkpoint_below_the_end_it_fails() -> None:
    with plant.no_anchor(Kind.PROMPT_END):
        assert what_is_wrong(scenario)
