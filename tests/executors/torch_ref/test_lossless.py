"""One model through everything that cache and scheduler do, each request equal to its lone cold run to the bit.

It prints what it saw (`pytest -s`) and fails where it did not see all of it. `K3MEM_FULL=1` takes every chunk size
instead of a spread.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import torch

from k3mem import Request, Sampling
from k3mem.executors.torch_ref import Model
from k3mem.plan import PAGE, STATE, Plan, Result, Row
from k3mem.types import Int32
from tests.executors.torch_ref.bench import Bench
from tests.executors.torch_ref.world import CAPACITY, Final, World, request, same, tokens
from tests.plans import run

PAGES, OVERLAP, WINDOW, GRID, BATCHES = (1, 16, 64), (0, 1), 8, 64, 16
SPREAD = (1, 2, 3, 31, 63, 64, 65, 100, 127, 128, 129, 192, 200, 255, 256, 257)
CHUNKS = range(1, 258) if os.environ.get("K3MEM_FULL") else SPREAD
LONG = tokens(70, 300)


@dataclass
class Lone:
    """Cold runs, each alone in an engine that caches nothing."""

    model: Model
    known: dict[tuple[tuple[int, ...], int], tuple[list[int], Final]] = field(default_factory=dict)

    def run(self, prompt: Sequence[int], new: int) -> tuple[list[int], Final]:
        """(answer, what the lane held at its end)"""
        key = tuple(prompt), new
        if key not in self.known:
            world = World(self.model, caching=False, max_running=1, steps_in_flight=0)
            world.run(request(0, prompt, new))
            self.known[key] = world.answers[0], world.executor.finals[0]
        return self.known[key]


class Mixed:
    """A drafter that knows the answers, and goes wrong after 0 to 7 tokens: after `right` of them, or, where that is
    None, after another number for every request and depth."""

    def __init__(self, vocab: int) -> None:
        self.texts: dict[Hashable, list[int]] = {}
        self.right: int | None = None
        self.vocab = vocab

    def draft(self, request_id: Hashable, known: Int32, limit: int) -> Int32:
        ahead = self.texts[request_id][len(known) : len(known) + limit]
        right = self.right
        if right is None:
            right = int(np.random.default_rng((hash(request_id), len(known))).integers(0, WINDOW))
        return np.array([t if i < right else (t + 1) % self.vocab for i, t in enumerate(ahead)], np.int32)


class Seen(Counter[str]):
    """What plans and results show."""

    def step(self, plan: Plan, result: Result, first: dict[int, bool]) -> None:
        """`first`: requests by their seeds that have been seated before."""
        for seat in plan.seats:
            seed = seat.sampling.seed
            if not first.setdefault(seed, True):
                self["resumptions"] += not plan.resync
                continue
            first[seed] = False
            if not seat.depth:
                self["cold"] += 1
            elif seat.depth % GRID:
                self["off-grid hits"] += 1
            else:
                self[f"hits at {seat.depth}"] += 1
        self["restores"] += len(plan.restores)
        kinds = Counter(plan.moves[:, 1].tolist())
        self["page moves"] += kinds[int(PAGE)]
        self["state moves"] += kinds[int(STATE)]
        verify = plan.kind == Row.VERIFY
        lengths = result.accepted[verify & (result.accepted > 0)] - 1
        for right in lengths.tolist():
            self[f"{right} accepted"] += 1
        self["mixed steps"] += len(set(lengths.tolist())) > 1
        decoding = int((plan.kind != Row.PREFILL).sum())
        if decoding == plan.rows:
            self[f"batch {decoding}"] += 1
        for length in plan.length[plan.kind == Row.PREFILL].tolist():
            self[f"chunk {length}"] += 1


class Course:
    """One world, with lone cold runs to compare with."""

    def __init__(self, lone: Lone, seen: Seen, *, speculate: bool = True, capacity: int = CAPACITY, page: int,
                 **policy: object) -> None:
        self.lone, self.seen = lone, seen
        self.drafter = Mixed(lone.model.config.vocab) if speculate else None
        window = WINDOW if speculate else 1
        if speculate:
            capacity += 16 * window * lone.model.shape(page, window).record_bytes
        self.world = World(lone.model, page_tokens=page, capacity=capacity, drafter=self.drafter, window=window,
                           **{"max_running": 16, **policy})
        self.wanted: dict[int, tuple[list[int], Final]] = {}
        self.first: dict[int, bool] = {}
        launch = self.world.executor.launch

        def watched(plan: Plan) -> Result:
            result = launch(plan)
            seen.step(plan, result, self.first)
            return result

        self.world.executor.launch = watched  # type: ignore[method-assign]

    def add(self, prompt: Sequence[int], new: int) -> int:
        """Submit a request; its seed."""
        seed = len(self.wanted)
        self.wanted[seed] = self.lone.run(prompt, new)
        if self.drafter is not None:
            self.drafter.texts[seed] = [*prompt, *self.wanted[seed][0]]
        self.world.submit(Request(seed, prompt, new, sampling=Sampling(seed=seed)))
        return seed

    def run(self, right: int | None = None) -> None:
        """To the end, with so many right drafts a row."""
        if self.drafter is not None:
            self.drafter.right = right
        self.world.run()

    def check(self) -> None:
        """All answers and all that lanes held are those of the lone runs."""
        self.seen["retractions"] += self.world.engine.stats()["retractions"]
        for seed, (answer, final) in self.wanted.items():
            assert self.world.answers[seed] == answer
            mine = self.world.executor.finals[seed]
            assert mine.depth == final.depth
            assert all(map(torch.equal, mine[1:], final[1:])), f"request {seed}: state, window or KV"
            self.seen["requests compared"] += 1


def roomy(lone: Lone, seen: Seen, page: int, overlap: int, sizes: Sequence[int]) -> None:
    """Cold; hits at every grid depth; behind an answer; drafts of each accepted length and mixed; batches."""
    course = Course(lone, seen, page=page, steps_in_flight=overlap, interval=GRID, capacity=2 * CAPACITY)
    course.add(LONG, 12)
    course.run()
    for depth in range(GRID, len(LONG), GRID):
        course.add([*LONG[: depth + 5], *tokens(depth, 20)], 10)
        course.run()
    course.add([*LONG, *lone.run(LONG, 12)[0], *tokens(71, 20)], 9)
    course.run()
    for right in range(WINDOW):
        course.add(tokens(80 + right, 20), 19)
        course.run(right)
    for size in sizes:
        for row in range(size):
            course.add(tokens(90 + row, 10 + row), 14)
        course.run()
    course.check()


def tight(lone: Lone, seen: Seen, page: int, overlap: int, speculate: bool) -> None:
    """Retraction and resumption, and room made by moves."""
    shape = lone.model.shape(page)
    course = Course(lone, seen, page=page, steps_in_flight=overlap, speculate=speculate,
                    capacity=4 * shape.state_bytes + (250 + 2 * page) * shape.token_bytes)
    for row in range(3):
        course.add(tokens(110 + row, 40), 90)
    course.run()
    course.check()
    course = Course(lone, seen, page=page, steps_in_flight=overlap, speculate=speculate, eager=True, max_running=8,
                    capacity=9 * shape.state_bytes + 700 * shape.token_bytes)
    for wave in range(3):
        for row in range(4):
            course.add(tokens(120 + 10 * wave + row, 30 + 40 * row), 30 - 9 * row)
        for _ in range(12):
            course.world.step()
    course.run()
    course.check()


def chunked(lone: Lone, seen: Seen, size: int, page: int) -> None:
    """A prompt in chunks of one size, whatever the grid."""
    bench = Bench(lone.model, page, pages=-(-400 // page) + 200 // page + 8)
    plan = bench.host.plan()
    bench.host.seat(plan, 2, prompt=len(LONG), limit=len(LONG) + 1)
    for start in range(0, len(LONG), size):
        part = LONG[start : start + size]
        plan = plan if not start else bench.host.plan()
        (result,) = run(bench.executor, plan.prefill(2, start, part, start + size >= len(LONG)))
        seen[f"chunk {len(part)}"] += 1
    logits, held = lone.model.forward(LONG)
    assert result.tokens.tolist() == [int(logits[-1].argmax())]
    same(lone.model, bench.holds(2), held)


def moved(lone: Lone, seen: Seen, page: int) -> None:
    """Every page and every state of running lanes moves to another place between two steps, and back."""
    bench = Bench(lone.model, page, pages=400 // page + 16, states=8)
    bench.seat(2, LONG[:33])
    tables, back = bench.executor.tables, bench.host.pages
    for turn in range(4):
        plan = bench.host.plan()
        for kind, phase, count, off in ((PAGE, "page_table", bench.host.pages, back),
                                        (STATE, "state_table", bench.host.states, 4)):
            for entry in range(1, count + 1):
                old = tables.place(kind, entry)
                new = entry + (off if turn % 2 == 0 else 0)
                plan.add("moves", (turn, int(kind), old, new)).add(phase, (entry, new))
                seen[f"forced {'page' if kind == PAGE else 'state'} moves"] += 1
        depths = [tables.lane(lane).depth for lane in (1, 2)]
        run(bench.executor, plan.decode(1, depths[0]).decode(2, depths[1]))
    for lane, prompt in ((1, bench.prompt), (2, LONG[:33])):
        answer, _ = lone.run(prompt, 20)
        held = lone.model.forward([*prompt, *answer[:4]])[1]
        same(lone.model, bench.holds(lane), held)


def test_nothing_that_cache_or_scheduler_do_changes_a_bit(model: Model) -> None:
    lone, seen = Lone(model), Seen()
    combinations = list(product(PAGES, OVERLAP))
    for number, (page, overlap) in enumerate(combinations):
        roomy(lone, seen, page, overlap, range(1 + number, BATCHES + 1, len(combinations)))
        tight(lone, seen, page, overlap, speculate=bool(overlap))
    for page in PAGES:
        moved(lone, seen, page)
    for size in CHUNKS:
        chunked(lone, seen, size, PAGES[size % 3])
        course = Course(lone, seen, page=16, token_budget=size, speculate=False)
        course.add(LONG, 3)
        course.run()
        course.check()

    wanted = ["cold", "off-grid hits", "restores", "retractions", "resumptions", "page moves", "state moves",
              "forced page moves", "forced state moves", "mixed steps", "requests compared"]
    wanted += [f"hits at {depth}" for depth in range(GRID, len(LONG), GRID)]
    wanted += [f"{right} accepted" for right in range(WINDOW)]
    wanted += [f"batch {size}" for size in range(1, BATCHES + 1)] + [f"chunk {size}" for size in CHUNKS]
    grid = sum(count for name, count in seen.items() if name.startswith("hits at "))
    print(f"\n{grid} grid hits; " + "; ".join(f"{seen[name]} x {name}" for name in wanted))
    assert not [name for name in wanted if not seen[name]], "not seen"
