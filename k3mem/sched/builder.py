"""A plan in the making, and the way back from it.

Everything that planning changes before launch is journalled here, so that `cancel` leaves no trace but evictions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from k3mem.plan import Plan, Row, Seat
from k3mem.radix import Kind
from k3mem.sched.job import Seated
from k3mem.sched.lanes import Rows
from k3mem.types import Int32, StateId

if TYPE_CHECKING:
    from k3mem.sched.speculate import Proposal

EMPTY = np.zeros(0, np.int32)
NOBODY = Rows(EMPTY)
PREFILL, DECODE, VERIFY = int(Row.PREFILL), int(Row.DECODE), int(Row.VERIFY)


@dataclass(slots=True)
class PrefillRow:
    """Tokens [start, end) of a seat's prompt."""

    seat: Seated
    start: int
    end: int
    targets: list[tuple[int, StateId, Kind]] = field(default_factory=list)
    """(depth, target, kind), depths ascending."""

    @property
    def samples(self) -> bool:
        return self.end == self.seat.target


@dataclass(slots=True)
class Snapshot:
    """A conditional target of a DECODE or VERIFY row."""

    row: int
    seat: Seated
    depth: int
    target: StateId


class Builder:
    """Collects one plan. Rows: decode and verify rows first (arrays), then prefill rows (objects)."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.repeat = 1
        self.moves: list[Int32] = []
        self.batches = 0
        self.seats: list[Seat] = []
        self.lane_pages: list[tuple[int, int, Int32]] = []
        """Runs (lane, first index, pages)."""
        self.fresh: list[Int32] = []
        """More of them, as rows (lane, index, page)."""
        self.zero_pages: list[Int32] = []
        self.zero_states: list[int] = []
        self.copies: list[tuple[int, int, int]] = []
        self.restores: list[tuple[int, int]] = []
        self.rows = NOBODY
        """Decode and verify rows ..."""
        self.starts = EMPTY
        """... and where they start."""
        self.tokens = 0
        """Tokens that all rows so far compute in one step."""
        self.proposal: Proposal | None = None
        """What drafters proposed for them; None: nothing."""
        self.drafts: list[Int32] = []
        """One entry a decode or verify row where any row verifies, else none."""
        self.prefill: list[PrefillRow] = []
        self.prompts: list[Seated] = []
        """Seats whose prompts were running when the plan was begun and have no row in it yet."""
        self.snapshots: list[Snapshot] = []
        self.admitted: list[tuple[Seated, bool, int]] = []
        """(seat, first admission of its job, kind of the checkpoint consumed or -1)."""
        self.journal: list[Callable[[], None]] = []

    def move(self, moves: Int32) -> None:
        """Append one batch of moves, to run after all earlier ones."""
        if len(moves):
            moves = moves.copy()
            moves[:, 0] += self.batches
            self.batches += 1
            self.moves.append(moves)

    def undo(self) -> None:
        """Run the journal backwards."""
        while self.journal:
            self.journal.pop()()

    @property
    def lanes(self) -> Int32:
        """Lanes of the decode and verify rows."""
        return self.rows.lane

    @property
    def has_rows(self) -> bool:
        return bool(len(self.lanes) or self.prefill)

    def finish(self, generations: Int32, page_table: Int32, state_table: Int32, resync: bool) -> Plan:
        """The plan. O(its size)."""
        decode, prefill = len(self.lanes), self.prefill
        verify, n = bool(self.drafts), decode + len(self.prefill)
        lane, start, length = self.lanes, self.starts, self.rows.windows()
        kind, sample = np.full(n, DECODE, np.uint8), np.ones(n, np.bool_)
        offsets, tokens = np.zeros(n + 1, np.int32), EMPTY
        if verify:
            kind[:decode][length > 1] = VERIFY
        if prefill:
            rows = np.empty((3, n), np.int32)
            rows[0, :decode], rows[1, :decode], rows[2, :decode] = lane, start, length
            rows[:, decode:] = np.array([(r.seat.lane, r.start, r.end - r.start) for r in prefill], np.int32).T
            lane, start, length = rows
            sample[decode:] = [r.samples for r in prefill]
            kind[decode:] = PREFILL
        if verify or prefill:
            pieces = [r.seat.job.tokens[r.start : r.end] for r in prefill]
            if verify:
                pieces = [*self.drafts, *pieces]
                np.cumsum([len(p) for p in pieces], out=offsets[1:])
            else:
                np.cumsum(length[decode:], out=offsets[decode + 1 :])
            tokens = np.concatenate(pieces) if len(pieces) > 1 else pieces[0].copy()
        filled: dict[str, Any] = {}
        if self.moves:
            filled["moves"] = np.concatenate(self.moves)
        if self.lane_pages or self.fresh:
            filled["lane_pages"] = _lane_pages(self.lane_pages, self.fresh)
        if self.zero_pages:
            filled["zero_pages"] = np.concatenate(self.zero_pages)
        for name in ("zero_states", "restores"):
            if entries := getattr(self, name):
                filled[name] = np.array(entries, np.int32)
        if self.copies:
            filled["page_copies"] = np.array(self.copies, np.int32)
        snapshots = [(s.row, s.depth, s.target) for s in self.snapshots]
        snapshots += [(decode + i, d, t) for i, r in enumerate(prefill) for d, t, _ in r.targets]
        if snapshots:
            filled["snapshots"] = np.array(snapshots, np.int32)
        return Plan(
            step=self.step, repeat=self.repeat, resync=resync, page_table=page_table, state_table=state_table,
            seats=tuple(self.seats), kind=kind, lane=lane, generation=generations[lane], start=start, length=length,
            sample=sample, token_offset=offsets, tokens=tokens, **filled,
        )


def _lane_pages(runs: list[tuple[int, int, Int32]], fresh: list[Int32]) -> Int32:
    """Rows (lane, index, page) of runs (lane, first index, pages), and what is rows already."""
    total = sum(len(pages) for _, _, pages in runs)
    if not total and len(fresh) == 1:
        return fresh[0]
    out = np.empty((total + sum(len(f) for f in fresh), 3), np.int32)
    at = 0
    for lane, first, pages in runs:
        end = at + len(pages)
        if end == at + 1:
            out[at] = lane, first, pages[0]
        else:
            out[at:end, 0] = lane
            out[at:end, 1] = np.arange(first, first + len(pages))
            out[at:end, 2] = pages
        at = end
    for rows in fresh:
        out[at : at + len(rows)] = rows
        at += len(rows)
    return out
