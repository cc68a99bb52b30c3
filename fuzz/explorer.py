"""Exhaustive small scope: two requests of two turns, a handful of pages and states, every order of what can happen.

    submit | plan and launch, run at once or late | commit        at each state each of them, to the end,
    abort in any window | cancel | failed step | transfer         with at most one misfortune an order

A state is met again when its fingerprint is; then a world that has come to it by another order does for it as well.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from k3mem.errors import Corrupted, Effect
from k3mem.executors.mock.streams import Streams
from k3mem.fuzz import script as do
from k3mem.fuzz.fingerprint import fingerprint
from k3mem.fuzz.oracle import Found
from k3mem.fuzz.runner import replay
from k3mem.fuzz.script import Action, Config, Script
from k3mem.fuzz.world import World
from k3mem.request import Request

TURNS = 2
REQUESTS = 2
FLIGHTS = 2
"""Steps in flight at most."""
AHEAD = 4
"""A world takes so many known choices to one that is untried rather than ending: a new one has to come from the start,
which is a dozen."""
RESEEDS = 20
"""Seeds of the executor that are tried for a script of an order in which steps ran late."""

Misfortune = Literal["abort", "windows", "fail", "lease"]
"""abort: between two steps. windows: also inside one, before its launch or after its result came; and plans are
cancelled. fail: a step fails, at launch or later, with any effect. lease: a transfer holds a checkpoint for a while."""


class Scope(NamedTuple):
    """One arena, and what may happen in it beside submissions, plans and commits."""

    config: Config
    misfortunes: frozenset[Misfortune]
    late: bool = False
    """Whether each step may run at its launch or only when the host needs it or a later one that runs at launch."""

    def __str__(self) -> str:
        c = self.config
        return (f"{c.pages} pages, {c.states} states, {'eager' if c.eager else 'lazy'} moves, "
                f"{' and '.join(sorted(self.misfortunes)) or 'no misfortune'}{', late steps' if self.late else ''}")


def scopes() -> list[Scope]:
    """3 to 5 pages, 2 to 4 states; every misfortune in a tight arena, and tight ones in both policies of moves."""
    out = []
    for pages, states, eager, late, names in (
        (3, 2, False, True, ()), (3, 2, False, False, ("windows",)), (3, 2, False, False, ("fail",)),
        (4, 3, True, False, ("lease",)), (5, 2, False, False, ("abort",)), (5, 4, False, False, ("abort",)),
        (3, 4, True, False, ("abort",)),
    ):
        config = Config(page_tokens=4, state_chunk=4, state_bytes=96, token_bytes=8, budget=8, running=2,
                        check_every=0, audit_every=0, pages=pages, states=states, eager=eager, shuffle=False)
        out.append(Scope(config, frozenset(names), late))  # type: ignore[arg-type]
    return out


class Holding(do.Lease, frozen=True):
    """A lease of the `nth` committed checkpoint in the order of tokens: a script's numbers go by names."""


class Choice(NamedTuple):
    """What happens next: actions without a state of interest between them."""

    actions: tuple[Action, ...]
    late: bool = False
    """The step that is launched does not run yet."""
    costs: bool = False
    """A misfortune."""

    def __str__(self) -> str:
        names = [f"{type(a).__name__}({', '.join(map(str, _short(a)))})" for a in self.actions]
        return " ".join(names) + (" late" if self.late else "")


def _short(action: Action) -> list[Any]:
    return [v.value if isinstance(v, Effect) else v for f in action.__struct_fields__[:2]
            if (v := getattr(action, f)) is not None]


@dataclass(slots=True)
class Explored:
    """What was visited."""

    states: int = 0
    orders: int = 0
    """Complete orders that were run: from the first action to a drained world."""
    covered: int = 0
    """Complete orders that these stand for: paths through the states."""
    pruned: int = 0
    """Branches that led to a state seen before."""
    steps: int = 0
    """Actions carried out, replays included."""
    longest: int = 0
    """Choices of the longest order."""
    seconds: float = 0.0
    complete: bool = True
    found: Found | None = None
    order: list[str] = field(default_factory=list)
    """The order that shows it ..."""
    script: Script | None = None
    """... and a script that does, where there is one: a script cannot say which steps ran late."""

    def as_dict(self) -> dict[str, Any]:
        return {"states": self.states, "orders": self.orders, "covered": self.covered, "pruned": self.pruned,
                "steps": self.steps, "longest": self.longest, "seconds": round(self.seconds, 2),
                "complete": self.complete, "found": str(self.found) if self.found else None, "order": self.order}


class Told(Streams):
    """Streams that run everything at once, or nothing while they are `held`."""

    held = False

    def some(self) -> None:
        if not self.held:
            self.drain()


class Small(World):
    """A world whose requests are the same in every order, so that they are made once."""

    def __init__(self, config: Config, requests: dict[int, Request]) -> None:
        super().__init__(config)
        self.requests = requests

    def _request(self, a: do.Submit) -> Request:
        if a.id not in self.requests:
            self.requests[a.id] = super()._request(a)
        return self.requests[a.id]


@dataclass(slots=True)
class State:
    """One that was met."""

    path: list[Choice]
    """An order that leads there."""
    todo: deque[Choice]
    """What has not been tried yet."""
    next: list[tuple[Choice, int]] = field(default_factory=list)
    """What has been tried, and the number of the state to which it led."""


class Explorer:
    """All orders of one scope: a world walks from state to state while there is something untried at most `AHEAD`
    choices away; then another one is led from the start to the first state with something untried."""

    def __init__(self, scope: Scope, out: Explored, deadline: float) -> None:
        self.scope, self.out, self.deadline = scope, out, deadline
        self.states: list[State] = []
        self.numbers: dict[tuple[bool, int], int] = {}
        """State -> its number. A state: whether the misfortune has happened, and the world's fingerprint."""
        self.requests: dict[int, Request] = {}
        self.path: list[Choice] = []
        """Of the world that walks."""

    def run(self) -> None:
        """All of it, or until the deadline or the first fault."""
        try:
            self._arrive(self.world(), [], -1, None)
            for at, state in enumerate(self.states):  # which grow meanwhile
                while state.todo:
                    if time.process_time() > self.deadline:
                        self.out.complete = False
                        return
                    self._walk(at)
            self.out.covered += self._paths()
        except Found as found:
            self.out.found = found
            self.out.order = [str(choice) for choice in self.path]
            self.out.script = self._script(self.path)

    def world(self) -> World:
        """A new one, whose steps run when they are told."""
        world = Small(self.scope.config, self.requests)
        executor = world.executor
        executor._streams = Told(executor._rng, False)
        return world

    def _walk(self, at: int) -> None:
        """Lead a world to state `at` and on, until nothing is untried near by or it is at an end."""
        world = self.world()
        self.path = []
        for choice in self.states[at].path:
            self.path.append(self.do(world, choice))
        while True:
            for choice, to in self._way(at):
                self.path.append(self.do(world, choice))
                at = to
            todo = self.states[at].todo
            if not todo:
                return
            self.path.append(todo[0])  # as it is meant, should it fail on the way
            self.path[-1] = self.do(world, todo[0])
            before, known = at, len(self.states)
            at = self._arrive(world, self.path, before, todo.popleft())
            if at == known and not self.states[at].todo:
                world.settle()
                return

    def _way(self, at: int) -> list[tuple[Choice, int]]:
        """Known choices from a state to the nearest one with something untried, at most `AHEAD`; [] where there is
        none, or where it is this one."""
        ways: list[tuple[int, list[tuple[Choice, int]]]] = [(at, [])]
        seen = {at}
        for here, way in ways:
            state = self.states[here]
            if state.todo:
                return way
            if len(way) < AHEAD:
                for step in state.next:
                    if step[1] not in seen:
                        seen.add(step[1])
                        ways.append((step[1], [*way, step]))
        return []

    def _arrive(self, world: World, path: list[Choice], before: int, choice: Choice | None) -> int:
        """Number of the state in which the world is now; all about it is looked at."""
        self._look(world)
        spent = any(choice.costs for choice in path)
        key = (spent, fingerprint(world))
        number = self.numbers.setdefault(key, len(self.states))
        if choice is not None:
            self.states[before].next.append((choice, number))
        if number < len(self.states):
            self.out.pruned += 1
            return number
        self.states.append(State(list(path), deque(self.choices(world, spent))))
        self.out.states += 1
        if not self.states[-1].todo:
            self.out.orders += 1
            self.out.longest = max(self.out.longest, len(path))
        return number

    def do(self, world: World, choice: Choice) -> Choice:
        """Carry one choice out. What it was in the names of this world."""
        streams: Any = world.executor._streams
        actions = []
        for action in choice.actions:
            self.out.steps += 1
            streams.held = choice.late if isinstance(action, do.Launch) else self.scope.late
            actions.append(do.Lease(_nth_node(world, action.nth)) if isinstance(action, Holding) else action)
            world.do(actions[-1])
        return choice._replace(actions=tuple(actions))

    def _look(self, world: World) -> None:
        """All invariants now; the executor's memory when no step is late, since looking would run it."""
        if not world.executor._streams.waiting:
            world.look()
            return
        try:
            world.engine.check()
        except Corrupted as error:
            raise Found("check", str(error)) from error

    def choices(self, world: World, spent: bool) -> list[Choice]:
        """All that may happen now, what moves the engine on first."""
        lines, flights = world.oracle.lines, world.core.flights
        wanted: frozenset[Misfortune] = frozenset() if spent else self.scope.misfortunes
        alive = [n for n, line in lines.items() if line.reason is None]
        may_plan = len(flights) < FLIGHTS and world.engine.has_work
        out: list[Choice] = []
        if flights:
            out.append(Choice((do.Commit(),)))
        if may_plan:
            out.append(Choice((do.Plan(), do.Launch())))
            if self.scope.late:
                out.append(Choice((do.Plan(), do.Launch()), late=True))
        for client in range(REQUESTS):
            turn = next((t for t in range(TURNS) if _id(client, t) not in lines), None)
            before = lines.get(_id(client, turn - 1)) if turn else None
            if turn is not None and (before is None or before.reason is not None):
                out.append(Choice((_turn(client, turn),)))
        if wanted & {"abort", "windows"}:
            out += [Choice((do.Abort(n),), costs=True) for n in alive]
        if "windows" in wanted and may_plan:
            out.append(Choice((do.Plan(), do.Cancel())))
            for n in alive:
                out += [Choice((do.Plan(), do.Abort(n), half), costs=True) for half in (do.Launch(), do.Cancel())]
        if "windows" in wanted and flights:
            out += [Choice((do.Collect(), do.Abort(n), do.Commit()), costs=True) for n in alive]
        if "fail" in wanted and may_plan:
            out += [Choice((do.Fail(at, effect), do.Plan(), do.Launch()), costs=True)
                    for at in ("launch", "collect") for effect in Effect]
        if "lease" in wanted:
            checkpoints = world.core.cache.tree.counters().checkpoints
            out += [Choice((Holding(nth),), costs=True) for nth in range(checkpoints)]
        if world.core.cache.arena.leases:
            out.append(Choice((do.Unlease(),)))
        return out

    def _paths(self) -> int:
        """Orders through the states from the first to one without a successor; a step back is not taken."""
        counts: dict[int, int] = {}
        on_path: set[int] = set()
        stack = [0]
        while stack:
            at = stack[-1]
            followers = [to for _, to in self.states[at].next]
            if at not in on_path:
                on_path.add(at)
                stack += [to for to in followers if to not in counts and to not in on_path]
                continue
            stack.pop()
            if at not in counts:
                counts[at] = sum(counts.get(to, 0) for to in followers) if followers else 1
        return counts[0]

    def _script(self, path: list[Choice]) -> Script | None:
        """A script that fails as the order does, None where no seed of the executor brings its late steps about."""
        actions = [action for choice in path for action in choice.actions]
        late = any(choice.late for choice in path)
        for seed in range(RESEEDS if late else 1):
            config = msgspec.structs.replace(self.scope.config, check_every=1, audit_every=1, shuffle=late, seed=seed)
            script = Script(config, actions)
            if replay(script).found is not None:
                return script
        return None


def _nth_node(world: World, nth: int) -> int:
    """Where the `nth` committed checkpoint in the order of tokens stands in the order of nodes; 0 if there is none."""
    core, walk = world.core, world.core.cache.tree.walk()
    first = core.flights[0].plan.step if core.flights else core.step + 1
    nodes = sorted(int(n) for n in walk.node[(walk.state >= 0) & (walk.stamp < first)])
    by_tokens = sorted(nodes, key=lambda node: core.cache.tree.path_tokens(node).tolist())
    return nodes.index(by_tokens[nth % len(nodes)]) if nodes else 0


def _id(client: int, turn: int) -> int:
    return 10 * client + turn


def _turn(client: int, turn: int) -> Action:
    """Both clients begin alike and part inside the second page; a second turn goes on from the whole first one."""
    if turn == 0:
        return do.Submit(_id(client, 0), text=7, count=5 + 2 * client, new=2)
    return do.Submit(_id(client, turn), _id(client, turn - 1), 64, 20 + client, 1, 2 - client)


def explore(seconds: float = 60.0, scope_list: list[Scope] | None = None,
            progress: Callable[[Scope, Explored], None] = lambda scope, out: None) -> Explored:
    """Every scope, within `seconds` of CPU time, up to the first fault. `progress`: after each scope."""
    began = time.process_time()
    out = Explored()
    for scope in scopes() if scope_list is None else scope_list:
        Explorer(scope, out, began + seconds).run()
        out.seconds = time.process_time() - began
        progress(scope, out)
        if out.found is not None or not out.complete:
            break
    out.seconds = time.process_time() - began
    return out
