"""The clairvoyant bound: what no eviction schedule can beat at a given pool, and a schedule that comes close.

The model is that of arrival-order replay: requests in file order, running ones take no memory, checkpoints on the grid,
KV held for checkpoints. Whoever knows all requests in advance still has only so many bytes between two of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from k3mem.replay.arrival import run_arrival
from k3mem.replay.bound.belady import run_belady
from k3mem.replay.bound.prices import Bound, Costs, clip, minimise, upper_bound
from k3mem.replay.bound.schedule import Schedule, feasible
from k3mem.replay.bound.visits import Visits, collect, visits
from k3mem.replay.options import Progress, ReplayOptions
from k3mem.replay.report import gap_closed
from k3mem.replay.trace import Trace
from k3mem.shape import Shape

__all__ = ["Bound", "Costs", "Schedule", "Visits", "against_bound", "clip", "collect", "costs_of", "feasible",
           "grid_of", "minimise", "run_belady", "run_bound", "upper_bound", "visits"]


def grid_of(trace: Trace, shape: Shape) -> int:
    """Tokens between depths at which arrival-order replay keeps checkpoints."""
    return math.lcm(trace.block, shape.grid)


def costs_of(shape: Shape, grid: int, pool_bytes: int) -> Costs:
    """What a pool holds in arrival-order replay: it is net of the sinks, and its end is aligned as the arena's."""
    sinks = shape.page_bytes + shape.state_bytes
    usable = (pool_bytes + sinks) // shape.align * shape.align - sinks
    return Costs(usable, shape.state_bytes, grid // shape.page_span * shape.page_bytes)


def run_bound(trace: Trace, shape: Shape, options: ReplayOptions, progress: Progress) -> dict[str, Any]:
    """The bound of a trace at `options.pool_bytes` (0: unlimited), and a feasible schedule's hits. JSON-ready; tokens
    and shares of all input tokens. Seconds for 25,000 requests; O(sections) memory beside the trace."""
    began = time.perf_counter()
    found = visits(trace, grid_of(trace, shape), options.limit)
    total, unlimited = int(found.input.sum()), int(found.known.sum()) * found.grid
    bound = reached = unlimited
    gap, steps = 0.0, 0
    if options.pool_bytes:
        costs = costs_of(shape, found.grid, options.pool_bytes)
        found = clip(found, costs.deepest)
        solved = minimise(found, costs, steps=lambda done, tokens: progress(done, max(done, 40)))
        # Hits are whole units; the rest is above the rounding of a sum of floats.
        bound = math.floor(solved.tokens / found.grid * (1 + 1e-9) + 1e-6) * found.grid
        gap, steps = solved.gap, solved.steps
        reached = int(feasible(found, costs, solved).resume.sum()) * found.grid
    return {
        "requests": found.requests, "input_tokens": total, "grid": found.grid,
        "unlimited_tokens": unlimited, "bound_tokens": bound, "feasible_tokens": reached,
        "unlimited_hit_rate": unlimited / total, "bound_hit_rate": bound / total,
        "feasible_hit_rate": reached / total, "solver_gap": gap / total, "solver_steps": steps,
        "wall_seconds": time.perf_counter() - began,
    }


def against_bound(trace: Trace, shape: Shape, options: ReplayOptions, stats: Mapping[str, Any],
                  progress: Callable[[str], Progress]) -> dict[str, Any]:
    """What a report adds to the statistics of an arrival-order replay: `bound` (see `run_bound`), LRU's hit rate, from
    a replay of its own unless `stats` is one, and the share of the gap between the two that the policy closes."""
    bound = run_bound(trace, shape, options, progress("bound"))
    lru = stats if options.policy == "lru" else run_arrival(trace, shape, replace(options, policy="lru"),
                                                            progress("lru"))
    rate, base = (some["hit_tokens"] / some["input_tokens"] for some in (stats, lru))
    return {"bound": bound, "lru_hit_rate": base, "gap_closed": gap_closed(rate, base, bound["bound_hit_rate"])}
