"""Eviction policies: which checkpoint goes first. A policy is an immutable object; what it learns about one tree is in
the keeper that it makes for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from k3mem.radix.kinds import PASSED, Kind
from k3mem.types import Int32, ScopeId, UInt8

if TYPE_CHECKING:
    from k3mem.radix.tree import Tree


class Prices(NamedTuple):
    """What things cost, in bytes: a state, a token of KV, and all that may be cached."""

    state_bytes: int
    token_bytes: int
    capacity_bytes: int

    @property
    def state_tokens(self) -> float:
        """A state's bytes in tokens of KV."""
        return self.state_bytes / self.token_bytes


class Keeper(Protocol):
    """A policy at work on one tree: told of every request, it steers the tree's order of victims."""

    heeds: bool
    """Whether what is noted of a next use changes anything, but for OVER, which the tree itself sees to. Where not,
    nobody needs to note it."""

    def requested(self, scope: ScopeId, prompt: Int32, now: float) -> int:
        """A request came, with whole prompt blocks `prompt` that may be kept; `now` in seconds, never less than before.
        Returns a number for `finished`."""
        ...

    def finished(self, request: int, note: int) -> None:
        """That request ended, and this is known of the next use of what it left (`Note`)."""
        ...

    def resized(self, capacity_bytes: int) -> None:
        """So many bytes may be cached from now on."""
        ...

    def stats(self) -> dict[str, object]:
        """For reports: plain data."""
        ...


@runtime_checkable
class EvictionPolicy(Protocol):
    """Victims go by rank first, lowest first (KV without a checkpoint below it, and checkpoints of ended sessions, are
    always rank 0), then as the keeper has the tree order them: by last touch unless it says otherwise."""

    def classes(self) -> UInt8:
        """[kinds, 2] rank, 0 .. 254, of a checkpoint by (kind, superseded)."""
        ...

    def keeper(self, tree: Tree, prices: Prices) -> Keeper:
        """What steers this tree, which is empty."""
        ...


class Passive:
    """The keeper of a policy that neither learns nor steers."""

    heeds = False

    def requested(self, scope: ScopeId, prompt: Int32, now: float) -> int:
        return 0

    def finished(self, request: int, note: int) -> None:
        """Nothing is learned."""

    def resized(self, capacity_bytes: int) -> None:
        """Order does not depend on it."""

    def stats(self) -> dict[str, object]:
        return {}


@dataclass(frozen=True, slots=True)
class Lru:
    """Least recently used; superseded checkpoints of the kinds in `superseded_first` go before all others.

    `Lru(superseded_first=())` is plain LRU over checkpoints.
    """

    superseded_first: tuple[Kind, ...] = PASSED

    def classes(self) -> UInt8:
        return ranks(self.superseded_first)

    def keeper(self, tree: Tree, prices: Prices) -> Keeper:
        return Passive()


def ranks(superseded_first: tuple[Kind, ...]) -> UInt8:
    """[kinds, 2]: 1, but 0 for superseded checkpoints of these kinds."""
    table = np.ones((len(Kind), 2), np.uint8)
    table[list(superseded_first), 1] = 0
    return table
