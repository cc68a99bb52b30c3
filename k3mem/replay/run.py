"""One replay by its options: the driver that they name, and what was asked for beside what came out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from k3mem.replay.options import Progress, ReplayOptions

if TYPE_CHECKING:
    from k3mem.replay.trace import Trace
    from k3mem.shape import Shape


def run(trace: Trace, shape: Shape, options: ReplayOptions, progress: Progress) -> dict[str, Any]:
    """Statistics for `report.build`. Raises what the driver raises."""
    began = time.perf_counter()
    if options.mode == "timed":
        from k3mem.replay.timed import run_timed as driver
    else:
        from k3mem.replay.arrival import run_arrival as driver
    stats = dict(driver(trace, shape, options, progress))
    stats.setdefault("wall_seconds", time.perf_counter() - began)
    stats |= {"trace": trace.name, "skipped": trace.skipped, "mode": options.mode, "shape": shape.name,
              "pool_bytes": options.pool_bytes, "split": options.split, "page_tokens": options.page_tokens,
              "policy": options.policy, "hints": list(options.hints), "seed": options.seed}
    if options.cost is not None:
        stats.setdefault("loop", options.loop)
        stats["admission_mode"] = options.admission
        stats.setdefault("cost", {"name": options.cost.name, "hash": options.cost.hash})
        for name in ("interval", "fork_depths"):
            if getattr(options, name) is not None:
                stats[name] = getattr(options, name)
    return stats
