"""The verify planner: exact on exact confidences, lossless by construction, worth it on late ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.shared import shared
from bench.verify import ERRORS, brute_force, gains, main, read
from k3mem.spec import Stairs, Surface, Treads, VerifyPlanner, assign, best_budget, survivals
from k3mem.types import Float64, Int32, Int64

SURFACE = shared() / "spec" / "surface.json"
needs_surface = pytest.mark.skipif(not SURFACE.exists(), reason=f"{SURFACE} is absent: set K3MEM_SHARED")

numbers = st.floats(0.0, 50.0)
stairs = st.builds(Stairs, bias=st.floats(1.0, 2000.0), per_row=numbers, per_token=numbers, tile=st.integers(1, 40),
                   per_context=st.floats(0.0, 2.0))


@st.composite
def treads(draw: st.DrawFn) -> Treads:
    """Levels that rise, and some that fall: kernels do that."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=12))
    levels = draw(st.lists(st.floats(10.0, 500.0), min_size=len(lengths), max_size=len(lengths)))
    return Treads(ends=np.cumsum(lengths), levels=np.array(levels), per_row=draw(numbers))


@st.composite
def rows_of(draw: st.DrawFn, most_rows: int, most: int) -> tuple[Float64, Int32]:
    """([rows, most] confidences, [rows] drafts offered)."""
    rows, drafts = draw(st.integers(1, most_rows)), draw(st.integers(1, most))
    chance = st.one_of(st.sampled_from((0.0, 0.5, 1.0)), st.floats(0.0, 1.0))
    confidence = draw(st.lists(chance, min_size=rows * drafts, max_size=rows * drafts))
    offered = draw(st.lists(st.integers(0, drafts), min_size=rows, max_size=rows))
    return np.array(confidence).reshape(rows, drafts), np.array(offered, np.int32)


@settings(max_examples=150, deadline=None)
@given(surface=st.one_of(stairs, treads()), drawn=rows_of(4, 3), context=st.integers(0, 10_000))
def test_the_best_budget_is_that_of_all_prefix_closed_choices(
        surface: Surface, drawn: tuple[Float64, Int32], context: int) -> None:
    confidence, offered = drawn
    rows = len(offered)

    found = best_budget(surface, survivals(confidence, offered), context)

    worth = {}
    for kept in itertools.product(*(range(k + 1) for k in offered.tolist())):
        expected = sum(1 + np.cumprod(confidence[i, :k]).sum() for i, k in enumerate(kept))
        us = surface.step_us(rows, np.array([rows + sum(kept)]), context)[0]
        worth[kept] = expected / us
    assert found.worth == pytest.approx(max(worth.values()), rel=1e-12)
    chosen = tuple(assign(survivals(confidence, offered), found.budget).tolist())
    assert worth[chosen] == pytest.approx(found.worth, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(surface=st.one_of(stairs, treads()), rows=st.integers(1, 200), most=st.integers(1, 9), seed=st.integers(0, 99))
def test_edges_alone_give_the_budget_that_all_counts_give(surface: Surface, rows: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    survival = survivals(rng.random((rows, most)), rng.integers(0, most + 1, rows).astype(np.int32))

    assert best_budget(surface, survival, 5) == brute_force(surface, survival, 5)


@given(drawn=rows_of(6, 5), budget=st.integers(0, 40))
def test_windows_are_prefixes_that_sum_to_the_budget_and_survive_likeliest(
        drawn: tuple[Float64, Int32], budget: int) -> None:
    confidence, offered = drawn
    s = survivals(confidence, offered)

    kept = assign(s, budget)

    assert kept.sum() == min(budget, offered.sum())
    assert (kept <= offered).all() and (kept >= 0).all()
    inside = np.arange(s.shape[1]) < kept[:, None]
    left_out = s[~inside & (s >= 0)]
    assert not len(left_out) or not kept.any() or s[inside].min() >= left_out.max()


class Counting:
    """A surface that counts what it is asked."""

    def __init__(self, surface: Surface) -> None:
        self.surface, self.asked = surface, 0

    def step_us(self, rows: int, tokens: Int64, context: int) -> Float64:
        self.asked += len(tokens)
        return self.surface.step_us(rows, tokens, context)

    def edges(self, first: int, last: int) -> Int64:
        return self.surface.edges(first, last)


def test_below_the_first_stair_everything_is_verified_without_planning() -> None:
    counting = Counting(Stairs(bias=300.0, per_token=1.0, tile=64))
    planner = VerifyPlanner(counting, 8, learn=False)
    offered = np.full(8, 7, np.int32)
    hopeless = np.full((8, 7), 0.01)

    assert planner.choose(hopeless, offered, 0).tolist() == offered.tolist()
    assert counting.asked == 2  # both ends of the one tread
    more = np.full(9, 7, np.int32)
    assert planner.choose(np.full((9, 7), 0.01), more, 0).sum() == 64 - 9


def test_without_a_table_everything_is_verified() -> None:
    offered = np.array([3, 0, 7], np.int32)
    assert VerifyPlanner(None, 8).choose(np.zeros((3, 7)), offered, 0).tolist() == offered.tolist()


def test_rows_without_drafts_verify_none() -> None:
    planner = VerifyPlanner(Stairs(bias=1.0, per_token=1.0), 4)
    assert planner.choose(np.zeros((3, 0)), np.zeros(3, np.int32), 0).tolist() == [0, 0, 0]


def test_a_late_budget_comes_from_reports_that_old_and_windows_from_the_present() -> None:
    planner = VerifyPlanner(Stairs(bias=10.0, per_token=1.0), 5, late=2, learn=False)
    offered = np.full(64, 4, np.int32)
    good, bad = np.full((64, 4), 0.99), np.full((64, 4), 0.1)

    kept = [planner.choose(c, offered, 0).sum() for c in (bad, bad, bad, good, good)]

    assert kept[:2] == [256, 256]  # nobody has reported yet
    assert kept[2] == kept[3] == kept[4] < 64  # what was bad two steps ago
    mixed = np.where(np.arange(64)[:, None] < 4, 0.99, 0.1)
    windows = planner.choose(mixed, offered, 0)
    assert windows[:4].sum() == min(16, windows.sum())


def test_a_planner_learns_that_its_drafter_brags() -> None:
    rng = np.random.default_rng(3)
    surface, offered = Stairs(bias=50.0, per_token=1.0, tile=8), np.full(128, 7, np.int32)
    planner, plain = VerifyPlanner(surface, 8), VerifyPlanner(surface, 8, learn=False)
    said = np.full((128, 7), 0.9)
    before = planner.choose(said, offered, 0).sum()

    for _ in range(30):
        kept = planner.choose(said, offered, 0)
        right = np.minimum((np.cumprod(rng.random((128, 7)) < 0.4, axis=1)).sum(1), kept)
        planner.accepted(said, kept, right.astype(np.int32))

    true = best_budget(surface, survivals(np.full((128, 7), 0.4), offered)).budget
    after = planner.choose(said, offered, 0).sum()
    assert before == plain.choose(said, offered, 0).sum()
    assert abs(int(after) - true) <= 8 < int(before) - true


def test_a_planner_learns_that_its_surface_is_too_steep() -> None:
    surface, offered = Stairs(bias=100.0, per_token=4.0, tile=8), np.full(64, 7, np.int32)
    true = Stairs(bias=400.0, per_token=0.25, tile=8)
    planner, chances = VerifyPlanner(surface, 8), np.full((64, 7), 0.6)
    before = int(planner.choose(chances, offered, 0).sum())

    for tokens in range(64, 513, 8):
        for _ in range(4):
            planner.took(64, tokens, 0, float(true.step_us(64, np.array([tokens]), 0)[0]))

    after = int(planner.choose(chances, offered, 0).sum())
    assert before < after
    best = best_budget(true, survivals(chances, offered))
    got = (64 + survivals(chances, offered)[:, :][np.arange(7) < planner.choose(chances, offered, 0)[:, None]].sum())
    assert got / true.step_us(64, np.array([64 + after]), 0)[0] >= 0.97 * best.worth


@pytest.mark.parametrize(("window", "late"), [(0, 0), (4, -1)])
def test_a_planner_refuses_what_makes_no_sense(window: int, late: int) -> None:
    with pytest.raises(ValueError, match="window >= 1"):
        VerifyPlanner(None, window, late=late)


def test_rows_wider_than_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match="window is 4"):
        VerifyPlanner(None, 4).choose(np.zeros((2, 4)), np.full(2, 4, np.int32), 0)


@needs_surface
def test_late_and_miscalibrated_confidences_are_worth_most_of_exact_ones() -> None:
    surface, window, draws = read(SURFACE)
    least = {"chat": 0.60, "math": 0.18}
    for regime, numbers in draws.items():
        found = gains(surface, window, numbers, 256, 30, 1)
        assert min(found[f"late {error}"] for error in ERRORS) >= least[regime], (regime, found)


@needs_surface
@pytest.mark.parametrize("tile", [16, 64, 192])
def test_no_batch_is_slower_than_verifying_everything(tile: int) -> None:
    surface, window, draws = read(SURFACE)
    assert isinstance(surface, Stairs)
    surface = Stairs(bias=surface.bias, per_row=surface.per_row, per_token=surface.per_token, tile=tile)
    for numbers in draws.values():
        for rows in (1, 2, 3, 5, 8, 9, 12, 14, 17, 24, 25, 33, 40, 57, 100, 200):
            found = gains(surface, window, numbers, rows, 60, 2)
            assert min(found.values()) >= -0.01, (tile, rows, found)


@needs_surface
def test_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--surface", str(SURFACE), "--steps", "4"]) == 0
    out = capsys.readouterr().out
    assert "budgets equal to brute force: 32 of 32" in out and "chat" in out and "math" in out
    assert main(["--surface", "no such file"]) == 2
