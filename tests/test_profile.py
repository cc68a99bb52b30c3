"""Profiling: the stairs that an executor has are the stairs that a planner reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from k3mem.cli import app
from k3mem.executors.cost import CostModel, nominal
from k3mem.executors.mock import MockExecutor
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Result
from k3mem.profile import Bench, NotMeasured, measure
from k3mem.shape import Shape
from k3mem.spec import Stairs, best_budget, survivals
from k3mem.spec.surface import load

SHAPE = Shape("tiny", 640, 8, page_tokens=16, state_chunk=16, vocab_size=97, max_tokens=1 << 20, align=1,
              record_bytes=4)
COST = replace(nominal(), base=300.0, row=0.0, verify_token=1.0, verify_tile=16, context=0.5)
STAIRS = Stairs(bias=300.0, per_token=1.0, tile=16, per_context=0.5)


def sim(cost: CostModel = COST) -> SimExecutor:
    return SimExecutor(cost)


def test_the_stairs_of_a_cost_model_are_found() -> None:
    found = measure(SHAPE, sim, window=8, rows=(1, 4, 16), contexts=(0, 200))

    assert found.residual_us < 1e-6
    assert set(range(32, 129, 16)) <= set(found.surface.ends.tolist())
    counts = np.arange(9, 129)
    np.testing.assert_allclose(found.surface.step_us(16, counts, 5000), STAIRS.step_us(16, counts, 5000), rtol=1e-9)


def test_a_planner_with_it_chooses_as_with_the_true_surface() -> None:
    surface = measure(SHAPE, sim, window=8, rows=(1, 4, 16, 64), contexts=(0,)).surface
    rng = np.random.default_rng(0)
    for rows in (9, 20, 33, 64):
        s = survivals(rng.beta(1, 1, (rows, 7)), np.full(rows, 7, np.int32))
        assert best_budget(surface, s).budget == best_budget(STAIRS, s).budget


class Noisy(SimExecutor):
    """Steps take up to 1 % longer than they should, and one in twenty much longer."""

    rng = np.random.default_rng(1)
    late = 0.0

    def collect(self, ticket: Any) -> Result:
        result = super().collect(ticket)
        self.late += self.rng.random() * 3e-6 * (1 if self.rng.random() < 0.95 else 100)
        return replace(result, times=result.times + self.late)


def test_noise_below_the_tolerance_makes_no_risers() -> None:
    steep = replace(COST, verify_token=4.0)
    found = measure(SHAPE, lambda: Noisy(steep), window=8, rows=(1, 4, 16), contexts=(0,), repeat=5, tolerance=0.03)
    true = Stairs(bias=300.0, per_token=4.0, tile=16)
    counts = np.arange(33, 129)
    assert set(found.surface.ends.tolist()) <= {1, 8, *range(16, 129, 16)}
    np.testing.assert_allclose(found.surface.step_us(16, counts, 0), true.step_us(16, counts, 0), rtol=0.03)


def test_an_executor_without_a_clock_is_timed_from_outside() -> None:
    ticks = iter(range(10**6))
    found = measure(SHAPE, MockExecutor, window=4, rows=(1, 2), contexts=(0, 40), clock=lambda: next(ticks) * 1e-3)
    assert found.residual_us < 1e-6 and found.surface.levels == pytest.approx(1000.0)


def test_a_step_has_the_tokens_that_were_asked_for() -> None:
    bench = Bench(SHAPE, sim(), rows=3, depth=50, window=4)
    for tokens in (3, 4, 7, 12):
        point = bench.step(tokens)
        assert point.tokens == tokens and 3 * 50 <= point.context <= 3 * 70
    for tokens in (2, 13):
        with pytest.raises(ValueError, match="do not sum"):
            bench.step(tokens)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(ValueError, match="window >= 2"):
        measure(SHAPE, sim, window=1)
    with pytest.raises(NotMeasured, match="stands still"):
        measure(SHAPE, MockExecutor, window=4, rows=(1,), contexts=(0,), clock=lambda: 0.0)
    short = replace(SHAPE, max_tokens=60)
    with pytest.raises(NotMeasured, match="nothing could be planned"):
        measure(short, sim, window=8, rows=(1,), contexts=(40,), repeat=20)


@pytest.mark.parametrize("executor", ["sim", "mock"])
def test_the_command_writes_what_load_reads(tmp_path: Path, executor: str) -> None:
    out = tmp_path / "surface.json"
    result = CliRunner().invoke(app, ["profile", "--executor", executor, "--out", str(out), "--rows", "1,2", "--window",
                                      "4", "--context", "0"])
    assert result.exit_code == 0, result.output
    assert (load(out).step_us(2, np.array([2, 8]), 0) > 0).all()
    facts = json.loads(out.read_text())
    assert (facts["executor"], facts["window"], facts["shape"]) == (executor, 4, "kimi-k3-tp8")


@pytest.mark.parametrize("options", [["--executor", "none such"], ["--rows", "a"], ["--rows", "0"],
                                     ["--executor", "mock", "--cost", "x.toml"], ["--cost", "no such file"],
                                     ["--context", "-1"], ["--window", "1"]])
def test_wrong_arguments_are_told(tmp_path: Path, options: list[str]) -> None:
    result = CliRunner().invoke(app, ["profile", "--out", str(tmp_path / "x.json"), *options])
    assert result.exit_code == 2, result.output
