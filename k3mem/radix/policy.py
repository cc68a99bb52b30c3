"""Eviction policies: what they may say, as data that the tree reads once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from k3mem.radix.kinds import Kind
from k3mem.types import UInt8


@runtime_checkable
class EvictionPolicy(Protocol):
    """Orders victims by (class, last touch), smallest first. KV without a checkpoint below it is always class 0."""

    def classes(self) -> UInt8:
        """[kinds, 2] class, 0 .. 254, of a checkpoint by (kind, superseded)."""
        ...


@dataclass(frozen=True, slots=True)
class Lru:
    """Least recently used; superseded checkpoints of the kinds in `superseded_first` go before all others.

    `Lru(superseded_first=())` is plain LRU over checkpoints.
    """

    superseded_first: tuple[Kind, ...] = (Kind.CHUNK_END,)

    def classes(self) -> UInt8:
        table = np.ones((len(Kind), 2), np.uint8)
        table[list(self.superseded_first), 1] = 0
        return table
