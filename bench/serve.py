"""Whole workloads through the engine: hit rates as a server would see them.

    python -m bench.serve make_agentic            400,000 tokens + 200 states, 4 running
    python -m bench.serve agentic                 200 sessions x 10 turns, 40 GiB

A closed loop over a request list: request i is submitted as soon as fewer than `running` requests are open, in list
order, like the peers' `run()`. Outputs are scripted. The `sim` executor gives each step its time, so that long answers
stay longer, and memory is held as long as in a server; one plan stands for many decode steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import shared
from bench.shared import Pair
from k3mem import Engine, Policy, Request, Shape
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Sampling

K3 = Shape.kimi_k3(tp=8)
TOKENS, STATES = 400_000, 200
"""What the peers' `run()` is given on `make_agentic()`."""


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a workload."""

    requests: int
    hit_tokens: int
    total_tokens: int
    seconds: float
    """CPU time of engine and executor."""
    stats: dict[str, Any] = field(repr=False)

    @property
    def hit_rate(self) -> float:
        """Percent of the prompts' tokens that were not computed."""
        return 100 * self.hit_tokens / max(1, self.total_tokens)


def same_bytes(tokens: int = TOKENS, states: int = STATES, shape: Shape = K3) -> int:
    """Bytes of an arena for so much KV and so many states, net of the sinks: the peers' padding page and padding slot
    come on top of what they are given, too."""
    pages = -(-tokens // shape.page_span)
    return (pages + 1) * shape.page_bytes + (states + 1) * shape.state_bytes


def serve(requests: Sequence[Pair], capacity_bytes: int, running: int, policy: Policy | None = None,
          shape: Shape = K3) -> Served:
    """Serve a request list, `running` at a time. O(prompts + outputs)."""
    policy = Policy(max_running=running) if policy is None else policy
    engine = Engine(shape, SimExecutor(), capacity_bytes, policy)
    left, count = enumerate(requests), 0
    began = time.process_time()
    exhausted = False
    while not exhausted or engine.has_work:
        while count < running and not exhausted:
            i, pair = next(left, (-1, None))
            if pair is None:
                exhausted = True
                break
            prompt, output = pair
            engine.submit(Request(i, prompt, max(1, len(output)), sampling=Sampling(script=output.tobytes())))
            count += 1
        count -= sum(out.finished for out in engine.step())
    seconds = time.process_time() - began
    engine.check()
    stats = engine.stats()
    return Served(stats["requests"], stats["hit_tokens"], stats["input_tokens"], seconds, stats)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 2 where the workloads are absent."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("workload", choices=["make_agentic", "agentic"])
    parser.add_argument("--running", type=int, default=None, help="requests at a time (4; agentic: 1)")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.workload == "make_agentic":
            done = serve(shared.make_agentic(), same_bytes(), chosen.running or 4)
        else:
            done = serve(shared.agentic(), 40 << 30, chosen.running or 1)
    except shared.Absent as e:
        print(e, file=sys.stderr)
        return 2
    print(f"{done.requests} requests, hit rate {done.hit_rate:.2f} %, {done.hit_tokens:,} of {done.total_tokens:,} "
          f"tokens, {done.seconds:.2f} s of CPU time")
    for name in ("causes", "hits_by_kind", "created", "evicted", "evicted_unused", "retractions", "skipped_snapshots"):
        print(f"  {name}: {done.stats[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
