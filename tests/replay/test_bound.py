"""The clairvoyant bound: sections of paths, the linear program, the best schedule by trying all, real traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as File

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3mem.policy import Policy
from k3mem.radix import Lru
from k3mem.replay.arrival import ArrivalReplay
from k3mem.replay.bound import Costs, clip, collect, costs_of, feasible, minimise, run_bound, upper_bound, visits
from k3mem.replay.bound.belady import POLICY, BeladyReplay
from k3mem.replay.options import ReplayOptions
from k3mem.replay.synth import synth
from k3mem.replay.trace import Trace, load
from k3mem.shape import Shape
from tests.replay.bound_model import (
    GRID,
    Path,
    best_schedule,
    check_schedule,
    exact_by_sections,
    exact_program,
    last_visitors,
    visits_of,
)

PATH = st.lists(st.integers(0, 2), max_size=4).map(tuple)
COSTS = st.builds(Costs, st.integers(1, 24), st.integers(1, 5), st.integers(1, 3))


def solve(paths: list[Path], costs: Costs) -> tuple[float, float]:
    """(bound, hit tokens of the feasible schedule), the schedule checked."""
    found = clip(visits_of(paths), costs.deepest)
    bound = minimise(found, costs, tolerance=1e-5)
    schedule = feasible(found, costs, bound)
    check_schedule(paths, costs, schedule)
    return bound.tokens, int(schedule.resume.sum()) * GRID


@given(st.lists(PATH, min_size=1, max_size=30))
def test_sections_are_runs_of_one_last_visitor(paths: list[Path]) -> None:
    found = visits_of(paths)
    for t, last in enumerate(last_visitors(paths)):
        mine = slice(found.first[t], found.first[t + 1])
        assert np.repeat(found.last[mine], found.length[mine]).tolist() == last
        assert (np.diff(found.last[mine]) < 0).all()
        assert found.known[t] == len(last)


def test_depth_is_counted_in_units_of_several_ids() -> None:
    """Three ids to a unit: paths that part inside a unit share only those before it; a prompt of whole units may not
    resume at its own end."""
    rows = [([1, 2, 3, 4, 5, 6], 61), ([1, 2, 3, 4, 5, 7], 61), ([1, 2, 3, 4, 5, 6], 60), ([1, 2, 3, 4, 5, 6, 8], 70)]
    found = collect(((np.array(ids, np.int32), tokens) for ids, tokens in rows), 3, 30)
    assert found.end.tolist() == [2, 2, 1, 2]
    assert [found.depth[a:b].tolist() for a, b in zip(found.first, found.first[1:], strict=False)] == [
        [], [1], [1], [1, 2]]
    assert found.last.tolist() == [0, 1, 2, 0]


@settings(deadline=None)
@given(st.lists(PATH, min_size=2, max_size=25), COSTS)
def test_the_bound_is_the_linear_programs_optimum(paths: list[Path], costs: Costs) -> None:
    exact = exact_program(paths, costs)
    bound, hit = solve(paths, costs)
    total = sum(len(path) * GRID + 1 for path in paths)
    assert exact - 1e-6 * total <= bound <= exact + 0.003 * total
    assert hit <= exact + 1e-6 * total


@settings(deadline=None)
@given(st.lists(PATH, min_size=2, max_size=25), COSTS, st.integers(0, 2**32 - 1))
def test_any_prices_bound_the_program(paths: list[Path], costs: Costs, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices = rng.exponential(60 / costs.capacity, len(paths) - 1) * (rng.random(len(paths) - 1) < 0.7)
    bound = upper_bound(visits_of(paths), costs, prices)
    assert bound >= exact_program(paths, costs) * (1 - 1e-9)


SMALL = st.lists(st.lists(st.integers(0, 1), max_size=3).map(tuple), min_size=2, max_size=7)


@settings(deadline=None, max_examples=60)
@given(SMALL, st.builds(Costs, st.integers(2, 12), st.integers(1, 3), st.integers(1, 2)))
def test_no_schedule_beats_the_bound_and_ours_is_one(paths: list[Path], costs: Costs) -> None:
    best = best_schedule(paths, costs)
    bound, hit = solve(paths, costs)
    assert hit <= best <= bound + 1e-6


@settings(deadline=None, max_examples=60)
@given(st.lists(PATH, min_size=2, max_size=60), st.integers(2, 12), st.integers(2, 24), st.integers(1, 4))
def test_lru_stays_below_the_bound(paths: list[Path], states: int, pages: int, state_pages: int) -> None:
    """The engine's own replay, byte for byte: a pool that holds so many states, or so many pages, beside its sinks."""
    shape = Shape("small", state_bytes=state_pages * GRID, token_bytes=1, page_tokens=GRID, align=1)
    pool = states * shape.state_bytes + pages * shape.page_bytes
    replay = ArrivalReplay(shape, Policy(eviction=Lru(superseded_first=()), ghost_tokens=None),
                           pool + shape.page_bytes + shape.state_bytes, GRID)
    for path in paths:
        ids = [depth * 3 + one for depth, one in enumerate(path)]
        replay.request(np.concatenate((np.repeat(np.array(ids, np.int32), GRID), np.full(1, 10**6, np.int32))))
    bound, _ = solve(paths, costs_of(shape, GRID, pool))
    assert replay.hit <= bound + 1e-6


@settings(deadline=None, max_examples=60)
@given(st.lists(PATH, min_size=2, max_size=60), st.integers(2, 12), st.integers(2, 24))
def test_belady_stays_below_the_bound_and_ends_consistent(paths: list[Path], states: int, pages: int) -> None:
    shape = Shape("small", state_bytes=2 * GRID, token_bytes=1, page_tokens=GRID, align=1)
    pool = states * shape.state_bytes + pages * shape.page_bytes
    prompts = [np.concatenate((np.repeat(np.array([3 * depth + one for depth, one in enumerate(path)], np.int32), GRID),
                               np.full(1, 10**6, np.int32))) for path in paths]
    free = ArrivalReplay(shape, POLICY, 1 << 40, GRID)
    uses = [free.request(prompt) // GRID for prompt in prompts]
    replay = BeladyReplay(shape, pool + shape.page_bytes + shape.state_bytes, GRID, visits_of(paths), uses)
    for prompt in prompts:
        replay.request(prompt)
    replay.cache.check()
    assert replay.hit <= solve(paths, costs_of(shape, GRID, pool))[0] + 1e-6
    wide = BeladyReplay(shape, 1 << 40, GRID, visits_of(paths), uses)
    assert [wide.request(prompt) // GRID for prompt in prompts] == uses


def test_belady_keeps_what_is_used_next() -> None:
    """Room for one of two one-unit prompts; LRU would keep the last."""
    shape = Shape("small", state_bytes=10 * GRID, token_bytes=1, page_tokens=GRID, align=1)
    paths = [(1,), (2,), (1,), (2,)]
    prompts = [np.repeat(np.array([*path, 9], np.int32), GRID)[: GRID + 1] for path in paths]
    replay = BeladyReplay(shape, 2 * shape.state_bytes + 2 * shape.page_bytes, GRID, visits_of(paths), [0, 0, 1, 1])
    assert [replay.request(prompt) for prompt in prompts] == [0, 0, GRID, 0]


def test_forks_are_seen_a_request_ahead() -> None:
    """Room for one state and the KV of one path: the shared prefix is kept from the first request on, though only the
    second shows that it is one."""
    paths = [(1, 2, 3), (1, 2, 4), (1, 2, 5)]
    assert solve(paths, Costs(capacity=12, state=10, unit=1)) == pytest.approx((4 * GRID, 4 * GRID), abs=0.05)


def test_a_state_above_the_resumed_depth_is_passed_on() -> None:
    """The second request resumes below the first unit and cannot compute its state again: both are held."""
    paths = [(1, 2), (1, 2), (1, 3)]
    found = visits_of(paths)
    costs = Costs(capacity=22, state=10, unit=1)
    schedule = feasible(found, costs, minimise(found, costs))
    check_schedule(paths, costs, schedule)
    assert schedule.resume.tolist() == [0, 2, 1]
    assert schedule.states == [frozenset(), {1, 2}, {1}]
    assert schedule.held.tolist() == [22, 11]


def test_nothing_fits_or_all_does() -> None:
    paths = [(1, 2, 3)] * 3
    assert solve(paths, Costs(capacity=10, state=10, unit=1)) == (0, 0)
    assert solve(paths, Costs(capacity=11, state=10, unit=1)) == pytest.approx((2 * GRID, 2 * GRID), abs=0.01)
    assert solve(paths, Costs(capacity=13, state=10, unit=1)) == (6 * GRID, 6 * GRID)
    assert solve([(1, 2)], Costs(capacity=100, state=10, unit=1)) == (0, 0)


def run(trace: Trace, pool_gb: float, limit: int | None = None) -> dict[str, float]:
    options = ReplayOptions(pool_bytes=int(pool_gb * 1e9), limit=limit)
    return run_bound(trace, Shape.kimi_k3(tp=8), options, lambda done, total: None)


def against_program(trace: Trace, pool_gb: float, limit: int, short: float) -> None:
    shape = Shape.kimi_k3(tp=8)
    got = run(trace, pool_gb, limit)
    costs = costs_of(shape, int(got["grid"]), int(pool_gb * 1e9))
    exact = exact_by_sections(clip(visits(trace, int(got["grid"]), limit), costs.deepest), costs)
    total = got["input_tokens"]
    assert 0.02 * total < exact < got["unlimited_tokens"] - 0.02 * total, "the pool is no constraint, or leaves nothing"
    assert exact - got["grid"] <= got["bound_tokens"] <= exact + 0.003 * total
    assert exact - short * total <= got["feasible_tokens"] <= got["bound_tokens"]


@pytest.mark.parametrize(("name", "pool_gb", "limit"), [
    ("mooncake_conversation_trace.jsonl.gz", 10, 1200), ("weka_cc_a_c32.arrivals.jsonl.gz", 20, 1000),
    ("weka_cc_a_c16.arrivals.jsonl.gz", 15, 800),
])
def test_slices_of_real_traces_against_the_exact_program(real: Callable[[str], File], name: str, pool_gb: float,
                                                         limit: int) -> None:
    against_program(load(real(name), limit=limit), pool_gb, limit, 0.04)


def test_a_synthetic_trace_against_the_exact_program() -> None:
    """Few and long sessions in a small pool: whole ones fit badly, so the schedule stays further below."""
    against_program(synth(0, 60, mix="flip"), 8, 1000, 0.08)


FIGURES = [
    ("mooncake_conversation_trace.jsonl.gz", 40, 28.28, 27.9),
    ("mooncake_conversation_trace.jsonl.gz", 80, 34.75, 34.59),
    ("mooncake_conversation_trace.jsonl.gz", 160, 37.34, 37.34), ("weka_cc_a_c32.arrivals.jsonl.gz", 40, 77.36, 76.1),
    ("weka_cc_a_c16.arrivals.jsonl.gz", 80, 96.39, 96.35),
]
"""(trace, pool in GB, the program's optimum by another solver in percent, what a schedule must reach)."""


@pytest.mark.parametrize(("name", "pool_gb", "exact", "reached"), FIGURES)
def test_whole_traces(real: Callable[[str], File], name: str, pool_gb: float, exact: float, reached: float) -> None:
    got = run(load(real(name)), pool_gb)
    assert 100 * got["bound_hit_rate"] == pytest.approx(exact, abs=0.03)
    assert reached - 0.01 <= 100 * got["feasible_hit_rate"] <= 100 * got["bound_hit_rate"]


def test_memory_without_limit_needs_no_prices() -> None:
    got = run(synth(0, 5, scale=0.1), 0)
    assert got["bound_tokens"] == got["feasible_tokens"] == got["unlimited_tokens"] > 0
