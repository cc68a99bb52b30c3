"""Cells run one after the other, in processes beside each other, or on a Ray cluster; outcomes as they come."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from k3mem.replay.options import BadOption
from k3mem.replay.sweep.cells import Cell, Inputs, Outcome, run_cell

Outcomes = Generator[Outcome, None, None]


def here(inputs: Inputs, cells: Sequence[Cell]) -> Outcomes:
    """One after the other, in this process."""
    for cell in cells:
        yield run_cell(inputs, cell)


def processes(inputs: Inputs, cells: Sequence[Cell], jobs: int) -> Outcomes:
    """In up to `jobs` processes, each of which reads the trace once. A process that dies costs its cell alone: those
    that ran beside it run again, one at a time, so that it is known which. Closing the iterator ends the processes."""
    waiting = deque(cells)
    while waiting:
        suspects = yield from _pool(inputs, waiting, jobs)
        for cell in suspects:
            for lost in (yield from _pool(inputs, deque([cell]), 1)):
                yield Outcome(lost, None, "its process died (out of memory?)")


def _pool(inputs: Inputs, waiting: deque[Cell], jobs: int) -> Generator[Outcome, None, list[Cell]]:
    """Run cells until none waits, or a process dies: those in flight then."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(waiting)), multiprocessing.get_context("spawn"), _begin)
    flying: dict[Future[Outcome], Cell] = {}
    whole = False
    try:
        while waiting or flying:
            while waiting and len(flying) < jobs:
                flying[pool.submit(run_cell, inputs, waiting[0])] = waiting[0]
                waiting.popleft()  # now, not before: submitting may raise
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            broken = [flying[future] for future in done if isinstance(future.exception(), BrokenProcessPool)]
            for future in done:
                cell = flying.pop(future)
                if cell not in broken:
                    yield future.result()
            if broken:
                return [*broken, *flying.values()]
        whole = True
        return []
    except BrokenProcessPool:  # it died between two cells
        return list(flying.values())
    finally:
        if not whole:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
        pool.shutdown(wait=whole, cancel_futures=True)


def _begin() -> None:
    """A worker dies of an interrupt at once and in silence; its parent says what is to be said."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_ray(inputs: Inputs, cells: Sequence[Cell], address: str) -> Outcomes:
    """On a Ray cluster, a task a cell. Nodes read the files under the same paths. Raises BadOption without ray."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise BadOption("--ray needs the package ray: pip install ray, or leave --ray out") from None
    ray.init(address=address)
    try:
        task = ray.remote(run_cell)
        flying = {task.remote(inputs, cell): cell for cell in cells}
        while flying:
            done, _ = ray.wait(list(flying), num_returns=1)
            for ref in done:
                cell = flying.pop(ref)
                try:
                    outcome: Outcome = ray.get(ref)
                except Exception as e:  # a node that was lost, or anything of ray's
                    outcome = Outcome(cell, None, f"{type(e).__name__}: {e}")
                yield outcome
    finally:
        ray.shutdown()
