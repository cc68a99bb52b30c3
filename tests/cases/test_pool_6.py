"""POOL-6: ids that somebody keeps do not change by themselves: an allocation hands out arrays of the caller's own."""

from __future__ import annotations

import random

import numpy as np

from k3mem.policy import Policy
from k3mem.pool import Arena
from k3mem.types import Int32
from tests.cases import plant
from tests.cases.helpers import Scene, text, what_is_wrong


def retained() -> None:
    """Random allocations and frees, every handle kept beside a plain copy of it."""
    for seed in range(10):
        rng = random.Random(seed)
        arena = Arena(capacity_bytes=20_000, page_bytes=64, state_bytes=640, align=1)
        kept: list[tuple[Int32, Int32, list[int], list[int]]] = []
        live: list[tuple[Int32, Int32]] = []
        for _ in range(60):
            got = arena.alloc(rng.randrange(6), rng.randrange(2)) if rng.random() < 0.6 else None
            if got is not None:
                kept.append((*got, got[0].tolist(), got[1].tolist()))
                live.append(got)
            elif live:
                pages, states = live.pop(rng.randrange(len(live)))
                arena.free_pages(pages)
                arena.free_states(states)
            for pages, states, page_copy, state_copy in kept:
                assert (pages.tolist(), states.tolist()) == (page_copy, state_copy), "a kept handle changed"
        arena.check()


def cleared() -> None:
    """Several admissions in one plan, cancelled once: what each took is what it gives back, and clears."""
    scene = Scene(states=10, pages=80, policy=Policy(max_running=8))
    for turn in range(2):
        for i in range(5):
            scene.submit((turn, i), text(f"{turn}{i}", 30 + i), 4)
        plan = scene.engine.plan()
        assert plan is not None
        scene.engine.cancel(plan)
        scene.engine.check()
        scene.step()
        zeroed = scene.plans[-1].zero_states
        assert len(np.unique(zeroed)) == len(zeroed) == 5
        scene.run()
    scene.settle()


def test_handles_stay() -> None:
    retained()


def test_the_right_states_are_cleared() -> None:
    cleared()


def test_handles_that_are_views_fail() -> None:
    for scenario in (retained, cleared):
        with plant.handles_are_views():
            assert what_is_wrong(scenario)
