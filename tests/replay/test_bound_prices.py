"""The C core under the bound: its sums and its solver against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.replay.bound.prices import Costs, Program
from k3mem.replay.bound.visits import Visits
from k3mem.types import Float64
from tests.replay.bound_model import visits_of

COSTS = Costs(capacity=1, state=3, unit=2)


def random_visits(seed: int) -> Visits:
    rng = np.random.default_rng(seed)
    return visits_of([tuple(map(int, rng.integers(0, 2, rng.integers(0, 7)))) for _ in range(40)])


def matrix(visits: Visits) -> Float64:
    """[requests, options] A: bytes of an option at the requests where they end (+) and begin (-)."""
    out = np.zeros((visits.requests, len(visits.last)))
    for t in range(visits.requests):
        for i in range(visits.first[t], visits.first[t + 1]):
            parts = [(visits.last[i], COSTS.state)]
            parts += [(visits.last[j], visits.length[j] * COSTS.unit) for j in range(visits.first[t], i + 1)]
            for visitor, size in parts:
                out[t, i] += size
                out[visitor, i] -= size
    return out


@pytest.mark.parametrize("seed", range(5))
def test_costs_and_loads_are_one_matrix_and_its_transpose(seed: int) -> None:
    visits, rng = random_visits(seed), np.random.default_rng(seed)
    program, dense = Program(visits, COSTS), matrix(visits)
    d, x = rng.random(visits.requests), rng.random(len(visits.last))
    assert np.diff(visits.first).max() > 2, "some request has several sections"
    np.testing.assert_allclose(program.cost(d), dense.T @ d)
    np.testing.assert_allclose(program.load(x), dense @ x)


@pytest.mark.parametrize("seed", range(5))
def test_newton_steps_solve_the_system(seed: int) -> None:
    visits, rng = random_visits(seed), np.random.default_rng(seed)
    program, dense, n = Program(visits, COSTS), matrix(visits), visits.requests
    theta = 10 ** rng.uniform(-3, 3, len(visits.last))
    chain = 10 ** rng.uniform(-3, 3, n - 1)
    delta = program.each(theta) + 10 ** rng.uniform(-3, 3, len(program.asking))
    weights = np.diag(theta)
    for k, t in enumerate(program.asking):
        block = slice(visits.first[t], visits.first[t + 1])
        weights[block, block] -= np.outer(theta[block], theta[block]) / delta[k]
    steps = np.diff(np.eye(n), axis=0)
    system = dense @ weights @ dense.T + steps.T @ np.diag(chain) @ steps
    right = rng.normal(size=n)
    expected = np.concatenate(([0.0], np.linalg.solve(system[1:, 1:], right[1:])))
    got = program.solve(theta, delta, chain, right, rng.normal(size=n), 1e-10)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-8 * np.abs(expected).max())


def test_a_bound_at_given_prices_is_the_sum_that_defines_it() -> None:
    visits, rng = random_visits(9), np.random.default_rng(9)
    program, prices = Program(visits, COSTS), rng.exponential(2.0, visits.requests - 1)
    worth = visits.depth * visits.grid - matrix(visits).T @ np.concatenate(([0.0], np.cumsum(prices)))
    best = [max(0.0, *worth[visits.first[t] : visits.first[t + 1]], 0.0) for t in range(visits.requests)]
    assert program.bound(prices) == pytest.approx(sum(best) + prices.sum() * COSTS.capacity)
