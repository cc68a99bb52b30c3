"""Which ids were handed out and not written to by any launched plan: a flag for every id, for C to read."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3mem.native import ffi, lib
from k3mem.plan import PAGE, STATE
from k3mem.types import Bool, Int32

INTS, BYTES = ffi.typeof("int32_t[]"), ffi.typeof("uint8_t[]")


class Flags:
    """A flag for every id of one kind; grows with the ids. O(1) an id."""

    def __init__(self, raw: Any, kind: int) -> None:
        self.raw, self._kind = raw, kind
        """`k3_written`, which both kinds share."""
        self._of: Bool = np.zeros(0, np.bool_)
        self._grow(1024)

    @classmethod
    def of_both(cls) -> tuple[Flags, Flags]:
        """Flags of pages, and of states; none is set."""
        raw = ffi.new("k3_written *")
        return cls(raw, PAGE), cls(raw, STATE)

    def set(self, ids: Int32, value: bool) -> None:
        """Set the flags of ids [n]. O(n)."""
        if len(ids) and lib.k3_written_set(self.raw, self._kind, ffi.from_buffer(INTS, ids), len(ids), 1, value):
            self._grow(len(self._of) + int(ids.max()) + 1)
            self.set(ids, value)

    def set_one(self, id: int, value: bool) -> None:
        """Set one flag."""
        if id >= len(self._of):
            self._grow(len(self._of) + id + 1)
        self._of[id] = value

    def set_column(self, table: Int32, column: int, value: bool) -> None:
        """Set the flags of the ids in one column of a table [n, m]. O(n)."""
        n, width = table.shape
        if n:
            whole = np.ascontiguousarray(table)
            if lib.k3_written_set(self.raw, self._kind, ffi.from_buffer(INTS, whole) + column, n, width, value):
                self._grow(len(self._of) + int(table[:, column].max()) + 1)
                self.set_column(table, column, value)

    def get(self, ids: Int32) -> Bool:
        """[n] of them; False for ids that were never set."""
        try:
            found: Bool = self._of[ids]
        except IndexError:
            found = np.array([0 <= i < len(self._of) and self._of[i] for i in ids.tolist()], np.bool_)
        return found

    def _grow(self, size: int) -> None:
        of = np.zeros(size, np.bool_)
        of[: len(self._of)] = self._of
        self._of, self._at = of, ffi.from_buffer(BYTES, of)
        self.raw.unwritten[self._kind], self.raw.n[self._kind] = self._at, size
