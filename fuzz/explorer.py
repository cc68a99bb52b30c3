"""Exhaustive small scope: two requests of two turns, a handful of pages and states, every order of what can happen.

    submit | plan and launch | commit | abort        each possible action at each state, to the end

States are compared by all that decides what comes next; a state seen before is not explored again. The engine cannot be
copied, so a branch is reached by replaying its actions from the start.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from k3mem.fuzz import script as do
from k3mem.fuzz.oracle import Found
from k3mem.fuzz.script import Action, Config, Script
from k3mem.fuzz.world import World

TURNS = 2
REQUESTS = 2
FLIGHTS = 2
"""Steps in flight at most."""
ABORTS = 1
"""Requests that may be aborted in one order."""


def scopes() -> list[Config]:
    """The arenas and streams of the scope: 3 to 5 pages, 2 to 4 states, commands at launch or as late as can be."""
    base = Config(page_tokens=4, state_chunk=4, state_bytes=96, token_bytes=8, budget=8, running=2, check_every=0,
                  audit_every=0)
    return [
        _with(base, pages=pages, states=states, eager=eager, shuffle=shuffle, in_flight=1)
        for pages, states, eager, shuffle in (
            (3, 2, False, True), (5, 2, False, False), (4, 3, True, True), (5, 4, False, True), (3, 4, True, False))
    ]


def _with(config: Config, **changes: object) -> Config:
    import msgspec

    return msgspec.structs.replace(config, **changes)


@dataclass(slots=True)
class Explored:
    """What was visited."""

    states: int = 0
    orders: int = 0
    """Complete orders: from the first action to a drained world."""
    pruned: int = 0
    """Branches that led to a state seen before."""
    steps: int = 0
    seconds: float = 0.0
    complete: bool = True
    found: Found | None = None
    script: Script | None = None
    """The order that shows it."""


class Explorer:
    """Depth-first over all orders of one configuration."""

    def __init__(self, config: Config, out: Explored, deadline: float) -> None:
        self.config, self.out, self.deadline = config, out, deadline
        self.seen: set[Hashable] = set()

    def run(self) -> None:
        """All of it, or until the deadline or the first fault."""
        stack: list[list[Action]] = [[]]
        for turn in itertools.count():
            if not stack:
                return
            if turn % 64 == 0 and time.process_time() > self.deadline:
                self.out.complete = False
                return
            path = stack.pop()
            try:
                stack += self._descend(path)
            except Found as found:
                whole = [part for action in path
                         for part in ((action, do.Launch()) if isinstance(action, do.Plan) else (action,))]
                self.out.found = found
                self.out.script = Script(_with(self.config, check_every=1, audit_every=1), whole)
                return

    def _descend(self, path: list[Action]) -> list[list[Action]]:
        """Replay `path`, then go on with the first choice of each state; the other choices are returned."""
        world = World(self.config)
        later: list[list[Action]] = []
        for action in path:
            self._do(world, action)
        while True:
            world.look()
            if path:
                key = fingerprint(world)
                if key in self.seen:
                    self.out.pruned += 1
                    return later
                self.seen.add(key)
            self.out.states += 1
            choices = self._choices(world)
            if not choices:
                self.out.orders += 1
                world.settle()
                return later
            later += [[*path, choice] for choice in choices[1:]]
            path.append(choices[0])  # in place: the caller reports it when this one fails
            self._do(world, choices[0])

    def _do(self, world: World, action: Action) -> None:
        self.out.steps += 1
        world.do(action)
        if isinstance(action, do.Plan):
            world.do(do.Launch())

    def _choices(self, world: World) -> list[Action]:
        lines, flights = world.oracle.lines, world.core.flights
        out: list[Action] = []
        if flights:
            out.append(do.Commit())
        if len(flights) < FLIGHTS and world.engine.has_work and world.empty_at != world.steps:
            out.append(do.Plan())
        for client in range(REQUESTS):
            turn = next((t for t in range(TURNS) if _id(client, t) not in lines), None)
            before = lines.get(_id(client, turn - 1)) if turn else None
            if turn is not None and (before is None or before.reason is not None):
                out.append(_turn(client, turn))
        if sum(line.reason == "abort" for line in lines.values()) < ABORTS:
            out += [do.Abort(n) for n, line in lines.items() if line.reason is None]
        return out


def _id(client: int, turn: int) -> int:
    return 10 * client + turn


def _turn(client: int, turn: int) -> Action:
    """Both clients begin alike and part inside the second page; a second turn goes on from the whole first one."""
    if turn == 0:
        return do.Submit(_id(client, 0), text=7, count=5 + 2 * client, new=2)
    return do.Submit(_id(client, turn), _id(client, turn - 1), 64, 20 + client, 1, 2 - client)


def fingerprint(world: World) -> Hashable:
    """All that decides what comes next, up to names of ids and step numbers."""
    core = world.core
    tree, arena = core.cache.tree, core.cache.arena
    walk = tree.walk()
    order = np.lexsort((walk.depth, walk.scope))
    nodes = []
    for i in order.tolist():
        info = tree.info(int(walk.node[i]))
        nodes.append((int(walk.depth[i]), tree.path_tokens(int(walk.node[i])).tobytes(), int(walk.state[i]),
                      tree.pages(int(walk.node[i])).tobytes(), int(info.kind), info.lock, info.superseded,
                      info.stamp >= (core.flights[0].plan.step if core.flights else core.step + 1)))
    seats = tuple(
        (s.job.request.id, s.lane, int(s.state), s.node_depth, s.pages[: s.page_count].tobytes(), s.owned, s.touched,
         s.prefilled, s.target, -1 if s.end is None else int(s.end), tuple(sorted(s.slots.items())),
         tuple(sorted((d, int(k)) for d, k in s.anchors.items())))
        for s in core.lanes.taken()
    )
    flights = tuple((f.plan.lane.tobytes(), f.plan.start.tobytes(), f.plan.length.tobytes(), f.plan.kind.tobytes())
                    for f in core.flights)
    jobs = tuple((job.request.id, job.count, job.waits, job.serial) for job in core.queue)
    lines = tuple((n, line.got, line.reason) for n, line in sorted(world.oracle.lines.items()))
    tables = tuple(table.tobytes() for table in arena.tables())
    return hash((tuple(nodes), seats, flights, jobs, lines, tables, core.resync, core.waits_for))


def explore(seconds: float = 60.0, configs: list[Config] | None = None,
            progress: Callable[[int, Explored], None] = lambda done, out: None) -> Explored:
    """Every configuration of the scope, within `seconds` of CPU time."""
    began = time.process_time()
    out = Explored()
    todo = scopes() if configs is None else configs
    for done, config in enumerate(todo):
        Explorer(config, out, began + seconds).run()
        progress(done + 1, out)
        if out.found is not None or not out.complete:
            break
    out.seconds = time.process_time() - began
    return out
