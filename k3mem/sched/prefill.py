"""Prefill rows of a plan: chunks of the prompts that are running, and their targets."""

from __future__ import annotations

from functools import partial

from k3mem.radix import Kind
from k3mem.sched import anchors, room
from k3mem.sched.builder import Builder, PrefillRow
from k3mem.sched.core import Core
from k3mem.sched.decode import touch
from k3mem.sched.job import Seated

ALL, CHEAP = room.Evict.ALL, room.Evict.CHEAP
MINOR = (Kind.CHUNK_END, Kind.INTERVAL)
"""Kinds for which no useful checkpoint is evicted."""


def budget_left(core: Core, b: Builder) -> int:
    """Tokens that this plan may still compute."""
    return core.policy.token_budget - b.tokens


def add_rows(core: Core, b: Builder, least: int | None = None) -> None:
    """A chunk for every running prompt that has none in this plan yet, best ranks first, while the budget lasts.
    `least`: only for ranks that start with it or with less (a priority, negated)."""
    if not b.prompts:
        return
    seats = [s for s in b.prompts if least is None or s.rank[0] <= least]
    if len(seats) > 1:
        seats.sort(key=lambda s: s.rank)
    for seat in seats:
        if seat.end is None and not add_chunk(core, b, seat):
            break
        b.prompts.remove(seat)


def add_chunk(core: Core, b: Builder, seat: Seated) -> bool:
    """One chunk of a seat's prompt; False when the budget reaches no place to end it."""
    start = int(core.lanes.launched[seat.lane])
    end = _chunk_end(core, b, seat, start)
    if end <= start:
        return False
    span = core.span
    whole = (-(-start // span), end // span)
    touch(core, b, seat, -(-end // span), whole)
    b.prefill.append(PrefillRow(seat, start, end))
    b.tokens += end - start
    return True


def _chunk_end(core: Core, b: Builder, seat: Seated, start: int) -> int:
    """Where this chunk ends: the prompt's end, or the deepest grid depth that the budget reaches; off the grid only
    when nothing else can run."""
    left = budget_left(core, b)
    if left <= 0:
        return start
    end = anchors.cut(core, seat, start, min(seat.target, start + left))
    if end == seat.target:
        return end
    on_grid = end // core.grid * core.grid
    if on_grid > start:
        return on_grid
    return end if left >= core.policy.token_budget else start


def add_targets(core: Core, b: Builder) -> None:
    """Targets for the anchors inside this plan's chunks, in order of kind. No room: skipped and counted."""
    if not b.prefill or not core.policy.caching:
        return
    wanted = [
        (anchors.PLACE[kind], depth, kind, row)
        for row in b.prefill for depth, kind in anchors.inside(core, row.seat, row.start, row.end)
    ]
    for _, depth, kind, row in sorted(wanted, key=lambda w: w[:2]):
        seat = row.seat
        target = seat.slots.pop(depth, None)
        if target is not None:
            b.journal.append(partial(seat.slots.__setitem__, depth, target))
        else:
            target = room.take_state(core, b, CHEAP if kind in MINOR else ALL)
        if target is None:
            core.metrics.skipped_snapshots += 1
            continue
        row.targets.append((depth, target, kind))
    for row in b.prefill:
        if len(row.targets) > 1:
            row.targets.sort(key=lambda t: t[0])
