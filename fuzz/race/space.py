"""One address space for all that commands use: the arena's bytes, and beside them tables, lanes and scratch.

    0                            state_top x dcp      1 << 50     2 << 50       ...
    | pages ->        <- states |      ...            | records   | page table | state table | lanes | page lists |

An arena address counts 1/dcp bytes, so that a row of a page (a token, which one of the dcp ranks holds) is a whole
number of addresses: page p's row r begins at (p * span + r) * token_bytes, and state s ends at
(state_top - s * state_bytes) * dcp.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from k3mem.executor import Layout
from k3mem.plan import PAGE
from k3mem.types import Int32, Int64

PART = 1 << 50
RECORDS, PAGE_TABLE, STATE_TABLE, LANES, LISTS = (PART * n for n in range(1, 6))
LIST = 1 << 32
"""Addresses of one lane's page list."""
KIND = ("page", "state")


class Space:
    """Address ranges of one layout."""

    def __init__(self, layout: Layout) -> None:
        shape = layout.shape
        self.span, self.row, self.dcp = shape.page_span, shape.token_bytes, shape.dcp
        self.top = layout.state_top * shape.dcp
        self.page, self.state = self.span * self.row, shape.state_bytes * shape.dcp
        self.pages, self.states = self.top // self.page, self.top // self.state
        self.page_ids, self.state_ids, self.lanes = layout.page_ids, layout.state_ids, layout.lanes
        if self.top >= PART:
            raise ValueError(f"an arena of {layout.state_top} bytes x {shape.dcp} ranks has no room in the space")

    def holds(self, kind: int, place: int) -> bool:
        """Whether the place lies in the arena."""
        return kind in (0, 1) and 0 <= place < (self.pages if kind == PAGE else self.states)

    def of(self, kind: int, place: int) -> tuple[int, int]:
        """A whole entry."""
        if kind == PAGE:
            return place * self.page, (place + 1) * self.page
        return self.top - (place + 1) * self.state, self.top - place * self.state

    def rows(self, place: int, low: int, high: int) -> tuple[int, int]:
        """Rows low .. high - 1 of a page."""
        base = place * self.span
        return (base + low) * self.row, (base + high) * self.row

    def whole_pages(self, places: Int32) -> Int64:
        """[n, 2] of whole pages."""
        out = np.empty((len(places), 2), np.int64)
        np.multiply(places, self.page, out=out[:, 0])
        np.add(out[:, 0], self.page, out=out[:, 1])
        return out

    def under(self, kind: int, place: int) -> range:
        """Places of the other kind that share bytes with this one."""
        low, high = self.of(kind, place)
        if kind == PAGE:
            return range(max(0, (self.top - high) // self.state), min(self.states, -(-(self.top - low) // self.state)))
        return range(max(0, low // self.page), min(self.pages, -(-high // self.page)))

    def describe(self, low: int, high: int) -> str:
        """What lies at a range."""
        if low < PART:
            return self._arena(low, high)
        part, at = divmod(low, PART)
        if part * PART == LISTS:
            return f"entry {at % LIST} of the page list of lane {at // LIST}"
        return {RECORDS: f"records of row {at}", PAGE_TABLE: f"table entry of page id {at}",
                STATE_TABLE: f"table entry of state id {at}", LANES: f"registers of lane {at}"}[part * PART]

    def _arena(self, low: int, high: int) -> str:
        text = f"bytes {low // self.dcp}..{-(-high // self.dcp) - 1}"
        page, first = divmod(low // self.row, self.span)
        last = -(-high // self.row) - 1 - page * self.span
        if last < self.span:
            text += f", page place {page} rows {first}..{last}"
        state = (self.top - high) // self.state
        if state < self.states and self.of(1, state)[0] <= low:
            text += f", state place {state}"
        return text


def ranges(of: Iterable[tuple[int, int]]) -> Int64:
    """[n, 2] of a few ranges."""
    return np.array(list(of), np.int64).reshape(-1, 2)
