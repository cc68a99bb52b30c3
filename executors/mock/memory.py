"""Shadow memory: what every page place and state place of the arena holds, with poison for bytes nobody may read.

    byte 0                                                            state_top
    | page 0 | page 1 | page 2 |  ...                ...  | state 1 | state 0 |
      (sink)                                                          (sink)

Both kinds share the bytes: a live page and a live state never overlap, since whoever comes to life poisons what lies
under it. A place is *live* when anything was written to it since it changed hands, *dead* (all poison) otherwise.
"""

from __future__ import annotations

from k3mem.executor import Layout
from k3mem.executors.mock import model
from k3mem.executors.mock.dice import Dice
from k3mem.executors.mock.log import Log
from k3mem.executors.mock.model import BASE, PRIME, Matrix, Window
from k3mem.plan import PAGE

POISON = 1 << 62
"""A KV row at or above this was never written or zeroed since its page changed hands."""
NOBODY = -1
POISON_LABEL = -1


class Page:
    """A live page. Rows are positions inside the page, 0 .. span - 1; values are per KV group."""

    __slots__ = ("covered", "head", "high", "known", "labels", "prefix", "rows", "write_low", "write_step", "writer")

    def __init__(self, groups: int, span: int, fill: int) -> None:
        self.rows = [[fill] * span for _ in range(groups)]
        """[group][row] written value, 0 where zeroed, >= POISON where neither."""
        self.labels = [POISON_LABEL if fill else 0] * span
        """[row] chain label of the prefix that ends with this row."""
        self.head = 0
        """Chain label of the prefix before row 0."""
        self.high = span if fill else 0
        """Rows from here on are zero."""
        self.writer: tuple[int, int] | None = None
        """(lane, generation) that last wrote a row by a forward pass."""
        self.write_step = 0
        """Last step that wrote rows by a forward pass, and the lowest row it wrote."""
        self.write_low = 0
        self.prefix = [[0] * (span + 1) for _ in range(groups)]
        """[group][n] digest of rows 0 .. n - 1, valid for n <= known."""
        self.known = 0
        self.covered = -1
        """The memory's epoch when a lane last remembered a digest of all rows."""


class Memory:
    """The arena's content, by physical place. Owners are the ids that the executor's tables name."""

    def __init__(self, layout: Layout, recurrent_groups: int, kv_groups: int, log: Log, rng: Dice) -> None:
        self.shape = layout.shape
        self.top = layout.state_top
        self.span = layout.shape.page_span
        self.page_bytes = layout.shape.page_bytes
        self.state_bytes = layout.shape.state_bytes
        self.groups, self.kv_groups = recurrent_groups, kv_groups
        self.log, self.rng = log, rng
        self.page_places = self.top // self.page_bytes
        self.state_places = self.top // self.state_bytes
        self.pages: list[Page | None] = [None] * self.page_places
        self.page_owner = [NOBODY] * self.page_places
        self.matrix: list[Matrix | None] = [None] * self.state_places
        self.window: list[Window | None] = [None] * self.state_places
        self.label = [POISON_LABEL] * self.state_places
        self.state_owner = [NOBODY] * self.state_places
        self.epoch = 0
        """Digests that lanes remember are valid while this stays: it grows with every change to a page that one of
        them covers."""

    # -- geometry

    def bytes_of(self, kind: int, place: int) -> tuple[int, int]:
        """[low, high) of a place."""
        if kind == PAGE:
            return place * self.page_bytes, (place + 1) * self.page_bytes
        return self.top - (place + 1) * self.state_bytes, self.top - place * self.state_bytes

    def states_under(self, page: int) -> range:
        """State places that share bytes with a page place."""
        low, high = self.bytes_of(PAGE, page)
        first = max(0, (self.top - high) // self.state_bytes)
        return range(first, min(self.state_places, -(-(self.top - low) // self.state_bytes)))

    def pages_under(self, state: int) -> range:
        """Page places that share bytes with a state place."""
        low, high = self.bytes_of(1, state)
        return range(max(0, low // self.page_bytes), min(self.page_places, -(-high // self.page_bytes)))

    def holds(self, kind: int, place: int) -> bool:
        """Whether the place lies in the arena."""
        return 0 <= place < (self.page_places if kind == PAGE else self.state_places)

    # -- life and poison

    def change(self, place: int) -> None:
        """Before the content of a page place changes, or whose it is: no lane may rely on what it remembers of it."""
        page = self.pages[place]
        if page is not None and page.covered == self.epoch:
            self.epoch += 1

    def poison_page(self, place: int) -> None:
        self.change(place)
        self.pages[place] = None

    def poison_state(self, place: int) -> None:
        self.matrix[place] = self.window[place] = None
        self.label[place] = POISON_LABEL

    def poison_rows(self, place: int, low: int, high: int) -> None:
        """Poison rows low .. high - 1 of a page."""
        page = self.pages[place]
        if page is None or low >= high:
            return
        self.change(place)
        for values in page.rows:
            values[low:high] = [self.garbage()] * (high - low)
        page.labels[low:high] = [POISON_LABEL] * (high - low)
        page.high = max(page.high, high)
        page.known = min(page.known, low)

    def poison_all(self) -> None:
        for place in range(self.page_places):
            self.poison_page(place)
        for place in range(self.state_places):
            self.poison_state(place)

    def garbage(self) -> int:
        """A poison value, unlike any other."""
        return POISON | self.rng.next() >> 3

    def state_alive(self, place: int) -> bool:
        return self.matrix[place] is not None or self.window[place] is not None

    def _claim_page(self, place: int) -> None:
        """Before a dead page place comes to life: the states under it are gone."""
        for state in self.states_under(place):
            if self.state_alive(state):
                self.poison_state(state)

    def _claim_state(self, place: int) -> None:
        """Before a dead state place comes to life: the pages under it are gone."""
        for page in self.pages_under(place):
            if self.pages[page] is not None:
                self.poison_page(page)

    # -- pages

    def zero_page(self, place: int) -> None:
        if self.pages[place] is None:
            self._claim_page(place)
        self.change(place)
        self.pages[place] = Page(self.kv_groups, self.span, 0)

    def page_for_write(self, place: int, low: int, high: int, writer: tuple[int, int], step: int) -> Page:
        """The page in which `writer` is about to write rows low .. high - 1. Reports rows of other tenants."""
        page = self.pages[place]
        if page is None:
            self._claim_page(place)
            page = self.pages[place] = Page(self.kv_groups, self.span, self.garbage())
        elif page.writer != writer and low < page.high and high - low < self.span:
            self.log.report(f"lane {writer[0]} writes rows {low}..{high - 1} of page place {place} over rows of "
                            f"{page.writer or 'a copy'} without zeroing")
        if page.write_step != step or page.writer != writer:
            page.write_step, page.write_low = step, low
        page.write_low = min(page.write_low, low)
        page.writer = writer
        page.high = max(page.high, high)
        if page.known > low:
            page.known = low
            self.change(place)
        return page

    def check_rest(self, place: int, page: Page, high: int) -> None:
        """Whole pages are read: rows from `high` on must not be poison either."""
        if page.high > high and any(value >= POISON for value in page.rows[0][high : page.high]):
            self.log.report(f"page place {place} is read whole, and rows beyond {high - 1} are poison")

    def digest(self, place: int, page: Page, rows: int) -> None:
        """Make the digests of rows 0 .. rows - 1 valid, reading what was not read since it changed."""
        for row in range(page.known, rows):
            for values, prefix in zip(page.rows, page.prefix, strict=True):
                value = values[row]
                if value >= POISON:
                    self.log.report(f"reads poison at row {row} of page place {place}")
                elif not value:
                    self.log.report(f"reads row {row} of page place {place}, which nobody wrote")
                prefix[row + 1] = (prefix[row] * BASE + value) % PRIME
        page.known = max(page.known, rows)

    def copy_page(self, source: int, destination: int, rows: int) -> None:
        """Copy rows 0 .. rows - 1; the rest of the destination becomes zero."""
        origin = self.pages[source]
        if self.pages[destination] is None:
            self._claim_page(destination)
        page = Page(self.kv_groups, self.span, 0)
        if origin is None:
            self.log.report(f"copies page place {source}, which is poison")
            page = Page(self.kv_groups, self.span, self.garbage())
        else:
            if any(not 0 < value < POISON for values in origin.rows for value in values[:rows]):
                self.log.report(f"copies rows 0..{rows - 1} of page place {source}, not all of which were written")
            for values, others in zip(page.rows, origin.rows, strict=True):
                values[:rows] = others[:rows]
            page.labels[:rows] = origin.labels[:rows]
            page.head, page.high = origin.head, rows
        self.change(destination)
        self.pages[destination] = page

    # -- states

    def read_state(self, place: int, what: str) -> tuple[Matrix, Window, int]:
        """Matrix, window and label; garbage where they are poison, which is reported. Label 0 is the zero state."""
        matrix, window = self.matrix[place], self.window[place]
        if matrix is None or window is None:
            self.log.report(f"{what} state place {place}, which is poison")
        if matrix is None:
            matrix = tuple(self.garbage() for _ in range(self.groups))
        if window is None:
            window = tuple((self.garbage(), self.garbage(), self.garbage()) for _ in range(self.groups))
        return matrix, window, self.label[place]

    def write_state(self, place: int, matrix: Matrix, window: Window, label: int) -> None:
        if not self.state_alive(place):
            self._claim_state(place)
        self.matrix[place] = matrix
        self.window[place] = window
        self.label[place] = label

    def zero_state(self, place: int) -> None:
        self.write_state(place, model.zero_matrix(self.groups), model.zero_window(self.groups), 0)

    # -- moves

    def move(self, kind: int, source: int, destination: int) -> None:
        """Copy a whole entry and hand its place over; the source becomes poison. Poison moves as poison."""
        owner = self.page_owner if kind == PAGE else self.state_owner
        holder = owner[source]
        if holder == NOBODY:
            self.log.report(f"moves {'page' if kind == PAGE else 'state'} place {source}, which no id owns")
        if kind == PAGE:
            page = self.pages[source]
            self.poison_page(source)
            self.poison_page(destination)
            self._claim_page(destination)
            self.pages[destination] = page
            if page is not None:
                page.known = 0
        else:
            matrix, window, label = self.matrix[source], self.window[source], self.label[source]
            self.poison_state(source)
            self._claim_state(destination)
            self.matrix[destination], self.window[destination], self.label[destination] = matrix, window, label
        owner[source] = NOBODY
        owner[destination] = holder
