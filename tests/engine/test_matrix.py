"""The engine on the mock over page size, compaction, steps in flight, free states and window: every output is that of
a fresh computation, every invariant holds, nothing is left behind.

The default run holds every pair of values. `K3MEM_FULL=1` runs every combination with three seeds, 2,000 requests
each, or as many as `K3MEM_FULL_REQUESTS` says.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from k3mem.policy import Policy
from tests.engine.pairwise import Cell, crossing, pairwise
from tests.world import STATE, TOKEN, World, shape

REQUESTS = 150
ROOMY = 24
AXES: dict[str, list[Any]] = {
    "page_tokens": [1, 16, 64],
    "eager": [False, True],
    "in_flight": [0, 1, 3],
    "states": [1, 2, 3, 4, ROOMY],
    "window": [1, 4],
}
MORE_AXES: dict[str, list[Any]] = {
    "split": [False, True],
    "capture": ["any", "grid", "final"],
    "interval": [None, 32],
    "fork_depths": [None, 2],
    "deterministic": [False, True],
    "path_cap": [None, 1],
    "budget": [7, 48, 400],
}
"""Of other choices the default run holds all pairs, too."""
PLAIN: Cell = {"split": False, "capture": "any", "interval": None, "fork_depths": None, "deterministic": False,
               "path_cap": None, "budget": 48}
FULL = os.environ.get("K3MEM_FULL") == "1"
FULL_REQUESTS = int(os.environ.get("K3MEM_FULL_REQUESTS", "2000"))
LONGEST, MOST_NEW = 120, 20
CELLS = pairwise(AXES | MORE_AXES)
seen: Counter[str] = Counter()
"""What happened over all cells of the default run."""


def world(cell: Cell, seed: int, requests: int, **more: Any) -> World:
    """A world of one cell. With few states its arena holds hardly more pages than its longest request needs; with
    `split` exactly `states` states are free, else states may also take what pages leave."""
    span, states = cell["page_tokens"], cell["states"]
    tokens = 1200 if states == ROOMY else LONGEST + MOST_NEW
    pages = -(-tokens // span) + cell["split"]  # the byte that rounds the share up may cost a page
    top = (states + 1) * STATE + (pages + 1) * span * TOKEN
    policy = Policy(
        token_budget=cell["budget"], max_running=6, steps_in_flight=cell["in_flight"], eager=cell["eager"],
        split=((states + 1) * STATE + 1) / top if cell["split"] else None, interval=cell["interval"],
        deterministic=cell["deterministic"], path_cap=cell["path_cap"], fork_depths=cell["fork_depths"],
    )
    return World(seed=seed, requests=requests, shape=shape(page_tokens=span), states=states, pages=pages,
                 policy=policy, window=cell["window"], capture=cell["capture"], longest=LONGEST, most_new=MOST_NEW,
                 **more)


def name(cell: Cell) -> str:
    return "-".join(f"{key[:2]}{value}" for key, value in cell.items())


@pytest.mark.parametrize("cell", CELLS, ids=name)
def test_every_output_is_that_of_a_fresh_computation(cell: Cell) -> None:
    done = world(cell, seed=CELLS.index(cell), requests=REQUESTS, audit_every=25).run()
    assert not done.failures
    for key, value in done.engine.stats().items():
        if isinstance(value, int):
            seen[key] += value
    if cell["states"] < 3 and cell["split"]:
        assert done.engine.scheduler.core.metrics.peak_running <= cell["states"]


def test_the_cells_hold_what_they_are_for() -> None:
    """After the cells: none of the paths that are hard to reach was left out."""
    if not seen:
        pytest.skip("needs the cells in the same process")
    for key in ("hits", "takeovers", "retractions", "aborts", "overlapped", "overruns", "move_count", "followers",
                "skipped_snapshots", "evicted", "duplicates", "resumed_tokens"):
        assert seen[key] > 0, key


def test_a_pair_of_any_two_axes_is_among_the_cells() -> None:
    axes = list((AXES | MORE_AXES).items())
    for i, (one, values) in enumerate(axes):
        for other, others in axes[i + 1 :]:
            met = {(cell[one], cell[other]) for cell in CELLS}
            assert met == {(a, b) for a in values for b in others}


@pytest.mark.skipif(not FULL, reason="every combination takes long: set K3MEM_FULL=1")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cell", crossing(AXES) if FULL else [], ids=name)
def test_the_full_crossing(cell: Cell, seed: int) -> None:
    done = world(cell | PLAIN, seed, FULL_REQUESTS, check_every=7, audit_every=199).run()
    assert not done.failures
