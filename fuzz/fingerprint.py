"""What decides a world's future, as one number: two worlds with the same fingerprint go on alike.

Names do not count, what they stand for does: an entry of the arena is its place, a step is its position among the
flights, a job is its position in the order of ranks, recency is an order of nodes. Of what has ended only what later
prompts are made of counts.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from k3mem.fuzz.world import World
from k3mem.radix import Tree
from k3mem.sched.job import Seated
from k3mem.types import NodeId

FIELDS = ("parent", "start", "len", "state", "lock", "kind", "flags", "scope")
"""Tables of the tree, one number a node, beside its tokens, pages, recency and stamps."""
LIVE, KV, ROOT = 1, 2, 32
"""Flags of a node."""
PRICED = -2
"""A word `scope` that is no scope, but this less the place of a price."""
LANES = ("phase", "launched", "inflight", "covered", "touched", "limit")


def fingerprint(world: World) -> int:
    """A hash of all that decides what comes next. For a world without an open plan or a fetched result.
    O(nodes + ids + lanes)."""
    return hash(_of(world))


def _of(world: World) -> Hashable:
    core = world.core
    arena, lanes = core.cache.arena, core.lanes
    pages, states = (_Places(table) for table in arena.tables())
    steps = [flight.plan.step for flight in core.flights]
    seats = [seat for seat in lanes.seats if seat is not None]
    jobs = sorted(core.jobs.values(), key=lambda job: job.rank)
    flights = tuple(_flight(world, flight, pages, states) for flight in core.flights)
    return (
        _tree(core.cache.tree, pages, states, steps),
        tuple(_seat(seat, pages, states) for seat in seats),
        tuple((getattr(lanes, name) * (lanes.phase > 0)).tobytes() for name in LANES), tuple(lanes._free),
        tuple(sorted(core.ending)),
        tuple(int((lanes.last_step[seat.lane] >= np.array(steps)).sum()) for seat in seats),
        flights,
        tuple((job.request.id, job.count, job.waits, job.admission is None, job.reason, job in core.queue)
              for job in jobs),
        tuple((n, None if line.reason is not None else line.got) for n, line in sorted(world.oracle.lines.items())),
        tuple((np.minimum(arena._table(f"{kind}_owner"), 0).tobytes(), arena._table(f"{kind}_pending_place").tobytes(),
               tuple(sum(after >= step for step in steps) for after in arena._table(f"{kind}_pending_after").tolist()))
              for kind in ("page", "state")),
        tuple(tuple(sorted(places[i] for i in arena._table(f"{kind}_dirty").tolist()))
              for kind, places in (("page", pages), ("state", states))),
        tuple(sorted(places[i] for kind, places in enumerate((pages, states))
                     for i in np.flatnonzero(core.reserved[kind]._of).tolist() if i in places)),
        tuple((seat.lane, first, len(run)) for seat, first, run in core.deltas if lanes.seats[seat.lane] is seat),
        core.resync, core.failures, core.stalls, core.wanting and core.wanting.request.id,
        tuple((seat.lane, seat.lent is not None) for seat in core.lent),
        tuple(tuple(sorted((places[i], int(arena._table(f"{kind}_leases")[i]))
                           for i in np.flatnonzero(arena._table(f"{kind}_leases")).tolist()))
              for kind, places in (("page", pages), ("state", states))),
        tuple(world.faults.due), world.faults.rowless, world.faults.moving,
        tuple(_has_run(world, flight) for flight in core.flights),
    )


class _Places(dict[int, int]):
    """Place of every live id; ids that are not entries (none, free ones) stand for themselves, below 0."""

    def __init__(self, table: Any) -> None:
        super().__init__(table.tolist())

    def __missing__(self, entry: int) -> int:
        return min(int(entry), -2)


def _tree(tree: Tree, pages: _Places, states: _Places, steps: list[int]) -> Hashable:
    columns = [tree._table(name).tolist() for name in FIELDS]
    rows = {NodeId(node): row for node, row in enumerate(zip(*columns, strict=True)) if row[6] & LIVE}
    tokens = {node: b"" if row[6] & ROOT else tree._table("tokens", node).tobytes() for node, row in rows.items()}
    touch = tree._table("touch").tolist()
    stamp, kv_stamp = (tree._table(name).tolist() for name in ("stamp_low", "kv_stamp_low"))  # few steps: no high words
    used = sorted((node for node, row in rows.items() if not row[6] & ROOT), key=lambda node: touch[node])
    followed = tree._table("followed").tolist()  # nothing else of a price counts where recency decides
    recency = {node: at for at, node in enumerate(used)}
    paths: dict[int, tuple[object, ...]] = {}

    def path(node: NodeId) -> tuple[object, ...]:
        if node not in paths:
            row = rows[node]
            paths[node] = (row[7],) if row[6] & ROOT else (*path(NodeId(row[0])), tokens[node])
        return paths[node]

    def held(node: NodeId) -> tuple[int, ...]:
        flags = rows[node][6]
        return tuple(pages[p] for p in tree._table("pages", node).tolist()) if flags & KV and not flags & ROOT else ()

    return frozenset(
        (path(node), row[1], row[2], states[row[3]], row[4], row[5], row[6], recency.get(node), held(node),
         followed[PRICED - row[7]] if row[7] <= PRICED else 0,
         sum(stamp[node] >= step for step in steps), sum(kv_stamp[node] >= step for step in steps))
        for node, row in rows.items()
    )


def _seat(seat: Seated, pages: _Places, states: _Places) -> Hashable:
    return (
        seat.job.request.id, seat.lane, states[seat.state], seat.node_depth, seat.owned, seat.touched, seat.prefilled,
        seat.target, seat.end, tuple(pages[p] for p in seat.pages[: seat.page_count].tolist()),
        tuple(sorted((depth, states[s]) for depth, s in seat.slots.items())),
        tuple(sorted((depth, int(kind)) for depth, kind in seat.anchors.items())),
        seat.extra.depth, seat.extra.pending_depth, states[seat.extra.latest or 0], states[seat.extra.pending or 0],
    )


def _has_run(world: World, flight: Any) -> bool:
    return flight.ticket is not None and flight.ticket.event in world.executor._streams.events


def _flight(world: World, flight: Any, pages: _Places, states: _Places) -> Hashable:
    plan, lanes = flight.plan, world.core.lanes
    current = plan.generation == lanes.generation[plan.lane]
    fault = flight.ticket.fault if flight.ticket is not None else None
    written = tuple((tuple(pages[p] for p in ids.tolist()), first) for ids, first in flight.written)
    return (plan.lane.tobytes(), current.tobytes(), plan.start.tobytes(), plan.length.tobytes(), plan.kind.tobytes(),
            plan.sample.tobytes(), tuple((s.row, s.depth, states[s.target]) for s in flight.snapshots),
            tuple((r.start, r.end, tuple((d, states[t], int(k)) for d, t, k in r.targets)) for r in flight.prefill),
            written, flight.ends_lane, plan.moves.tobytes(), None if fault is None else (fault.at, fault.effect))
