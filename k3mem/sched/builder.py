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
from k3mem.sched.lanes import Lanes, Rows
from k3mem.types import Int32, StateId

if TYPE_CHECKING:
    from k3mem.sched.speculate import Proposal

EMPTY = np.zeros(0, np.int32)
NOBODY = Rows(EMPTY)


class Alike:
    """Read-only arrays of one value, of any length: views of one array. O(1)."""

    def __init__(self, value: int, dtype: type[np.generic]) -> None:
        self._value, self._array = value, np.full(256, value, dtype)
        self._array.flags.writeable = False

    def __call__(self, n: int) -> Any:
        if n > len(self._array):
            self._array = np.full(2 * n, self._value, self._array.dtype)
            self._array.flags.writeable = False
        return self._array[:n]


class Counting:
    """Read-only arrays first, first + 1, ..: views of one array. O(1)."""

    def __init__(self) -> None:
        self._array = np.arange(1024, dtype=np.int32)

    def __call__(self, first: int, end: int) -> Int32:
        if end > len(self._array):
            self._array = np.arange(2 * end, dtype=np.int32)
        return self._array[first:end]


INDEX = Counting()
ZEROS, ONES, TRUE, DECODES = Alike(0, np.int32), Alike(1, np.int32), Alike(1, np.bool_), Alike(Row.DECODE, np.uint8)


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
        """Append one batch of moves, to run after all earlier ones; they are the plan's from now on."""
        if len(moves):
            if self.batches:
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

    def finish(self, lanes: Lanes, page_table: Int32, state_table: Int32, resync: bool) -> Plan:
        """The plan. O(its size)."""
        decode, prefill, rows = len(self.rows), self.prefill, self.rows
        n = decode + len(prefill)
        if not prefill and not self.drafts:
            lane, start, length, generation = rows.lane, self.starts, ONES(n), lanes.generation.take(rows.lane)
            kind, sample, offsets, tokens = DECODES(n), TRUE(n), ZEROS(n + 1), EMPTY
        else:
            chunks: list[int] = []
            for row in prefill:
                chunks += row.seat.lane, row.start, row.end, row.samples
            words, kind, sample = lanes.rows(rows, self.starts, chunks)
            lane, start, length, generation = words
            pieces = [r.seat.job.tokens[r.start : r.end] for r in prefill]
            if self.drafts:
                pieces = [*self.drafts, *pieces]
            offsets, at = np.zeros(n + 1, np.int32), 0
            for i, piece in enumerate(pieces, n - len(pieces) + 1):
                at = offsets[i] = at + len(piece)
            tokens = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]  # a prompt stays as it is
        filled: dict[str, Any] = {}
        if self.moves:
            filled["moves"] = np.concatenate(self.moves) if len(self.moves) > 1 else self.moves[0]
        if self.lane_pages or self.fresh:
            filled["lane_pages"] = _lane_pages(self.lane_pages, self.fresh)
        if self.zero_pages:
            pages = self.zero_pages
            filled["zero_pages"] = np.concatenate(pages) if len(pages) > 1 else pages[0]
        if self.zero_states:
            filled["zero_states"] = np.array(self.zero_states, np.int32)
        if self.restores:
            filled["restores"] = np.array(self.restores, np.int32)
        if self.copies:
            filled["page_copies"] = np.array(self.copies, np.int32)
        snapshots = [(s.row, s.depth, s.target) for s in self.snapshots] if self.snapshots else []
        for i, row in enumerate(prefill, decode):
            for depth, target, _ in row.targets:
                snapshots.append((i, depth, target))
        if snapshots:
            filled["snapshots"] = np.array(snapshots, np.int32)
        return Plan(
            step=self.step, repeat=self.repeat, resync=resync, page_table=page_table, state_table=state_table,
            seats=tuple(self.seats), kind=kind, lane=lane, generation=generation, start=start, length=length,
            sample=sample, token_offset=offsets, tokens=tokens, **filled,
        )


def _lane_pages(runs: list[tuple[int, int, Int32]], fresh: list[Int32]) -> Int32:
    """Rows (lane, index, page) of runs (lane, first index, pages), and what is rows already."""
    total = 0
    for _, _, pages in runs:
        total += len(pages)
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
            out[at:end, 1] = INDEX(first, first + len(pages))
            out[at:end, 2] = pages
        at = end
    for rows in fresh:
        out[at : at + len(rows)] = rows
        at += len(rows)
    return out
