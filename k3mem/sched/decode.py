"""Decode and verify rows of a plan: who gets one, on which pages, with which conditional snapshot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from k3mem.pool import ExtraBuffer
from k3mem.sched import room, spare
from k3mem.sched.anchors import decode_anchor
from k3mem.sched.builder import Builder, Snapshot
from k3mem.sched.close import retract
from k3mem.sched.core import Core
from k3mem.sched.job import Seated
from k3mem.sched.lanes import Needs, Rows
from k3mem.sched.speculate import propose
from k3mem.types import Bool, Int32


def add_rows(core: Core, b: Builder) -> None:
    """Rows for every lane that decodes and may go on, best ranks first where the budget is short. O(lanes)."""
    lanes = core.lanes
    chosen, starts, covered = lanes.ready(core.drafter is not None)
    if not len(chosen):
        return
    if len(chosen) > core.policy.token_budget:
        ranked = sorted(chosen.tolist(), key=lambda lane: lanes.seat(lane).rank)
        chosen = np.array(sorted(ranked[: core.policy.token_budget]), np.int32)
        starts = lanes.launched[chosen]
    proposal = propose(core, chosen, starts)
    verifies = proposal is not None and proposal.any
    rows = Rows(chosen, proposal.windows if proposal is not None and verifies else None)
    keep = None if covered and not verifies else _cover(core, b, rows)
    if keep is not None:
        proposal = None if proposal is None else proposal.keep(keep)
        rows, starts = Rows(chosen[keep], None if rows.window is None else rows.window[keep]), starts[keep]
        needs = lanes.survey(rows)
        touch_rows(core, b, rows, needs)
    b.rows, b.starts = rows, starts
    b.tokens += len(rows)
    b.proposal = proposal
    if proposal is not None and proposal.any:
        b.drafts = proposal.drafts
        b.tokens += sum(len(d) for d in b.drafts)


def _cover(core: Core, b: Builder, rows: Rows) -> Bool | None:
    """Give each row the pages that it needs, and touch them. Where some must wait, that is all that happens: which rows
    may run. Retracts the last rank when stuck."""
    lanes = core.lanes
    needs = lanes.survey(rows)
    if len(needs.row):
        got = room.take(core, b, needs.pages, 0)
        if got is None:
            return _cover_by_rank(core, b, rows, needs)
        give_rows(core, b, rows, needs, got[0])
    touch_rows(core, b, rows, needs)
    return None


def give_rows(core: Core, b: Builder, rows: Rows, needs: Needs, pages: Int32) -> None:
    """Pages for rows that lack some, best ranks first; taken back on cancel. O(pages)."""
    core.lanes.give(rows, needs.row, needs.need, pages)
    b.journal.append(lambda: core.lanes.take_back(rows, needs.row, needs.need))


def touch_rows(core: Core, b: Builder, rows: Rows, needs: Needs) -> None:
    """Hand the pages that these rows are the first to write to their lanes, and zero those that no row overwrites
    whole. Rows of several steps overwrite none: they may end early. O(rows)."""
    if not needs.fresh:
        return
    fresh, zero = core.lanes.touch(rows, needs.fresh)
    b.fresh.append(fresh)
    if len(zero):
        b.zero_pages.append(zero)
    b.journal.append(lambda: core.lanes.untouch(fresh))


def _cover_by_rank(core: Core, b: Builder, rows: Rows, needs: Needs) -> Bool:
    """Pages for rows that lack some, best ranks first, where something must give way; False for rows that wait."""
    keep = np.ones(len(rows), np.bool_)
    seats = [core.lanes.seat(lane) for lane in rows.lane.tolist()]
    order = needs.row.tolist()
    for at, (i, pages) in enumerate(zip(order, needs.need.tolist(), strict=True)):
        seat = seats[i]
        if seat.end is not None:
            continue
        got = room.take(core, b, pages, 0)
        while got is None and not core.ending and (retract_last(core, seat) or spare.give_one(core, seat)):
            got = room.take(core, b, pages, 0)
        if got is None:
            keep[order[at:]] = False
            break
        give(core, b, seat, got[0])
    keep &= np.array([seat.end is None for seat in seats])
    return keep


def retract_last(core: Core, needy: Seated) -> bool:
    """Retract the running request of the last rank; False when only `needy` is left. One without rows in flight
    leaves at once, so that its bytes count already."""
    victim = core.lanes.last()
    if victim is needy or victim is None:
        return False
    retract(core, victim)
    return True


def give(core: Core, b: Builder, seat: Seated, pages: Int32) -> None:
    """Append pages to a seat's list; taken back on cancel."""
    first, count = seat.page_count, seat.page_count + len(pages)
    seat.pages[first:count] = pages

    def hold(count: int) -> None:
        seat.page_count = count
        core.lanes.covered[seat.lane] = count * core.span

    hold(count)
    b.journal.append(lambda: hold(first))


def touch(core: Core, b: Builder, seat: Seated, end: int, whole: tuple[int, int] = (0, 0)) -> None:
    """A prefill row writes pages [seat.touched, end) for the first time: hand them to the lane, and zero those that it
    does not overwrite whole (`whole`: page range that it does)."""
    before = seat.touched
    if end <= before:
        return
    pages = seat.pages[before:end].copy()
    b.lane_pages.append((seat.lane, before, pages))
    low, high = max(whole[0], before), min(whole[1], end)  # pages [before, low) and [high, end) are not overwritten
    if low >= high:
        b.zero_pages.append(pages)
    elif high - low < end - before:
        b.zero_pages += [pages[: low - before], pages[high - before :]]
    seat.touched = end
    b.journal.append(partial(setattr, seat, "touched", before))


def add_snapshots(core: Core, b: Builder) -> None:
    """Conditional targets for decode and verify rows that may pass an anchor. No room: skipped and counted."""
    if not len(b.lanes) or decode_anchor(core, 0) is None:
        return
    starts, windows = b.starts.tolist(), b.rows.windows().tolist()
    for row, lane in enumerate(b.lanes.tolist()):
        seat = core.lanes.seat(lane)
        extra = seat.extra
        depth = extra.pending_depth if extra.pending is not None else decode_anchor(core, starts[row])
        if depth is None or not starts[row] < depth <= starts[row] + windows[row] or depth <= seat.node_depth:
            continue
        if extra.pending is None:
            target = room.take_state(core, b, room.Evict.CHEAP)
            if target is None:
                core.metrics.skipped_snapshots += 1
                continue
            extra.begin(target, depth)
            b.journal.append(_missed(extra))
        if extra.pending is not None:
            b.snapshots.append(Snapshot(row, seat, depth, extra.pending))


def _missed(extra: ExtraBuffer) -> Callable[[], None]:
    def undo() -> None:
        extra.missed()

    return undo
