"""Random sessions against an engine on the mock executor: forks, aborts, speculation scripts, host stops, deadlines.

`World(...).run()` drives it to the end, checks every output against a fresh computation without any cache, audits the
executor's memory against the tree, and requires that nothing is left behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from k3mem.engine import Engine
from k3mem.errors import ExecutorFailed
from k3mem.executors.mock import Entry, Faults, MockExecutor, fresh_output
from k3mem.plan import Plan, Sampling
from k3mem.policy import Policy
from k3mem.request import Output, Request
from k3mem.shape import Shape
from k3mem.types import Int32

VOCAB = 97
STATE, TOKEN = 640, 8


def shape(page_tokens: int = 16, state_chunk: int = 16, **more: int) -> Shape:
    """A tiny model: a state of 640 bytes, 8 bytes a token."""
    return Shape("tiny", STATE, TOKEN, page_tokens=page_tokens, state_chunk=state_chunk, vocab_size=VOCAB,
                 max_tokens=4096, align=1, record_bytes=4, **more)


@dataclass
class Expected:
    """A request in the world and what must come out of it."""

    request: Request
    tokens: list[int]
    got: list[int] = field(default_factory=list)
    reason: str | None = None


class ScriptedDrafter:
    """Drafts that are right with a given chance: it knows what the model will say."""

    def __init__(self, world: World, chance: float) -> None:
        self.world, self.chance = world, chance

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32:
        want = self.world.expected[request_id]
        rng, at = self.world.rng, len(tokens) - len(want.request.prompt)
        count = rng.randint(0, limit)
        true = want.tokens[at : at + count]
        return np.array([t if rng.random() < self.chance else rng.randrange(VOCAB) for t in true], np.int32)


@dataclass(kw_only=True)
class World:
    """One run. Sizes in pages and states; `states` counts free states beside the sink."""

    seed: int = 0
    requests: int = 100
    shape: Shape = field(default_factory=shape)
    states: int = 12
    pages: int = 60
    policy: Policy = field(default_factory=lambda: Policy(token_budget=48, max_running=6))
    window: int = 1
    draft_chance: float = 0.7
    abort_rate: float = 0.05
    capture: str = "any"
    faults: Faults | None = None
    longest: int = 160
    most_new: int = 24
    check_every: int = 1
    audit_every: int = 40
    stops: bool = True
    mangle: Callable[[Plan], Plan] | None = None
    """Applied to every plan on its way to the executor."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.executor = MockExecutor(seed=self.seed, capture=self.capture, strict_handout=False,  # type: ignore[arg-type]
                                     faults=self.faults)
        if self.mangle is not None:
            launch, mangle = self.executor.launch, self.mangle
            self.executor.launch = lambda plan: launch(mangle(plan))  # type: ignore[method-assign]
        self.now = 0.0
        drafter = ScriptedDrafter(self, self.draft_chance) if self.window > 1 else None
        scratch = self.policy.max_running * self.window * self.shape.record_bytes if drafter else 0
        capacity = (self.states + 1) * STATE + (self.pages + 1) * self.shape.page_bytes + scratch
        self.engine = Engine(self.shape, self.executor, capacity, self.policy, clock=lambda: self.now,
                             drafter=drafter, window=self.window)
        self.expected: dict[Hashable, Expected] = {}
        self.live: list[Hashable] = []
        self.history: list[Int32] = []
        self.made = self.steps = 0
        self.failures: list[str] = []

    # -- the clients

    def new_request(self) -> Request:
        """A prompt that starts somewhere on a known path, or nowhere."""
        rng = self.rng
        base: list[int] = []
        if self.history and rng.random() < 0.8:
            base = rng.choice(self.history[-12:]).tolist()
            if rng.random() < 0.4:
                base = base[: rng.randrange(len(base) + 1)]
        prompt = (base + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 50))])
        prompt = prompt[: rng.randrange(1, self.longest)] if len(prompt) >= self.longest else prompt
        new = rng.randint(1, self.most_new)
        options: dict[str, object] = {"priority": rng.choice([0, 0, 0, 1]), "salt": rng.choice(["", "", "", "b"])}
        if self.stops and rng.random() < 0.3:
            options["sampling"] = Sampling(temperature=rng.choice([0.0, 0.7]), seed=rng.randrange(4),
                                           stop_ids=tuple(rng.sample(range(VOCAB), 4)))
        if self.stops and rng.random() < 0.1:
            stop_at = rng.randint(1, new)
            options["stop"] = lambda out: stop_at if len(out) >= stop_at else None
        if rng.random() < 0.2:
            options["hints"] = (rng.randrange(len(prompt) + 1),)
        return Request(self.made, prompt, new, **options)

    def submit(self) -> None:
        request = self.new_request()
        scope = self.engine.scheduler.core.cache.scope(request.scope)
        want = fresh_output(self.engine.scheduler.core.cache.digest(scope), request.prompt.tolist(), request.sampling,
                            request.max_new_tokens, vocab_size=VOCAB)
        self.expected[request.id] = Expected(request, want)
        self.engine.submit(request)
        self.live.append(request.id)
        self.made += 1

    def act(self) -> None:
        """What clients do between two steps."""
        rng = self.rng
        if self.made < self.requests:
            for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
                self.submit()
        if self.live and rng.random() < self.abort_rate:
            self.engine.abort(rng.choice(self.live))
        self.now += 0.1

    # -- one run

    def run(self) -> World:
        """To the end. Returns itself; `failures` lists everything that was wrong."""
        while self.made < self.requests or self.engine.has_work:
            self.act()
            self.one_step()
            if self.steps > 400 * self.requests + 1000:
                self.failures.append("no end in sight")
                return self
        self.settle()
        return self

    def one_step(self) -> None:
        self.steps += 1
        try:
            outputs = self.engine.step()
        except ExecutorFailed:
            outputs = self.engine.take_outputs()
        for out in outputs:
            self.take(out)
        if self.steps % self.check_every == 0:
            self.engine.check()
        if self.steps % self.audit_every == 0:
            self.audit()

    def take(self, out: Output) -> None:
        """An output must continue what a fresh computation says."""
        want = self.expected[out.id]
        if want.reason is not None:
            self.failures.append(f"request {out.id}: output after its end")
        want.got += out.tokens
        if want.got != want.tokens[: len(want.got)] and out.keep is None:
            self.failures.append(f"request {out.id}: {want.got} is not {want.tokens[: len(want.got)]}")
        if out.finished:
            want.reason = out.reason
            if out.reason in ("stop", "length") and want.got != want.tokens:
                self.failures.append(f"request {out.id}: ended with {len(want.got)} of {len(want.tokens)} tokens")
            if out.reason == "host_stop" and want.got[: out.keep] != want.tokens[: out.keep]:
                self.failures.append(f"request {out.id}: wrong tokens before its host stop")
            self.live.remove(out.id)
            self.history.append(np.concatenate([want.request.prompt, np.array(want.got, np.int32)]))

    def audit(self) -> None:
        """The executor's memory against the tree: every checkpoint and every page, hit or not."""
        core = self.engine.scheduler.core
        if self.faults is not None and (core.flights or core.resync):
            return  # a step in flight may be about to fail; after a failure the device has stale tables till the resync
        tree, cache = core.cache.tree, core.cache
        walk = tree.walk()
        entries = [
            Entry(cache.digest(int(s)), tree.path_tokens(int(n)), int(d), int(state), tree.pages(int(n)))
            for n, d, state, s in zip(walk.node, walk.depth, walk.state, walk.scope, strict=True)
        ]
        tables = [table.tolist() for table in cache.arena.tables()]
        self.failures += [str(difference) for difference in self.executor.audit(entries, *tables)]
        self.failures += self.executor.violations
        self.executor.violations.clear()

    def settle(self) -> None:
        """Everybody was answered, nothing is owned by anyone but the tree."""
        self.failures += [f"request {i}: no end" for i, e in self.expected.items() if e.reason is None]
        self.audit()
        self.engine.check()
        core = self.engine.scheduler.core
        counters = core.cache.tree.counters()
        if core.lanes.running or counters.locks or core.queue or core.jobs:
            self.failures.append("a drained world still has lanes, locks or jobs")
        usage = core.cache.arena.usage()
        if usage.live_states != counters.checkpoints:
            self.failures.append(f"{usage.live_states} states live, {counters.checkpoints} checkpoints")
        gone = core.cache.tree.flush()
        core.cache.give_back(gone)
        usage = core.cache.arena.usage()
        if usage.live_pages or usage.live_states:
            self.failures.append(f"after a flush {usage.live_pages} pages and {usage.live_states} states are owned")
