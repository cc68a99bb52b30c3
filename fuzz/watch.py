"""What must hold in a world between actions, and once it has drained. Each raises Found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from k3mem.errors import Corrupted
from k3mem.executors.mock import Entry
from k3mem.fuzz.oracle import Found
from k3mem.request import Request

if TYPE_CHECKING:
    from k3mem.fuzz.steps import Steps

MOST_IDLE = 1000
"""Steps that a drained world may go on moving entries."""


class Trace:
    """Equal to another trace with the same state; to any where something was evicted or retracted in between."""

    def __init__(self, gone: tuple[int, ...], state: tuple[object, ...]) -> None:
        self.gone, self.state = gone, state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and (self.gone != other.gone or self.state == other.state)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(self.state)


def state(world: Steps) -> object:
    """What a cancelled plan may not change, unless it evicted or retracted."""
    core = world.core
    metrics, counters, usage = core.metrics, core.cache.tree.counters(), core.cache.arena.usage()
    gone = (metrics.evicted, metrics.retractions, metrics.events["victim"])
    return Trace(gone, (
        counters.checkpoints, counters.kv_pages, counters.locks, usage.live, usage.live_pages, usage.live_states,
        [job.request.id for job in core.queue], core.lanes.running, sorted(core.jobs, key=str),
        (core.lanes.launched * (core.lanes.phase > 0)).tolist(), core.lanes.phase.tolist(),
        metrics.skipped_snapshots, metrics.takeovers, metrics.followers, metrics.steps, metrics.hit_tokens,
    ))


def check(world: Steps) -> None:
    """The core's own invariants, and sums that need none of its tables."""
    world.engine.check()
    core = world.core
    usage, counters = core.cache.arena.usage(), core.cache.tree.counters()
    capacity = core.cache.arena.capacity_bytes
    total = usage.fixed + usage.live + usage.holes + usage.pending + usage.gap + usage.pad
    lives = usage.live_pages * world.shape.page_bytes + usage.live_states * world.shape.state_bytes
    if total != capacity or lives != usage.live:
        raise Found("oracle", f"{usage} does not sum to {capacity} bytes")
    metrics = core.metrics
    if metrics.hit_tokens + sum(metrics.causes.values()) != metrics.input_tokens:
        raise Found("oracle", "hits and causes do not sum to the input")
    spare = usage.live_states - counters.checkpoints
    most = core.lanes.running * 5 + (sum(len(r.targets) for r in core.open.prefill) if core.open else 0)
    if spare > most:
        raise Found("oracle", f"{spare} states are owned by {core.lanes.running} running requests")
    world.transfers.check()


def roomy(world: Steps) -> bool:
    """Whether all requests together would fit side by side, each with every checkpoint that it may leave."""
    pages, states = world.oracle.pages + 2 * world.config.running, world.oracle.states + 4 * world.config.running
    states += 2 * world.core.metrics.retractions
    return bool(world.core.cache.arena.capacity_for(pages, states))


def audit(world: Steps) -> bool:
    """The executor's memory against the tree: every checkpoint and every page, hit or not. False where that cannot be
    told now."""
    core = world.core
    if core.resync or (core.flights and world.faults.due) or _doomed(world) or core.open is not None:
        return False  # after a failure the device has stale tables till the resync; a doomed step may yet scribble
    tree, cache = core.cache.tree, core.cache
    walk = tree.walk()
    entries = [
        Entry(cache.digest(int(s)), tree.path_tokens(int(n)), int(d), int(state), tree.pages(int(n)))
        for n, d, state, s in zip(walk.node, walk.depth, walk.state, walk.scope, strict=True)
    ]
    wrong = world.executor.audit(entries, *_told(cache.arena))
    wrong += world.executor.violations
    if wrong:
        raise Found("oracle", str(wrong[0]))
    return True


def _told(arena: Any) -> list[list[tuple[int, int]]]:
    """The tables as the device must have them: without entries whose new place the next plan will name."""
    out = []
    for name, table in zip(("page", "state"), arena.tables(), strict=True):
        due = set(arena._table(f"{name}_dirty").tolist())
        out.append([(entry, place) for entry, place in table.tolist() if entry not in due])
    return out


def _doomed(world: Steps) -> bool:
    return any(flight.ticket is not None and flight.ticket.fault is not None for flight in world.core.flights)


def drained(world: Steps) -> None:
    """Nobody owns anything but the tree, and after a flush nobody does."""
    core = world.core
    world.now += 1e9
    for _ in range(MOST_IDLE):  # time passes only for who plans; holes may close meanwhile
        world.one_step()
        if not core.flights:
            break
    counters, usage = core.cache.tree.counters(), core.cache.arena.usage()
    if core.lanes.running or counters.locks or core.queue or core.jobs:
        raise Found("oracle", f"a drained world has {core.lanes.running} lanes, {counters.locks} locks, "
                              f"{len(core.jobs)} jobs")
    if usage.live_states != counters.checkpoints:
        raise Found("oracle", f"{usage.live_states} states live, {counters.checkpoints} checkpoints")
    world.engine.flush()
    usage = core.cache.arena.usage()
    if usage.live_pages or usage.live_states:
        raise Found("oracle", f"after a flush {usage.live_pages} pages and {usage.live_states} states are owned")
    if core.metrics.input_tokens > world.oracle.input:
        raise Found("oracle", f"{world.oracle.input} input tokens were seated, {core.metrics.input_tokens} counted")
    if core.metrics.output_tokens != world.oracle.output:
        raise Found("oracle", f"{world.oracle.output} tokens came out, {core.metrics.output_tokens} were counted")


def latches(world: Steps) -> None:
    """The last thing in a world: a result of another step is refused, and everything else after it."""
    engine = world.engine
    world.transfers.end_all()
    engine.submit(Request(-3, [1, 2, 3], 1))
    flights: Sequence[Any] = ()
    for _ in range(MOST_IDLE):
        plan = engine.plan()
        if plan is not None:
            engine.launch(plan)
        flights = engine.flights
        if flights and flights[0].plan.rows:
            break
        if flights:
            engine.commit(flights[0], engine.collect(flights[0]))
    result = replace(engine.collect(flights[0]), step=flights[0].plan.step + 1)
    for call in (partial(engine.commit, flights[0], result), engine.plan, engine.check):
        try:
            call()
        except Corrupted:
            continue
        raise Found("oracle", "a broken invariant was reported, and the engine goes on")
