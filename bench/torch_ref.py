"""Tokens a second of `torch_ref` through the engine, by CPU time of this process and by the wall clock.

Decode alone: prompts are absorbed before the clock starts. On a loaded machine the wall clock says how loaded it is;
CPU time is what the work takes.

    python -m bench.torch_ref [--layers 4] [--tokens 200] [--model DIR] [batch ...]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from k3mem import Engine, Policy, Request
from k3mem.executors.torch_ref import Model, TorchExecutor
from k3mem.executors.torch_ref.init import config_of, write

PROMPT = 64


class Speed(NamedTuple):
    """Tokens a second."""

    cpu: float
    wall: float


def engine_of(model: Model) -> Engine:
    """An engine with room for everything."""
    return Engine(model.shape(), TorchExecutor(model), 512 << 20, Policy(max_running=64))


def decode(model: Model, batch: int, tokens: int) -> Speed:
    """`batch` requests that decode `tokens` tokens each, together."""
    engine, random = engine_of(model), np.random.default_rng(batch)
    for number in range(batch):
        prompt = random.integers(0, model.config.vocab, PROMPT, np.int32)
        engine.submit(Request(number, prompt, tokens + 8))
    for _ in range(6):
        engine.step()
    return _timed(engine)


def prefill(model: Model, tokens: int) -> Speed:
    """One prompt of so many tokens."""
    engine = engine_of(model)
    engine.submit(Request(0, np.random.default_rng(0).integers(0, model.config.vocab, tokens, np.int32), 1))
    one = _timed(engine)
    return Speed(one.cpu * tokens, one.wall * tokens)


def _timed(engine: Engine) -> Speed:
    """Output tokens a second until nothing is left."""
    cpu, wall, count = time.process_time(), time.perf_counter(), 0
    while engine.has_work:
        count += sum(len(out.tokens) for out in engine.step())
    return Speed(count / (time.process_time() - cpu), count / (time.perf_counter() - wall))


def main() -> None:
    """A line a batch size, and one for prefill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("batch", nargs="*", type=int, default=[1, 4, 16, 32])
    parser.add_argument("--layers", type=int, default=4, help="of a random tiny-k3")
    parser.add_argument("--model", type=Path, help="a model's folder, in its place")
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            write(folder, config_of("tiny-k3", args.layers))
        model = Model.from_pretrained(args.model or folder)
    name = args.model or f"tiny-k3 of {args.layers} layers"
    print(f"{name}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {model.threads} thread")
    decode(model, 1, 20)
    for batch in args.batch:
        speed = decode(model, batch, args.tokens)
        print(f"decode, batch {batch:3}: {speed.cpu:7.0f} tokens/s of CPU time, {speed.wall:7.0f} of wall time")
    speed = prefill(model, 2048)
    print(f"prefill of 2,048:  {speed.cpu:7.0f} tokens/s of CPU time, {speed.wall:7.0f} of wall time")


if __name__ == "__main__":
    main()
