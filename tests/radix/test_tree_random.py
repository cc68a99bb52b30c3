"""Seeded random actors against the oracle, with check() and a whole comparison after every operation."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3mem.fuzz.alone.tree import World


@pytest.mark.parametrize("page", [1, 2, 4, 16])
@pytest.mark.parametrize(("ghosts", "superseded"), [(None, True), (12, True), (0, False)])
def test_random_actors_agree_with_the_oracle(page: int, ghosts: int | None, superseded: bool) -> None:
    for seed in range(4):
        World(seed, page, ghosts, superseded).run(120)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), page=st.sampled_from([1, 2, 3, 4, 16]), ghosts=st.sampled_from([None, 0, 7, 40]))
def test_any_seed_agrees_with_the_oracle(seed: int, page: int, ghosts: int | None) -> None:
    World(seed, page, ghosts, True).run(40)
