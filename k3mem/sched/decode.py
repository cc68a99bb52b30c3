"""Decode and verify rows of a plan: who gets one, on which pages, with which conditional snapshot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3mem.errors import InvalidRequest
from k3mem.pool import ExtraBuffer
from k3mem.sched import room, spare
from k3mem.sched.anchors import decode_anchor
from k3mem.sched.builder import Builder, Snapshot
from k3mem.sched.close import retract
from k3mem.sched.core import Core, Drafter
from k3mem.sched.job import Job, Seated, read_only
from k3mem.sched.lanes import Phase
from k3mem.types import Bool, Int32

EMPTY = np.zeros(0, np.int32)


def add_rows(core: Core, b: Builder) -> None:
    """Rows for every lane that decodes and may go on, best ranks first where the budget is short."""
    lanes = core.lanes
    ready = (lanes.phase == Phase.DECODE) & (lanes.launched + 1 < lanes.limit)
    if core.drafter is not None:
        ready &= lanes.inflight == 0
    chosen = np.flatnonzero(ready).astype(np.int32)
    if not len(chosen):
        return
    if len(chosen) > core.policy.token_budget:
        ranked = sorted(chosen.tolist(), key=lambda lane: lanes.seat(lane).rank)
        chosen = np.array(sorted(ranked[: core.policy.token_budget]), np.int32)
    drafts = _drafts(core, chosen)
    windows = np.array([1 + len(d) for d in drafts], np.int32) if drafts else np.ones(len(chosen), np.int32)
    keep = _cover(core, b, chosen, windows)
    if not keep.all():
        chosen, windows = chosen[keep], windows[keep]
        drafts = [d for d, k in zip(drafts, keep.tolist(), strict=True) if k] if drafts else drafts
    b.lanes, b.windows, b.starts = chosen, windows, lanes.launched[chosen]
    b.drafts = drafts if len(chosen) and windows.max() > 1 else []


def _drafts(core: Core, chosen: Int32) -> list[Int32]:
    """Guesses for each chosen lane, clipped to the window, the limit and the budget; empty without a drafter."""
    if core.drafter is None or core.window == 1:
        return []
    left = core.policy.token_budget - len(chosen)
    out: list[Int32] = []
    for lane in chosen.tolist():
        job = core.lanes.seat(lane).job
        most = min(core.window - 1, job.limit - job.count - 1, left)
        guess = _draft(core, core.drafter, job, most) if most > 0 else EMPTY
        left -= len(guess)
        out.append(guess)
    return out


def _draft(core: Core, drafter: Drafter, job: Job, most: int) -> Int32:
    """A drafter's guesses for one request, at most `most`. Raises InvalidRequest unless they are tokens."""
    who = f"request {job.request.id!r}: its drafter"
    given = np.asarray(drafter.draft(job.request.id, read_only(job.tokens[: job.count]), most))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidRequest(f"{who} gave {given.ndim} dimensions of {given.dtype}; it must return a flat array of "
                             "integers, or an empty one. Repair it, or abort the request")
    guess, vocab = given[:most], core.shape.vocab_size
    wrong = np.flatnonzero((guess < 0) | (guess >= vocab))
    if len(wrong):
        first = int(wrong[0])
        if not (job.request.media and guess[first] >= vocab):
            raise InvalidRequest(f"{who} gave token {guess[first]}, outside 0..{vocab - 1}. Repair it, or abort the "
                                 "request")
        guess = guess[:first]  # a medium's place in the key, copied from the prompt: nothing that can be sampled
    return guess.astype(np.int32)


def _cover(core: Core, b: Builder, chosen: Int32, windows: Int32) -> Bool:
    """Give each lane the pages for its row; False for lanes that must wait. Retracts the last rank when stuck."""
    lanes, span = core.lanes, core.span
    ends = lanes.launched[chosen] + windows
    keep = np.ones(len(chosen), np.bool_)
    short = np.flatnonzero(ends > lanes.covered[chosen])
    if len(short):
        order = sorted(short.tolist(), key=lambda i: lanes.seat(int(chosen[i])).rank)
        needs = [-(-int(ends[i]) // span) - int(lanes.covered[chosen[i]]) // span for i in order]
        got = room.take(core, b, sum(needs), 0, room.Evict.NOTHING)
        if got is None:
            _cover_by_rank(core, b, chosen, order, needs, keep)
        else:
            parts = np.split(got[0], np.cumsum(needs)[:-1])
            for i, pages in zip(order, parts, strict=True):
                give(core, b, lanes.seat(int(chosen[i])), pages)
    touch_decode(core, b, chosen[keep], ends[keep], lanes.launched[chosen[keep]])
    return keep


def _cover_by_rank(core: Core, b: Builder, chosen: Int32, order: list[int], needs: list[int], keep: Bool) -> None:
    """Pages for the rows `order`, best ranks first, where something must give way; `keep` is cleared for the rest."""
    seats = [core.lanes.seat(lane) for lane in chosen.tolist()]
    for at, (i, pages) in enumerate(zip(order, needs, strict=True)):
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


def retract_last(core: Core, needy: Seated) -> bool:
    """Retract the running request of the last rank; False when only `needy` is left. One without rows in flight
    leaves at once, so that its bytes count already."""
    running = [s for s in core.lanes.taken() if s.end is None]
    victim = max(running, key=lambda s: s.rank)
    if victim is needy or len(running) < 2:
        return False
    retract(core, victim)
    return True


def give(core: Core, b: Builder, seat: Seated, pages: Int32) -> None:
    """Append pages to a seat's list; taken back on cancel."""
    first, count = seat.page_count, seat.page_count + len(pages)
    if count > len(seat.pages):
        grown = np.empty(max(count, 2 * len(seat.pages)), np.int32)
        grown[:first] = seat.pages[:first]
        seat.pages = grown
    seat.pages[first:count] = pages
    seat.page_count = count
    core.lanes.covered[seat.lane] = count * core.span

    def back() -> None:
        seat.page_count = first
        core.lanes.covered[seat.lane] = first * core.span

    b.journal.append(back)


def touch_decode(core: Core, b: Builder, chosen: Int32, ends: Int32, starts: Int32 | None = None) -> None:
    """Zero the pages that these rows are the first to write. With `starts`, single rows [start, end): a page inside is
    overwritten whole (a row of a lane that has ended writes nothing, but nobody reads that lane's pages any more)."""
    span = core.span
    last = (ends - 1) // span
    fresh = core.lanes.touched[chosen] <= last
    for i in np.flatnonzero(fresh).tolist():
        seat = core.lanes.seat(int(chosen[i]))
        whole = (0, 0) if starts is None else (-(-int(starts[i]) // span), int(ends[i]) // span)
        touch(core, b, seat, int(last[i]) + 1, whole)


def touch(core: Core, b: Builder, seat: Seated, end: int, whole: tuple[int, int] = (0, 0)) -> None:
    """Pages [seat.touched, end) are written for the first time: hand them to the lane, and zero those that the row
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
    set_touched(core, seat, end)
    b.journal.append(lambda: set_touched(core, seat, before))


def set_touched(core: Core, seat: Seated, count: int) -> None:
    seat.touched = count
    core.lanes.touched[seat.lane] = count


def add_snapshots(core: Core, b: Builder) -> None:
    """Conditional targets for decode and verify rows that may pass an anchor. No room: skipped and counted."""
    if not len(b.lanes) or decode_anchor(core, 0) is None:
        return
    starts, windows = b.starts.tolist(), b.windows.tolist()
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
