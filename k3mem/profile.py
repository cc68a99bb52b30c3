"""Measure what steps of verify rows cost on an executor, through plans of the real engine: the surface of a planner.

    for each batch: requests prefill, then every step verifies windows of wrong drafts, so that depths hardly grow
    for each batch: bisect the token counts for risers; an interval whose ends cost alike is one tread
    all points: least squares of (level of a tread) + per_row x rows + per_context x context / 1000
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from k3mem.engine import Engine
from k3mem.errors import K3MemError
from k3mem.executor import Executor
from k3mem.plan import Plan, Row
from k3mem.policy import Policy
from k3mem.request import Request
from k3mem.shape import Shape
from k3mem.spec import Treads
from k3mem.types import Float64, Int32, Int64

ROWS = 1, 4, 16, 64, 256
CONTEXTS = 0, 4096, 32768
MOST_STEPS = 512
"""Token counts measured for one batch, at most: treads that are left uncut then count as one."""


class NotMeasured(K3MemError, RuntimeError):
    """An executor on which no surface can be measured: not all requests run, or its steps take no time."""


class Point(NamedTuple):
    """One measurement."""

    rows: int
    tokens: int
    context: int
    """Sum over the rows."""
    us: float


class Measured(NamedTuple):
    """A surface, and how well it fits what was measured."""

    surface: Treads
    points: list[Point]
    residual_us: float
    """Largest difference between a point and the surface."""


class _Wrong:
    """A drafter of wrong guesses, as many of each lane as it is told."""

    def __init__(self) -> None:
        self.drafts: dict[Hashable, int] = {}

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        n = min(limit, self.drafts.get(request_id, 0))
        return np.full(n, tokens[-1], np.int32)


@dataclass(slots=True)
class Bench:
    """A batch of requests of one depth that decode. `step_us` runs one step of a given number of tokens.

    Raises NotMeasured where they do not all run. `clock` times steps of an executor that keeps no clock.
    """

    shape: Shape
    executor: Executor
    rows: int
    depth: int
    window: int
    clock: Callable[[], float] = time.perf_counter
    steps: int = 8 * MOST_STEPS
    drafter: _Wrong = field(default_factory=_Wrong)
    engine: Engine = field(init=False)
    _ended: float | None = None
    """End of the last step on the executor's clock."""

    def __post_init__(self) -> None:
        shape, prompt = self.shape, max(1, self.depth)
        new = min(self.steps * self.window, shape.max_tokens - prompt)
        pages = -(-(prompt + new) // shape.page_span) + 1
        capacity = (self.rows + 1) * (shape.state_bytes + pages * shape.page_bytes + self.window * shape.record_bytes)
        capacity += 2 * (shape.state_bytes + shape.page_bytes) + shape.align
        policy = Policy(max_running=self.rows, token_budget=max(8192, self.rows * self.window), steps_in_flight=0,
                        caching=False, follow=False)
        self.engine = Engine(shape, self.executor, capacity, policy, drafter=self.drafter, window=self.window,
                             fast_forward=False)
        for row in range(self.rows):
            tokens = np.full(prompt, 1, np.int32)
            tokens[0] = row % shape.vocab_size
            self.engine.submit(Request(row, tokens, new))
        for _ in range(self.rows * (2 + -(-prompt // 8192))):
            if self._decoding:
                return
            self._step()
        raise NotMeasured(f"{self.rows} requests of {prompt} tokens do not all run: measure fewer, or shorter ones")

    @property
    def _decoding(self) -> bool:
        seats = self.engine.scheduler.core.lanes.seats
        return all(seat is not None and seat.job.count > seat.job.prompt for seat in seats)

    def step(self, tokens: int) -> Point:
        """One step of `tokens` tokens over all rows, windows as even as they can be. Raises ValueError for a count
        that no windows give, NotMeasured for a step that takes no time."""
        if not self.rows <= tokens <= self.rows * self.window:
            raise ValueError(f"{self.rows} windows of 1..{self.window} tokens do not sum to {tokens}")
        least, more = divmod(tokens - self.rows, self.rows)
        self.drafter.drafts = {row: least + (row < more) for row in range(self.rows)}
        plan, us = self._step()
        if plan.rows != self.rows or int(plan.length.sum()) != tokens or (plan.kind == Row.PREFILL).any():
            raise NotMeasured(f"a step of {self.rows} rows and {tokens} tokens came out as {plan.rows} rows and "
                              f"{int(plan.length.sum())} tokens: a request has ended")
        if not us > 0:
            raise NotMeasured(f"a step of {tokens} tokens took {us} us: this executor's time stands still")
        return Point(self.rows, tokens, int(plan.start.sum(dtype=np.int64)), us)

    def _step(self) -> tuple[Plan, float]:
        plan = self.engine.plan()
        if plan is None:
            raise NotMeasured(f"nothing could be planned: {self.engine.waits_for}")
        began = self.clock()
        flight = self.engine.launch(plan)
        if flight is None:
            raise NotMeasured("the executor failed")
        result = self.engine.collect(flight)
        took = self.clock() - began
        if len(result.times):
            ended = float(result.times[-1])
            took, self._ended = ended - (0.0 if self._ended is None else self._ended), ended
        self.engine.commit(flight, result)
        return plan, 1e6 * took


def measure(shape: Shape, make: Callable[[], Executor], *, window: int, rows: Sequence[int] = ROWS,
            contexts: Sequence[int] = CONTEXTS, repeat: int = 1, tolerance: float = 0.002,
            clock: Callable[[], float] = time.perf_counter, progress: Callable[[int], None] = lambda done: None,
            ) -> Measured:
    """The surface of an executor. `make` gives a new one for each batch.

    rows: batches, ascending, no more than `window / 2` times apart, so that token counts overlap. contexts: depths of
    the rows, the least first; treads are looked for at the least one. repeat: steps a point, whose median counts.
    tolerance: a share of a step's time; what differs by less is one tread. `progress` is told how many points there
    are. Raises ValueError, NotMeasured, and what the executor raises.
    """
    if window < 2 or not rows or not contexts or min(rows) < 1 or min(contexts) < 0 or repeat < 1:
        raise ValueError("measure needs window >= 2, and at least one batch >= 1, context >= 0 and repetition")
    batches, depths = sorted(set(rows)), sorted(set(contexts))
    points: list[Point] = []
    ends: set[int] = set()
    for batch in batches:
        for depth in depths:
            bench = Bench(shape, make(), batch, depth, window, clock, repeat * (MOST_STEPS + 8))

            def point(tokens: int, bench: Bench = bench) -> Point:
                found = [bench.step(tokens) for _ in range(repeat)]
                points.append(found[0]._replace(us=median(p.us for p in found)))
                progress(len(points))
                return points[-1]

            first, last = (1 if batch == 1 else 2 * batch), window * batch
            if depth == depths[0]:
                ends |= _risers(point, first, last, tolerance)
            else:
                for tokens in sorted({first, last}):
                    point(tokens)
    return _fit(points, ends, tolerance)


def _risers(point: Callable[[int], Point], first: int, last: int, tolerance: float) -> set[int]:
    """Token counts from `first` to `last` after which a step costs more, `last` among them. The longest interval whose
    ends differ is halved next."""
    found = {first: point(first), last: point(last)}
    heap, ends = [(first - last, first, last)], {last}
    while heap:
        _, low, high = heapq.heappop(heap)
        a, b = found[low].us, found[high].us
        if abs(a - b) <= tolerance * min(a, b):
            continue
        if high - low <= 1 or len(found) >= MOST_STEPS:
            ends.add(low)
            continue
        middle = (low + high) // 2
        found[middle] = point(middle)
        for one in ((low, middle), (middle, high)):
            heapq.heappush(heap, (one[0] - one[1], *one))
    return ends


def _fit(points: Sequence[Point], ends: set[int], tolerance: float) -> Measured:
    """Least squares over treads that end at `ends`; terms that come out negative are left out."""
    edges: Int64 = np.array(sorted(ends), np.int64)
    rows, tokens, context = (np.array([p[i] for p in points], np.float64) for i in range(3))
    us: Float64 = np.array([p.us for p in points])
    tread = np.searchsorted(edges, tokens, side="left")
    used, tread = np.unique(tread, return_inverse=True)  # a tread without a point joins the next one
    terms = {"per_row": rows, "per_context": context / 1000}
    while True:
        columns = np.zeros((len(points), len(used) + len(terms)))
        columns[np.arange(len(points)), tread] = 1.0
        for i, values in enumerate(terms.values()):
            columns[:, len(used) + i] = values
        found = np.linalg.lstsq(columns, us, rcond=None)[0]
        slopes = dict(zip(terms, found[len(used) :].tolist(), strict=True))
        negative = [name for name, slope in slopes.items() if slope < 0]
        if not negative:
            break
        del terms[negative[0]]
    levels = np.maximum(found[: len(used)], 1e-3)
    own = np.append(np.abs(np.diff(levels)) > tolerance * levels[:-1], True)  # others are as high as the next one
    surface = Treads(ends=edges[used][own], levels=levels[own], **slopes)
    said = np.array([float(surface.step_us(p.rows, np.array([p.tokens]), p.context)[0]) for p in points])
    return Measured(surface, list(points), float(np.abs(said - us).max()))
