"""Slow oracles of the clairvoyant bound: everything from prefixes, unit by unit, no sections and no prices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from k3mem.replay.bound import Costs, Schedule, Visits, collect

GRID = 64
Path = tuple[int, ...]
"""A request's units by id; equal ids at equal places need not be equal prefixes."""


def visits_of(paths: Sequence[Path]) -> Visits:
    return collect(((np.array(path, np.int32), len(path) * GRID + 1) for path in paths), 1, GRID)


def last_visitors(paths: Sequence[Path]) -> list[list[int]]:
    """Per request: who was the last before it at each unit of its path that is known."""
    seen: dict[Path, int] = {}
    out = []
    for t, path in enumerate(paths):
        prefixes = [path[: d + 1] for d in range(len(path))]
        out.append([seen[prefix] for prefix in prefixes if prefix in seen])
        seen.update(dict.fromkeys(prefixes, t))
    return out


def exact_program(paths: Sequence[Path], costs: Costs) -> float:
    """Tokens of the linear program, stated unit by unit: x[t, d] says how much t resumes at d; KV of unit u is held
    from its last visitor to t as far as t resumes at u or deeper."""
    optimize = pytest.importorskip("scipy.optimize")
    columns, saved, owner = [], [], []
    for t, last in enumerate(last_visitors(paths)):
        for depth in range(1, min(len(last), costs.deepest) + 1):
            column = np.zeros(max(1, len(paths) - 1))
            for visitor in last[:depth]:
                column[visitor:t] += costs.unit
            column[last[depth - 1] : t] += costs.state
            columns.append(column)
            saved.append(depth * GRID)
            owner.append(t)
    if not columns:
        return 0.0
    slots = np.stack(columns, axis=1)
    one = np.zeros((len(paths), len(columns)))
    one[owner, np.arange(len(columns))] = 1
    done = optimize.linprog(-np.array(saved, float), A_ub=np.vstack([slots / costs.capacity, one]),
                            b_ub=np.ones(len(slots) + len(paths)), method="highs")
    assert done.status == 0, done.message
    return float(-done.fun)


def exact_by_sections(visits: Visits, costs: Costs) -> float:
    """Tokens of the same program by its dual in cumulated prices, which is sparse: for slices of real traces."""
    optimize, sparse = (pytest.importorskip(f"scipy.{name}") for name in ("optimize", "sparse"))
    n, options = visits.requests, len(visits.last)
    rows, columns, values = [], [], []
    for t in range(n):
        above = 0
        for i in range(visits.first[t], visits.first[t + 1]):
            kv = (visits.depth[i] - above) * costs.unit / costs.capacity
            above = visits.depth[i]
            for deeper in range(i, visits.first[t + 1]):
                weight = kv + (costs.state / costs.capacity if deeper == i else 0)
                rows += [deeper, deeper]
                columns += [t, visits.last[i]]
                values += [weight, -weight]
            rows.append(i)
            columns.append(n + t)
            values.append(1.0)
    cover = sparse.csr_matrix((values, (rows, columns)), shape=(options, 2 * n))
    order = sparse.hstack([sparse.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n)), sparse.csr_matrix((n - 1, n))])
    aim = np.concatenate(([-1.0], np.zeros(n - 2), [1.0], np.ones(n)))
    done = optimize.linprog(
        aim, A_ub=-sparse.vstack([cover, order]), b_ub=-np.concatenate((visits.depth * visits.grid, np.zeros(n - 1))),
        bounds=[(0, 0)] + [(0, None)] * (2 * n - 1), method="highs-ipm")
    assert done.status == 0, done.message
    return float(done.fun)


def best_schedule(paths: Sequence[Path], costs: Costs) -> int:
    """Tokens of the best schedule there is, by trying all: after each request any set of checkpoints that it computed
    or that were held, with the KV above them."""
    best: dict[frozenset[Path], int] = {frozenset(): 0}
    for path in paths:
        after: dict[frozenset[Path], int] = {}
        prefixes = [path[:d] for d in range(1, len(path) + 1)]
        for held, tokens in best.items():
            hit = max((len(prefix) for prefix in prefixes if prefix in held), default=0)
            might = sorted(held | set(prefixes[hit:]))
            for mask in range(1 << len(might)):
                keep = frozenset(prefix for bit, prefix in enumerate(might) if mask >> bit & 1)
                if held_bytes(keep, costs) <= costs.capacity:
                    after[keep] = max(after.get(keep, -1), tokens + hit * GRID)
        best = after
    return max(best.values())


def held_bytes(states: frozenset[Path], costs: Costs) -> int:
    kv = {prefix[:d] for prefix in states for d in range(1, len(prefix) + 1)}
    return len(states) * costs.state + len(kv) * costs.unit


def check_schedule(paths: Sequence[Path], costs: Costs, schedule: Schedule) -> None:
    """Every state held was computed or given, nothing resumes without one, and each slot holds what it says."""
    slots: list[set[Path]] = [set() for _ in paths]
    for t, last in enumerate(last_visitors(paths)):
        resume = int(schedule.resume[t])
        assert resume == max(schedule.states[t] & {resume}, default=0)
        for depth in schedule.states[t]:
            giver = last[depth - 1]
            assert schedule.resume[giver] <= depth or depth in schedule.states[giver]
            for slot in range(giver, t):
                slots[slot].add(paths[t][:depth])
    held = [held_bytes(frozenset(states), costs) for states in slots[:-1]]
    assert held == schedule.held.tolist()
    assert max(held, default=0) <= costs.capacity
