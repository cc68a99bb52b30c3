"""The compiled device's memory and tables, seen from Python as the reference device's are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from k3mem.executors.mock.model import Matrix, Window
from k3mem.native import ffi, lib
from k3mem.plan import PAGE, STATE, Plan

if TYPE_CHECKING:
    from k3mem.executors.mock.compiled import CompiledDevice

BOTH = lib.K3_MATRIX_ALIVE | lib.K3_WINDOW_ALIVE


def array(kind: str, pointer: Any, count: int) -> Any:
    """`count` items at a pointer, as an array that knows its length and writes through."""
    return ffi.cast(f"{kind}(*)[{count}]", pointer)[0]


class PageView:
    """A live page; writes go through."""

    def __init__(self, core: Any, place: int) -> None:
        self._page = core.pages[place]
        span, groups = core.config.span, core.config.kv_groups
        self.rows = [array("int64_t", self._page.rows + k * span, span) for k in range(groups)]
        self.labels = array("int64_t", self._page.labels, span)

    @property
    def known(self) -> int:
        """Rows that a valid digest covers."""
        return int(self._page.known)

    @known.setter
    def known(self, rows: int) -> None:
        self._page.known = rows


class Pages(Sequence["PageView | None"]):
    """[place] page, None where it is dead."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __len__(self) -> int:
        return int(self._core.places[PAGE])

    @overload
    def __getitem__(self, place: int) -> PageView | None: ...
    @overload
    def __getitem__(self, place: slice) -> list[PageView | None]: ...
    def __getitem__(self, place: int | slice) -> PageView | None | list[PageView | None]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        return PageView(self._core, place) if self._core.pages[place] else None


class Halves:
    """[place] the matrices or the windows of a state, None where they are poison; may be set."""

    def __init__(self, core: Any, alive: int, first: int, end: int) -> None:
        self._core, self._alive, self._first, self._end = core, alive, first, end

    def __len__(self) -> int:
        return int(self._core.places[STATE])

    def _row(self, place: int) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        width = 4 * self._core.config.groups
        return array("int64_t", self._core.state + place * width + self._first, self._end - self._first)

    def __getitem__(self, place: int) -> Any:
        row = self._row(place)
        return self.read(list(row)) if self._core.alive[place] & self._alive else None

    def __setitem__(self, place: int, content: Any) -> None:
        row = self._row(place)
        if content is None:
            self._core.alive[place] &= BOTH & ~self._alive
            return
        for i, value in enumerate(self.write(content)):
            row[i] = value
        self._core.alive[place] |= self._alive

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def read(self, values: list[int]) -> Any:
        """As the model has it."""
        raise NotImplementedError

    def write(self, content: Any) -> list[int]:
        """As the core has it."""
        raise NotImplementedError


class Matrices(Halves):
    def read(self, values: list[int]) -> Matrix:
        return tuple(values)

    def write(self, content: Matrix) -> list[int]:
        return list(content)


class Windows(Halves):
    def read(self, values: list[int]) -> Window:
        return tuple((values[i], values[i + 1], values[i + 2]) for i in range(0, len(values), 3))

    def write(self, content: Window) -> list[int]:
        return [value for rows in content for value in rows]


class MemoryView:
    """See `memory.Memory`."""

    def __init__(self, core: Any) -> None:
        self._core = core
        config, groups = core.config, core.config.groups
        self.page_bytes, self.state_bytes, self.top = config.page_bytes, config.state_bytes, config.state_top
        self.pages = Pages(core)
        self.matrix = Matrices(core, lib.K3_MATRIX_ALIVE, 0, groups)
        self.window = Windows(core, lib.K3_WINDOW_ALIVE, groups, 4 * groups)
        self.label = array("int64_t", core.label, core.places[STATE])

    @property
    def epoch(self) -> int:
        """Grows with every change of pages other than appending rows that no digest covers."""
        return int(self._core.epoch)

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._core.epoch = value

    def holds(self, kind: int, place: int) -> bool:
        """Whether the place lies in the arena."""
        return 0 <= place < int(self._core.places[kind != PAGE])

    def bytes_of(self, kind: int, place: int) -> tuple[int, int]:
        """[low, high) of a place."""
        if kind == PAGE:
            return place * self.page_bytes, (place + 1) * self.page_bytes
        return self.top - (place + 1) * self.state_bytes, self.top - place * self.state_bytes

    def state_alive(self, place: int) -> bool:
        return bool(self._core.alive[place])

    def poison_page(self, place: int) -> None:
        lib.k3_mock_poison_page(self._core, place)

    def poison_rows(self, place: int, low: int, high: int) -> None:
        """Poison rows low .. high - 1 of a page."""
        lib.k3_mock_poison_rows(self._core, place, low, high)

    def poison_state(self, place: int) -> None:
        lib.k3_mock_poison_state(self._core, place)

    def poison_all(self) -> None:
        lib.k3_mock_poison_all(self._core)


class LaneView:
    """A lane's tenant, as it stands."""

    def __init__(self, lane: Any) -> None:
        seat = lane.seat
        self.generation, self.state, self.depth = seat.generation, seat.state, seat.depth
        self.last_token, self.done, self.limit = seat.last_token, seat.done, seat.limit
        self.pages: list[int] = ffi.unpack(lane.pages, lane.n_pages) if lane.n_pages else []


class Lanes(Sequence["LaneView | None"]):
    """[lane] its tenant, None without one."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __len__(self) -> int:
        return int(self._core.config.lanes)

    @overload
    def __getitem__(self, lane: int) -> LaneView | None: ...
    @overload
    def __getitem__(self, lane: slice) -> list[LaneView | None]: ...
    def __getitem__(self, lane: int | slice) -> LaneView | None | list[LaneView | None]:
        if isinstance(lane, slice):
            return [self[one] for one in range(*lane.indices(len(self)))]
        if not 0 <= lane < len(self):
            raise IndexError(lane)
        return LaneView(self._core.lane[lane]) if self._core.lane[lane].seated else None


class TablesView:
    """See `tables.Tables`."""

    def __init__(self, device: CompiledDevice) -> None:
        core, self._device = device.core, device
        config = core.config
        self.lane_count = int(config.lanes)
        self.places = (array("int32_t", core.place[PAGE], config.page_ids),
                       array("int32_t", core.place[STATE], config.state_ids))
        self.owners = (array("int32_t", core.owner[PAGE], core.places[PAGE]),
                       array("int32_t", core.owner[STATE], core.places[STATE]))
        self.lanes = Lanes(core)

    def update(self, plan: Plan) -> None:
        """The table phase of a plan."""
        self._device.update(self._device.begin(plan))
