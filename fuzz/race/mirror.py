"""What plans alone tell of a device: which id lies where, who sits on which lane, and what each place holds.

A place holds no values here but *labels*: the chain hash of the key scope and all tokens up to a row (pages) or up to
the depth absorbed (states). Two places hold bytes of one prefix iff their labels agree. Two labels are special:

    POISON   nobody wrote or zeroed these bytes since their place changed hands
    ZERO     zeroed since

An id owns a place from the table update (or the move) that brings it there until another id's, of either kind, brings
one to any byte of it. The host frees in silence: an id whose place was taken by another was freed before, or should
have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from k3mem.fuzz.race.space import Space
from k3mem.plan import PAGE, STATE, Plan, Seat
from k3mem.types import Int32, Int64

POISON, ZERO = -1, 0
UNKNOWN = 1 << 62
"""Label of a prefix with tokens that the recording does not show."""
NOWHERE = NOBODY = -1
_MASK = (1 << 61) - 1


class Origin(NamedTuple):
    """A command that wrote a place."""

    step: int
    phase: str
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.phase}: {self.what}"


class Tenant:
    """Who sits on a lane."""

    __slots__ = ("depth", "done", "generation", "key", "label", "lane", "last", "limit", "listed", "pages", "seed",
                 "sees", "state")

    def __init__(self, seat: Seat, key: int) -> None:
        self.lane, self.generation, self.state = seat.lane, seat.generation, seat.state
        self.key = key
        """Names (lane, generation): a resync seats the same tenant again."""
        self.seed = int.from_bytes(blake2b(seat.scope, digest_size=8).digest(), "little") % _MASK + 1
        """Label of the scope's empty prefix."""
        self.depth, self.limit, self.done = seat.depth, seat.limit, seat.done != 0
        self.last: int | None = seat.last_token if seat.last_token >= 0 else None
        """The sampled token that is not absorbed yet."""
        self.sees = True
        """False once a step of it was judged without its result: depth and last token are guesses then."""
        self.pages: Int32 = np.full(16, NOWHERE, np.int32)
        self.listed = 0
        """Entries of its page list, gaps included."""

    def extend(self, index: int, page: int) -> None:
        """Entry `index` of the page list."""
        if index >= len(self.pages):
            self.pages = np.concatenate([self.pages, np.full(index + 1, NOWHERE, np.int32)])
        self.pages[index] = page
        self.listed = max(self.listed, index + 1)


def chain(label: int, tokens: Sequence[int | None]) -> list[int]:
    """Labels of a prefix grown token by token. None: a token that the recording does not show."""
    out = []
    for token in tokens:
        label = UNKNOWN if token is None or label == UNKNOWN else hash((label, token)) & _MASK or 1
        out.append(label)
    return out


class Mirror:
    """Tables, owners, lanes and labels. Applies what plans say; judges nothing."""

    def __init__(self, space: Space) -> None:
        self.space, self.span = space, space.span
        pages, states = space.pages, space.states
        self.places = (np.full(space.page_ids, NOWHERE, np.int32), np.full(space.state_ids, NOWHERE, np.int32))
        """[kind][id] place."""
        self.owner = (np.full(pages, NOBODY, np.int32), np.full(states, NOBODY, np.int32))
        """[kind][place] id."""
        self.labels: Int64 = np.full((pages, self.span), POISON, np.int64)
        """[page place, row] label of the prefix that ends with the row."""
        self.head: Int64 = np.full(pages, POISON, np.int64)
        """[page place] label of the prefix before row 0."""
        self.filled: Int32 = np.zeros(pages, np.int32)
        """[page place] rows below this were written by one prefix's rows, without a gap."""
        self.high: Int32 = np.full(pages, self.span, np.int32)
        """[page place] rows from here on are zero."""
        self.writer: Int64 = np.zeros(pages, np.int64)
        """[page place] key of the tenant that wrote rows last, 0: none since it was handed out."""
        self.state: Int64 = np.full(states, POISON, np.int64)
        """[state place] label of the prefix absorbed, ZERO for the empty one."""
        self.origin: tuple[dict[int, Origin], dict[int, Origin]] = ({}, {})
        """[kind][place] the command that wrote it last."""
        self.lanes: dict[int, Tenant] = {}
        self._sinks()

    def _sinks(self) -> None:
        for places, owner in zip(self.places, self.owner, strict=True):
            places[0] = owner[0] = 0

    def place(self, kind: int, entry: int) -> int:
        """Where an id lies, NOWHERE if it does not."""
        places = self.places[kind]
        return int(places[entry]) if 0 < entry < len(places) else NOWHERE

    def owned(self, kind: int, entry: int) -> bool:
        """Whether an id owns the place that it maps to."""
        place = self.place(kind, entry)
        return place != NOWHERE and int(self.owner[kind][place]) == entry

    # -- tables and lanes

    def update(self, plan: Plan) -> None:
        """The table phase: tables, seats, page lists."""
        if plan.resync:
            self.lanes.clear()
            for places in self.places:
                places[:] = NOWHERE
            self._sinks()
        for kind, table in ((PAGE, plan.page_table), (STATE, plan.state_table)):
            self._map(kind, table)
            if plan.resync:
                self._disown_but(kind, table)
        for seat in plan.seats:
            if 0 <= seat.lane < self.space.lanes:
                self.lanes[seat.lane] = Tenant(seat, 1 + seat.generation * self.space.lanes + seat.lane)
        for lane, index, page in plan.lane_pages.tolist():
            tenant = self.lanes.get(lane)
            if tenant is not None and 0 <= index < self.space.page_ids:
                tenant.extend(index, page)

    def _map(self, kind: int, table: Int32) -> None:
        places, owner = self.places[kind], self.owner[kind]
        for entry, place in table.tolist():
            if not (0 < entry < len(places) and self.space.holds(kind, place)):
                continue
            old = int(places[entry])
            if old not in (NOWHERE, place) and owner[old] == entry:
                owner[old] = NOBODY
            places[entry] = place
            if owner[place] != entry:
                self.hand_over(kind, place, entry)

    def _disown_but(self, kind: int, table: Int32) -> None:
        """After a resync nobody owns a place that the tables do not name."""
        owner = self.owner[kind]
        stays = np.zeros(len(owner), np.bool_)
        right = table[(table[:, 1] >= 0) & (table[:, 1] < len(owner))]
        stays[right[:, 1]] = owner[right[:, 1]] == right[:, 0]
        stays[0] = True
        owner[~stays] = NOBODY

    def hand_over(self, kind: int, place: int, entry: int) -> None:
        """A place changes hands: what the last tenants of its bytes left is nobody's."""
        self.owner[kind][place] = entry
        self.poison(kind, place)
        for other in self.space.under(kind, place):
            if self.owner[1 - kind][other] > 0:
                self.owner[1 - kind][other] = NOBODY
            self.poison(1 - kind, other)

    # -- contents

    def poison(self, kind: int, place: int) -> None:
        if kind == STATE:
            self.state[place] = POISON
            return
        self.labels[place] = self.head[place] = POISON
        self.filled[place], self.high[place], self.writer[place] = 0, self.span, 0

    def poison_rows(self, place: int, low: int, high: int) -> None:
        self.labels[place, low:high] = POISON
        self.filled[place] = min(int(self.filled[place]), low)
        self.high[place] = max(int(self.high[place]), high)

    def poison_all(self) -> None:
        for kind, owner in enumerate(self.owner):
            for place in range(len(owner)):
                self.poison(kind, place)

    def move(self, kind: int, source: int, destination: int) -> None:
        """Content, owner and history go along; the source is nobody's."""
        holder = int(self.owner[kind][source])
        if kind == STATE:
            label = self.state[source]
            self.poison(STATE, source)
        else:
            label, row = 0, self.labels[source].copy()
            rest = self.head[source], self.filled[source], self.high[source], self.writer[source]
            self.poison(PAGE, source)
        self.owner[kind][source] = NOBODY
        self.hand_over(kind, destination, holder)
        if kind == STATE:
            self.state[destination] = label
        else:
            self.labels[destination] = row
            self.head[destination], self.filled[destination], self.high[destination], self.writer[destination] = rest

    def zero(self, kind: int, place: int, origin: Origin) -> None:
        self.origin[kind][place] = origin
        if kind == STATE:
            self.state[place] = ZERO
            return
        self.labels[place], self.head[place] = ZERO, POISON
        self.filled[place] = self.high[place] = self.writer[place] = 0

    def copy_page(self, source: int, destination: int, rows: int, origin: Origin) -> None:
        """Rows 0 .. rows - 1; the rest of the destination becomes zero."""
        first, head, filled = self.labels[source, :rows].copy(), self.head[source], int(self.filled[source])
        self.zero(PAGE, destination, origin)
        self.labels[destination, :rows] = first
        self.head[destination], self.filled[destination], self.high[destination] = head, min(filled, rows), rows

    def write_state(self, place: int, label: int, origin: Origin) -> None:
        self.state[place] = label
        self.origin[STATE][place] = origin

    def write_rows(self, place: int, low: int, head: int, labels: Sequence[int], key: int, origin: Origin) -> None:
        """Rows from `low` on, by a forward pass; `head`: label before `low`."""
        high = low + len(labels)
        self.labels[place, low:high] = labels
        if low == 0:
            self.head[place] = head
        if low <= self.filled[place]:
            self.filled[place] = high
        self.high[place] = max(int(self.high[place]), high)
        self.writer[place] = key
        self.origin[PAGE][place] = origin
