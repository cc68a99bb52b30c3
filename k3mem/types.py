"""Ids and places. Each space is a type of its own, so that a mix-up fails the type checker."""

from __future__ import annotations

from typing import NewType

import numpy as np
import numpy.typing as npt

PageId = NewType("PageId", int)
"""A KV page's virtual id, constant while somebody owns it."""
StateId = NewType("StateId", int)
"""A state's virtual id, constant while somebody owns it."""
PagePlace = NewType("PagePlace", int)
"""Where a page lies: bytes [place * page_bytes, (place + 1) * page_bytes) of the arena."""
StatePlace = NewType("StatePlace", int)
"""Where a state lies: bytes [top - (place + 1) * state_bytes, top - place * state_bytes) of the arena."""
Lane = NewType("Lane", int)
"""A running request's seat."""
NodeId = NewType("NodeId", int)
"""A node of the token tree; plans hold ids, never nodes."""
ScopeId = NewType("ScopeId", int)
"""An interned key scope (tenant salt, adapter and version, draft version)."""

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]

NO_STATE = StateId(-1)
NO_NODE = NodeId(-1)
