"""One engine on the mock executor, driven by hand: what the known-fault scenarios share.

A scenario is a function that arranges, acts and asserts. The test of a case runs it as it stands; a second test plants
the case's root cause (see `plant`) and requires `what_is_wrong(scenario)` to say something.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from k3mem.engine import Engine
from k3mem.errors import Corrupted, ExecutorFailed
from k3mem.executors.mock import Entry, Faults, MockExecutor, MockTicket, fresh_output
from k3mem.plan import Plan, Row
from k3mem.policy import Policy
from k3mem.radix import Match
from k3mem.request import Output, Request
from k3mem.sched.core import Drafter
from k3mem.sched.job import Job, Seated
from k3mem.sched.lanes import Phase
from k3mem.shape import Shape
from k3mem.types import Int32, NodeId

VOCAB = 97
STATE, TOKEN = 640, 8
"""Bytes of a state and of one token's KV."""
HUGE = 100 * 16 * TOKEN
"""A state so large that no left-over pages make up for one: states can be counted."""
C = 64
"""The checkpoint grid of the scenarios."""
MOST_STEPS = 3000


def text(name: str, count: int) -> list[int]:
    """The first `count` tokens of an endless text with this name."""
    rng = random.Random(name)
    return [rng.randrange(VOCAB) for _ in range(count)]


def cached(count: int) -> list[int]:
    """`count` tokens of the text that most scenarios share."""
    return text("A", count)


def diverge(shared: Sequence[int], name: str, count: int) -> list[int]:
    """`shared` and `count` tokens of another text, the first of which is not how the shared text goes on."""
    tail = text(name, count)
    going_on = cached(len(shared) + 1)[-1]
    tail[0] = (going_on + 1 + tail[0] % (VOCAB - 1)) % VOCAB
    return [*shared, *tail]


class Script:
    """A drafter that knows what the model will say: its nth call for a request gives plan[n] = (drafts, right ones);
    beyond the plan it gives `rest` right ones."""

    def __init__(self, plan: dict[Hashable, Sequence[tuple[int, int]]] | None = None, rest: int = 0) -> None:
        self.plan, self.rest = dict(plan or {}), rest
        self.calls: dict[Hashable, int] = {}
        self.scene: Scene | None = None

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        assert self.scene is not None
        call = self.calls[request_id] = self.calls.get(request_id, -1) + 1
        steps = self.plan.get(request_id, ())
        count, right = steps[call] if call < len(steps) else (self.rest, self.rest)
        request, line = self.scene.requests[request_id], self.scene.expected[request_id]
        at = len(tokens) - len(request.prompt)
        out = [line[at + i] if at + i < len(line) else 0 for i in range(count)]
        out = [token if i < right else (token + 1) % VOCAB for i, token in enumerate(out)]
        return np.array(out[:limit], np.int32)


class Scene:
    """An engine, its mock executor, and what must come of each request.

    `states` and `pages` count what fits beside the sinks. Sizes follow `tests/world.py`: 640 bytes a state, 8 a token.
    """

    def __init__(self, *, states: int = 12, pages: int = 96, page_tokens: int = 16, state_chunk: int = C,
                 policy: Policy | None = None, capture: str = "any", window: int = 1, drafter: Drafter | None = None,
                 state_bytes: int = STATE, seed: int = 0, executor: MockExecutor | None = None,
                 faults: Faults | None = None) -> None:
        self.policy = policy or Policy(max_running=16)
        self.shape = Shape("tiny", state_bytes, TOKEN, page_tokens=page_tokens, state_chunk=state_chunk,
                           vocab_size=VOCAB, max_tokens=4096, align=1, record_bytes=4)
        profile: Any = capture
        self.executor = executor or MockExecutor(seed=seed, capture=profile, strict_handout=False, faults=faults)
        scratch = self.policy.max_running * window * self.shape.record_bytes if drafter is not None else 0
        capacity = (states + 1) * state_bytes + (pages + 1) * self.shape.page_bytes + scratch
        self.now = 0.0
        self.plans: list[Plan] = []
        self._record()
        self.engine = Engine(self.shape, self.executor, capacity, self.policy, clock=lambda: self.now,
                             drafter=drafter, window=window)
        self.core = self.engine.scheduler.core
        self.cache, self.tree, self.arena = self.core.cache, self.core.cache.tree, self.core.cache.arena
        self.requests: dict[Hashable, Request] = {}
        self.expected: dict[Hashable, list[int]] = {}
        self.jobs: dict[Hashable, Job] = {}
        self.got: dict[Hashable, list[int]] = {}
        self.reasons: dict[Hashable, str | None] = {}
        if isinstance(drafter, Script):
            drafter.scene = self

    def _record(self) -> None:
        launch = self.executor.launch

        def recording(plan: Plan) -> MockTicket:
            self.plans.append(plan)
            return launch(plan)

        self.executor.launch = recording  # type: ignore[method-assign]

    # -- driving

    def submit(self, id: Hashable, prompt: Sequence[int], new: int = 4, **options: Any) -> Job:
        """Queue a request; `fresh_output` is what it must get."""
        request = Request(id, prompt, new, **options)
        scope = self.cache.digest(self.cache.scope(request.scope))
        self.engine.submit(request)
        self.requests[id] = request
        self.expected[id] = fresh_output(scope, list(prompt), request.sampling, new, vocab_size=VOCAB)
        self.got[id], self.reasons[id] = [], None
        self.jobs[id] = self.core.jobs[id]
        return self.jobs[id]

    def take(self, outputs: Sequence[Output]) -> None:
        for out in outputs:
            self.got[out.id] += out.tokens
            if out.finished:
                self.reasons[out.id] = out.reason

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.take(self.engine.step())

    def drain(self) -> None:
        """Commit everything in flight."""
        while self.core.flights:
            flight = self.core.flights[0]
            self.take(self.engine.commit(flight, self.engine.collect(flight)))

    def until(self, done: Callable[[], object]) -> None:
        """Step until something holds."""
        for _ in range(MOST_STEPS):
            if done():
                return
            self.step()
        raise AssertionError("the scenario never gets there")

    def run(self) -> None:
        """Step to the end of all requests."""
        self.until(lambda: not self.engine.has_work)

    def serve(self, id: Hashable, prompt: Sequence[int], new: int = 4, **options: Any) -> int:
        """One request alone to its end; its resume depth."""
        job = self.submit(id, prompt, new, **options)
        self.run()
        assert job.hit is not None
        return job.hit.hit

    # -- looking

    def seat(self, id: Hashable) -> Seated:
        """The lane's tenant that runs this request."""
        return next(s for s in self.core.lanes.taken() if s.job is self.jobs[id])

    def line(self, id: Hashable) -> list[int]:
        """Prompt and whole output of a request."""
        return [*self.requests[id].prompt.tolist(), *self.expected[id]]

    def hit(self, id: Hashable) -> int:
        """Resume depth of a request at its first admission."""
        found = self.jobs[id].hit
        assert found is not None, f"request {id!r} was never admitted"
        return found.hit

    def nodes(self, prompt: Sequence[int]) -> dict[int, NodeId]:
        """Depth -> node of all nodes with KV whose whole path is a prefix of `prompt` (first scope)."""
        out: dict[int, NodeId] = {}
        walk = self.tree.walk()
        for node, depth, scope in zip(walk.node.tolist(), walk.depth.tolist(), walk.scope.tolist(), strict=True):
            if scope == 0 and depth <= len(prompt) and self.tree.path_tokens(node).tolist() == list(prompt[:depth]):
                out[depth] = NodeId(node)
        return out

    def checkpoints(self, prompt: Sequence[int]) -> list[int]:
        """Depths of all checkpoints on the path of `prompt`."""
        return sorted(d for d, node in self.nodes(prompt).items() if self.tree.info(node).state >= 0)

    def tombstone(self, prompt: Sequence[int], *depths: int) -> None:
        """Take the checkpoints at these depths away; their KV stays."""
        for depth in depths:
            state = self.tree.take(self.nodes(prompt)[depth])
            self.arena.free_states(np.array([state], np.int32))

    def match(self, prompt: Sequence[int]) -> Match:
        """What a prompt would resume from now."""
        tokens = np.array(prompt, np.int32)
        return self.cache.match(self.cache.scope(("", "", "")), tokens, len(tokens) - 1, self.core.step + 1)

    def free_states(self) -> int:
        """States that could be had without evicting or moving anything."""
        return self.arena.room_states()

    # -- judging

    def tree_entries(self) -> list[Entry]:
        walk, tree = self.tree.walk(), self.tree
        return [
            Entry(self.cache.digest(int(s)), tree.path_tokens(int(n)), int(d), int(state), tree.pages(int(n)))  # type: ignore[arg-type]
            for n, d, state, s in zip(walk.node, walk.depth, walk.state, walk.scope, strict=True)
        ]

    def lane_entries(self) -> list[Entry]:
        """Working states whose depth the host knows: no row in flight."""
        out = []
        for seat in self.core.lanes.taken():
            depth = int(self.core.lanes.launched[seat.lane])
            if self.core.lanes.inflight[seat.lane] or self.core.lanes.phase[seat.lane] == Phase.DRAIN or not depth:
                continue
            pages = seat.pages[: -(-depth // self.core.span)]
            out.append(Entry(self.cache.digest(seat.job.scope), seat.job.tokens, depth, int(seat.state), pages))
        return out

    def differences(self) -> list[str]:
        """The executor's memory against the tree and the idle lanes, and all violations so far."""
        tables = (t.tolist() for t in self.arena.tables())
        return [*self.executor.audit([*self.tree_entries(), *self.lane_entries()], *tables), *self.executor.violations]

    def verify(self) -> None:
        """All that must hold at any time: outputs so far, memory, invariants."""
        wrong = self.differences() if self.core.open is None else []
        for id, got in self.got.items():
            want = self.expected[id]
            if got != want[: len(got)] or (self.reasons[id] in ("stop", "length") and got != want):
                wrong.append(f"request {id!r}: {got} is not {want}")
        assert not wrong, "; ".join(wrong)
        self.engine.check()

    def settle(self) -> None:
        """Everybody was answered, memory is right, and only the tree owns anything."""
        self.verify()
        assert not [i for i, reason in self.reasons.items() if reason is None], f"no end: {self.reasons}"
        counters, usage = self.tree.counters(), self.arena.usage()
        assert counters.locks == 0, f"{counters.locks} locks are left"
        assert not (self.core.lanes.running or self.core.queue or self.core.jobs)
        assert usage.live_states == counters.checkpoints, "a state has no owner"


def rows_of(plan: Plan, kind: Row) -> list[tuple[int, int, int]]:
    """(lane, start, length) of the rows of one kind."""
    return [
        (int(lane), int(start), int(length))
        for k, lane, start, length in zip(plan.kind, plan.lane, plan.start, plan.length, strict=True) if k == kind
    ]


def named(plan: Plan) -> list[tuple[int, int, int]]:
    """(start of the row, depth, end of the row) of every snapshot that a plan names in a PREFILL row."""
    return [
        (int(plan.start[row]), int(depth), int(plan.start[row] + plan.length[row]))
        for row, depth, _ in plan.snapshots.tolist() if plan.kind[row] == Row.PREFILL
    ]


def what_is_wrong(scenario: Callable[[], object]) -> str:
    """What a scenario finds wrong: an assertion, a broken invariant, an executor that gave up; "" for nothing."""
    try:
        scenario()
    except (AssertionError, Corrupted, ExecutorFailed) as found:
        return f"{type(found).__name__}: {found}"
    return ""

