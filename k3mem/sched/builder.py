"""A plan in the making, and the way back from it.

Everything that planning changes before launch is journalled here, so that `cancel` leaves no trace but evictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from k3mem.plan import Plan, Row, Seat
from k3mem.radix import Kind
from k3mem.sched.job import Seated
from k3mem.types import Int32, StateId

EMPTY = np.zeros(0, np.int32)


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
        self.zero_pages: list[Int32] = []
        self.zero_states: list[int] = []
        self.copies: list[tuple[int, int, int]] = []
        self.restores: list[tuple[int, int]] = []
        self.lanes = EMPTY
        """Decode and verify rows: lanes ..."""
        self.starts = EMPTY
        self.windows = EMPTY
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
    def has_rows(self) -> bool:
        return bool(len(self.lanes) or self.prefill)

    def finish(self, generations: Int32, page_table: Int32, state_table: Int32, resync: bool) -> Plan:
        """The plan. O(its size)."""
        decode, prefill = len(self.lanes), self.prefill
        verify = bool(self.drafts)
        lane, start, length = self.lanes, self.starts, self.windows
        sample = np.ones(decode + len(prefill), np.bool_)
        kind = np.full(len(sample), int(Row.DECODE), np.uint8)
        offsets, tokens = np.zeros(len(sample) + 1, np.int32), EMPTY
        if verify:
            kind[:decode][self.windows > 1] = int(Row.VERIFY)
        if prefill:
            rest = np.array([(r.seat.lane, r.start, r.end - r.start) for r in prefill], np.int32)
            lane, start, length = (np.concatenate(pair) for pair in zip((lane, start, length), rest.T, strict=True))
            sample[decode:] = [r.samples for r in prefill]
            kind[decode:] = int(Row.PREFILL)
        if verify or prefill:
            pieces = self.drafts if verify else [EMPTY] * decode
            pieces = [*pieces, *(r.seat.job.tokens[r.start : r.end] for r in prefill)]
            np.cumsum([len(p) for p in pieces], out=offsets[1:])
            tokens = np.concatenate(pieces)
        rows = [(s.row, s.depth, s.target) for s in self.snapshots]
        rows += [(decode + i, d, t) for i, r in enumerate(prefill) for d, t, _ in r.targets]
        return Plan(
            step=self.step, repeat=self.repeat, resync=resync,
            moves=_stack(self.moves, 4), page_table=page_table, state_table=state_table,
            seats=tuple(self.seats), lane_pages=_lane_pages(self.lane_pages),
            zero_pages=np.concatenate(self.zero_pages) if self.zero_pages else EMPTY,
            zero_states=np.array(self.zero_states, np.int32) if self.zero_states else EMPTY,
            page_copies=_table(self.copies, 3), restores=_table(self.restores, 2),
            kind=kind, lane=lane, generation=generations[lane],
            start=start, length=length, sample=sample, token_offset=offsets, tokens=tokens,
            snapshots=_table(rows, 3),
        )


def _table(rows: Sequence[tuple[int, ...]], width: int) -> Int32:
    return np.array(rows, np.int32) if rows else np.zeros((0, width), np.int32)


def _stack(parts: list[Int32], width: int) -> Int32:
    return np.concatenate(parts) if parts else np.zeros((0, width), np.int32)


def _lane_pages(parts: list[tuple[int, int, Int32]]) -> Int32:
    """Rows (lane, index, page) of runs (lane, first index, pages)."""
    if not parts:
        return np.zeros((0, 3), np.int32)
    if all(len(pages) == 1 for _, _, pages in parts):
        return np.array([(lane, first, pages[0]) for lane, first, pages in parts], np.int32)
    out = np.empty((sum(len(p) for _, _, p in parts), 3), np.int32)
    at = 0
    for lane, first, pages in parts:
        end = at + len(pages)
        out[at:end, 0] = lane
        out[at:end, 1] = np.arange(first, first + len(pages))
        out[at:end, 2] = pages
        at = end
    return out
