"""How many requests speculate at once in a gigabyte: replay of records against a state for every token of the window.

    python -m bench.concurrency                 Kimi K3 at TP 8, window 8, 100 GB, bare

*Replay* keeps one state a request and, for each token of a window, the record that its fold replays; a step's records
lie in scratch of fixed size, which counts. *A state a token* is what kernels do that write the state after each token
of the window, so that a rejected draft is undone by taking an older one: as many states a request as the window has
tokens. Both are run through the real scheduler on the simulated executor: requests are let in until one waits, and all
that are in decode together. The model gives the second scheme a state as large as its whole window, and no records.

*Bare*: no extra buffers, no checkpoint. With them a running request also keeps the one that it stands on, one state
more in either scheme.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from k3mem.engine import Engine
from k3mem.executors.sim import SimExecutor
from k3mem.policy import Policy
from k3mem.request import Request
from k3mem.shape import Shape
from k3mem.types import Int32

CONTEXTS = 0, 4096, 32768


class Found(NamedTuple):
    """What a scheme holds."""

    running: int
    per_gb: float


class Guess:
    """A drafter that always fills the window."""

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        """As `Drafter.draft`."""
        return np.zeros(limit, np.int32)


def state_a_token(shape: Shape, window: int) -> Shape:
    """The other scheme's shape."""
    return replace(shape, name=f"{shape.name}-state-a-token", state_bytes=window * shape.state_bytes, record_bytes=0)


def all_run(shape: Shape, window: int, capacity: int, lanes: int, context: int) -> bool:
    """Whether so many requests of this context decode at the same time: none waits, none was retracted."""
    policy = Policy(max_running=lanes, token_budget=max(65536, window * lanes), caching=False)
    engine = Engine(shape, SimExecutor(), capacity, policy, drafter=Guess(), window=window)
    prompt = max(1, context)
    for number in range(lanes):  # no two alike: nothing is shared
        tokens = np.full(prompt, 5, np.int32)
        tokens[0] = number
        engine.submit(Request(number, tokens, 4 * window))
    core = engine.scheduler.core
    while True:
        engine.step()
        if core.metrics.retractions or (core.blocked and core.queue):
            return False
        if all(seat is not None and seat.job.count > seat.job.prompt + 1 for seat in core.lanes.seats):
            return True  # each has verified a window, and none has ended
        if not engine.has_work:
            return False


def most(shape: Shape, window: int, capacity: int, context: int) -> Found:
    """The largest number of requests that decode at once, found by trying: double, then halve the interval. The scratch
    for records grows with the lanes, so each trial is an engine of its own."""

    def fits(lanes: int) -> bool:
        try:
            return all_run(shape, window, capacity, lanes, context)
        except ValueError:  # scratch and sinks alone are more than there is
            return False

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Found(low, low / (capacity / 1e9))


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.concurrency", description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=100.0, help="bytes of the arena, scratch included (default: 100)")
    parser.add_argument("--window", type=int, default=8, help="tokens of a window (default: 8)")
    parser.add_argument("--tp", type=int, default=8)
    chosen = parser.parse_args(arguments)
    shape, capacity = Shape.kimi_k3(tp=chosen.tp, window=chosen.window), int(chosen.gb * 1e9)
    other = state_a_token(shape, chosen.window)
    print(f"{shape.name}, window {chosen.window}, {chosen.gb:g} GB: requests that decode at once (a GB)\n")
    print(f"{'context':>8} {'replay':>16} {'a state a token':>18} {'ratio':>7}")
    for context in CONTEXTS:
        ours = most(shape, chosen.window, capacity, context)
        theirs = most(other, chosen.window, capacity, context)
        print(f"{context:>8} {ours.running:>7} ({ours.per_gb:5.2f}) {theirs.running:>9} ({theirs.per_gb:5.2f}) "
              f"{ours.running / max(1, theirs.running):>7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
