"""Plans spoilt on their way to executor and recorder: each function breaks the order of two commands in one plan.

`spoilt(spoil)` plants one: every plan that gives an occasion is spoilt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.executor import Layout
from k3mem.fuzz.patching import Plant, all_of, patched
from k3mem.fuzz.race.mirror import Mirror, Tenant
from k3mem.fuzz.race.space import Space
from k3mem.fuzz.record import Recorder
from k3mem.plan import PAGE, Plan, Row

Spoil = Callable[[Plan, Mirror], "Plan | None"]
"""The spoilt plan, or None where this one gives no occasion. The mirror stands behind the plan's table updates."""


def put(plan: Plan, **entries: Any) -> Plan:
    """The plan with one more entry in each of these phases."""
    more: dict[str, Any] = {
        name: np.concatenate([getattr(plan, name), np.array([entry], np.int32)]) for name, entry in entries.items()}
    return replace(plan, **more)


def change(plan: Plan, name: str, at: tuple[int, ...], value: int) -> Plan:
    """The plan with one number of one array changed."""
    array = getattr(plan, name).copy()
    array[at] = value
    return replace(plan, **{name: array})


def omit(plan: Plan, name: str, at: int) -> Plan:
    """The plan without one entry of one array."""
    rest: dict[str, Any] = {name: np.delete(getattr(plan, name), at, axis=0)}
    return replace(plan, **rest)


def tenants(plan: Plan, mirror: Mirror, kind: Row | None = None) -> list[tuple[int, Tenant]]:
    """(row, tenant) of the rows that certainly run."""
    rows = enumerate(zip(plan.lane.tolist(), plan.kind.tolist(), strict=True))
    return [(i, mirror.lanes[lane]) for i, (lane, k) in rows if lane in mirror.lanes and kind in (None, k)]


def overlapping_moves(plan: Plan, mirror: Mirror) -> Plan | None:
    if not len(plan.moves):
        return None
    batch, kind, source, destination = plan.moves[0].tolist()
    return put(plan, moves=(batch, kind, destination, source))


def chain_in_one_batch(plan: Plan, mirror: Mirror) -> Plan | None:
    """The move's destination moves on in the same batch, to where another live page is."""
    free = [t for _, t in tenants(plan, mirror) if t.listed and mirror.owned(PAGE, int(t.pages[0]))]
    moves = [move for move in plan.moves.tolist() if move[1] == PAGE]
    if not free or not moves:
        return None
    return put(plan, moves=(moves[0][0], PAGE, moves[0][3], mirror.place(PAGE, int(free[0].pages[0]))))


def source_through_the_new_table(plan: Plan, mirror: Mirror) -> Plan | None:
    return change(plan, "moves", (0, 2), int(plan.moves[0, 3])) if len(plan.moves) else None


def move_left_out(plan: Plan, mirror: Mirror) -> Plan | None:
    return omit(plan, "moves", 0) if len(plan.moves) else None


def moved_entry_not_told(plan: Plan, mirror: Mirror) -> Plan | None:
    """A running lane's page moves, and its table entry stays."""
    mine = {int(page) for _, t in tenants(plan, mirror) for page in t.pages[: t.depth // mirror.span]}
    gone = [i for i, (page, place) in enumerate(plan.page_table.tolist())
            if page in mine and [0, place] in plan.moves[:, [1, 3]].tolist()]
    return omit(plan, "page_table", gone[0]) if gone and not plan.resync else None


def restore_of_a_target(plan: Plan, mirror: Mirror) -> Plan | None:
    if not (len(plan.restores) and len(plan.snapshots)):
        return None
    return change(plan, "restores", (0, 0), int(plan.snapshots[0, 2]))


def restore_left_out(plan: Plan, mirror: Mirror) -> Plan | None:
    return omit(plan, "restores", 0) if len(plan.restores) else None


def restore_chain(plan: Plan, mirror: Mirror) -> Plan | None:
    """The restored state is restored again over its own source."""
    return put(plan, restores=plan.restores[0, ::-1].tolist()) if len(plan.restores) else None


def restore_from_an_unknown_id(plan: Plan, mirror: Mirror) -> Plan | None:
    unknown = [i for i in range(1, len(mirror.places[1])) if not mirror.owned(1, i)]
    return change(plan, "restores", (0, 0), unknown[-1]) if len(plan.restores) and unknown else None


def target_is_anothers_state(plan: Plan, mirror: Mirror) -> Plan | None:
    for n, (row, _, _) in enumerate(plan.snapshots.tolist()):
        for other, tenant in tenants(plan, mirror):
            if other != row and Row.VERIFY not in (plan.kind[row], plan.kind[other]):
                return change(plan, "snapshots", (n, 2), tenant.state)
    return None


def target_is_its_own_state(plan: Plan, mirror: Mirror) -> Plan | None:
    rows = dict(tenants(plan, mirror))
    if not len(plan.snapshots) or int(plan.snapshots[0, 0]) not in rows:
        return None
    return change(plan, "snapshots", (0, 2), rows[int(plan.snapshots[0, 0])].state)


def two_rows_on_one_page(plan: Plan, mirror: Mirror) -> Plan | None:
    rows = tenants(plan, mirror, Row.PREFILL)
    if len(rows) < 2:
        return None
    (i, one), (j, other) = rows[:2]
    mine, theirs = (int(plan.start[k]) // mirror.span for k in (i, j))
    return put(plan, lane_pages=(other.lane, theirs, int(one.pages[mine])))


def two_lanes_on_one_state(plan: Plan, mirror: Mirror) -> Plan | None:
    for at, seat in enumerate(plan.seats):
        for _, tenant in tenants(plan, mirror):
            if tenant.lane != seat.lane and seat.lane in plan.lane:
                seats = [*plan.seats]
                seats[at] = replace_seat(seat, state=tenant.state)
                return replace(plan, seats=tuple(seats))
    return None


def replace_seat(seat: Any, **changes: Any) -> Any:
    return type(seat)(**{name: getattr(seat, name) for name in seat.__struct_fields__} | changes)


def seated_twice(plan: Plan, mirror: Mirror) -> Plan | None:
    return replace(plan, seats=(*plan.seats, replace_seat(plan.seats[0], scope=b"?"))) if plan.seats else None


def page_in_use_is_zeroed(plan: Plan, mirror: Mirror) -> Plan | None:
    for i, tenant in tenants(plan, mirror, Row.DECODE):
        if plan.start[i] >= mirror.span and not tenant.done:
            return put(plan, zero_pages=int(tenant.pages[0]))
    return None


def state_in_use_is_zeroed(plan: Plan, mirror: Mirror) -> Plan | None:
    rows = tenants(plan, mirror, Row.DECODE)
    return put(plan, zero_states=rows[0][1].state) if rows else None


def page_not_zeroed(plan: Plan, mirror: Mirror) -> Plan | None:
    return omit(plan, "zero_pages", 0) if len(plan.zero_pages) else None


def state_not_zeroed(plan: Plan, mirror: Mirror) -> Plan | None:
    return omit(plan, "zero_states", 0) if len(plan.zero_states) else None


def copy_of_a_zeroed_page(plan: Plan, mirror: Mirror) -> Plan | None:
    return put(plan, zero_pages=int(plan.page_copies[0, 0])) if len(plan.page_copies) else None


def copy_left_out(plan: Plan, mirror: Mirror) -> Plan | None:
    return omit(plan, "page_copies", 0) if len(plan.page_copies) else None


def copy_and_back(plan: Plan, mirror: Mirror) -> Plan | None:
    if not len(plan.page_copies):
        return None
    source, target, rows = plan.page_copies[0].tolist()
    return put(plan, page_copies=(target, source, rows))


def page_of_two_ids(plan: Plan, mirror: Mirror) -> Plan | None:
    """A new id gets the place of a page that a decoding lane reads."""
    unknown = [i for i in range(1, len(mirror.places[0])) if not mirror.owned(PAGE, i)]
    for i, tenant in tenants(plan, mirror, Row.DECODE):
        place = mirror.place(PAGE, int(tenant.pages[0]))
        if plan.start[i] >= mirror.span and unknown and place > 0 and place not in plan.page_table[:, 1]:
            return put(plan, page_table=(unknown[-1], place))
    return None


def one_id_at_two_places(plan: Plan, mirror: Mirror) -> Plan | None:
    if not len(plan.page_table):
        return None
    page, place = plan.page_table[-1].tolist()
    return put(plan, page_table=(page, place - 1 if place > 1 else place + 1))


def entry_told_otherwise(plan: Plan, mirror: Mirror) -> Plan | None:
    if not len(plan.lane_pages):
        return None
    lane, index, page = plan.lane_pages[-1].tolist()
    return put(plan, lane_pages=(lane, index, page - 1 if page > 1 else page + 1))


def folded_twice(plan: Plan, mirror: Mirror) -> Plan | None:
    """The first VERIFY row once more, at the plan's end."""
    rows = tenants(plan, mirror, Row.VERIFY)
    if not rows:
        return None
    i, tokens = rows[0][0], plan.tokens[plan.token_offset[rows[0][0]] : plan.token_offset[rows[0][0] + 1]]
    more: dict[str, Any] = {}
    for name in ("kind", "lane", "generation", "start", "length", "sample"):
        column = getattr(plan, name)
        more[name] = np.append(column, column[i]).astype(column.dtype)
    return replace(plan, **more, tokens=np.concatenate([plan.tokens, tokens]),
                   token_offset=np.append(plan.token_offset, plan.token_offset[-1] + len(tokens)).astype(np.int32))


def generation_ignored(plan: Plan, mirror: Mirror) -> Plan | None:
    rows = tenants(plan, mirror, Row.DECODE)
    return change(plan, "generation", (rows[0][0],), rows[0][1].generation - 1) if rows else None


def chunk_begins_early(plan: Plan, mirror: Mirror) -> Plan | None:
    rows = [i for i, _ in tenants(plan, mirror, Row.PREFILL) if plan.start[i] > 0]
    return change(plan, "start", (rows[0],), int(plan.start[rows[0]]) - 1) if rows else None


def resync_skipped(plan: Plan, mirror: Mirror) -> Plan | None:
    return replace(plan, resync=False) if plan.resync else None


def spoilt(spoil: Spoil) -> Plant:
    """Plans are spoilt wherever there is an occasion."""
    mirrors: dict[int, Mirror] = {}

    def attach(old: Any) -> Any:
        def attached(self: Recorder, layout: Layout) -> None:
            mirrors[id(self)] = Mirror(Space(layout))
            old(self, layout)
        return attached

    def launch(old: Any) -> Any:
        def launched(self: Recorder, plan: Plan) -> Any:
            mirror = mirrors[id(self)]
            mirror.update(plan)
            made = spoil(plan, mirror)
            return old(self, plan if made is None else made)
        return launched

    return all_of(patched(Recorder, "attach", attach), patched(Recorder, "launch", launch))
