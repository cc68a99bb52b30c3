"""Random operations against the slow model, with `check()` and a comparison to the byte after each."""

from __future__ import annotations

import pytest

from k3mem.fuzz.alone.arena import GEOMETRIES, Actor


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", GEOMETRIES)
def test_random_operations_agree_with_the_byte_map(name: str, seed: int) -> None:
    actor = Actor(seed, GEOMETRIES[name])
    actor.run(300 if name == "k3" else 600)
    assert actor.seen >= {"alloc NOW", "alloc NO", "settled"}


def test_the_stress_reaches_every_outcome() -> None:
    actor = Actor(7, GEOMETRIES["non_multiples"])
    actor.run(1500)
    assert actor.seen >= {"alloc NOW", "alloc MOVES", "alloc NO", "made room", "cancelled moves", "settled"}
