"""CPU time of the engine in a step of many running decodes: plan, what a launch books, and commit.

The executor's own time is left out: `launch` and `collect` are called between the clocks. Steady state: all lanes
decode, no prompt waits, pages are taken as they are needed (every lane takes one each `page_tokens` steps), one step
in flight.

    python -m bench.decode_step [running decodes ...]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from bench import cases


def measure(running: int = 256, steps: int = 400, prompt: int = 2300, consume: bool = True) -> dict[str, Any]:
    """Microseconds of CPU a step, [steps] each of which the median and the 99th percentile are given. `outputs` is the
    loop over the step's outputs in the caller's Python, apart from the rest."""
    case = cases.Decoding(cases.decoding_requests(running, prompt, steps + 200))
    engine, names = case.engine, ("plan", "launched", "commit", "outputs")
    times = np.zeros((steps, len(names)))
    scheduler, executor, tokens = engine.scheduler, engine.executor, 0
    for step in range(steps):
        at = [time.process_time_ns()]
        plan = engine.plan()
        at.append(time.process_time_ns())
        assert plan is not None and plan.rows == running
        ticket = executor.launch(plan)
        begin = time.process_time_ns()
        scheduler.launched(plan, ticket)
        launched = time.process_time_ns() - begin
        flight = engine.flights[0]
        result = engine.collect(flight)
        at.append(time.process_time_ns())
        outputs = engine.commit(flight, result)
        at.append(time.process_time_ns())
        if consume:
            for out in outputs:
                tokens += len(out.tokens)
        at.append(time.process_time_ns())
        times[step] = at[1] - at[0], launched, at[3] - at[2], at[4] - at[3]
    assert not consume or tokens == running * steps
    engine.check()
    times /= 1e3
    core = times[:, :3].sum(1)
    return {
        "running": running, "steps": steps, "page_tokens": engine.shape.page_tokens,
        "core_us": {"p50": _at(core, 50), "p99": _at(core, 99), "mean": round(float(core.mean()), 1)},
        **{f"{name}_us": {"p50": _at(times[:, i], 50), "p99": _at(times[:, i], 99)} for i, name in enumerate(names)},
    }


def _at(values: Any, percentile: float) -> float:
    return round(float(np.percentile(values, percentile)), 1)


def main() -> None:
    """One line for each number of running decodes."""
    for running in [int(word) for word in sys.argv[1:]] or [1, 8, 32, 64, 128, 256]:
        got = measure(running)
        parts = ", ".join(f"{name} {got[name + '_us']['p50']}" for name in ("plan", "launched", "commit", "outputs"))
        core = got["core_us"]
        print(f"{running:4} decodes: plan + launched + commit {core['p50']} us (p99 {core['p99']}); {parts}")


if __name__ == "__main__":
    main()
