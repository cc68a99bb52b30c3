"""A request inside the engine: waiting, running, or on its way out."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from enum import IntEnum

import numpy as np

from k3mem.native import ffi
from k3mem.pool import ExtraBuffer
from k3mem.radix import Kind
from k3mem.request import Hit, Request
from k3mem.types import NO_NODE, NO_STATE, Int32, Int64, Lane, NodeId, ScopeId, StateId

ADDRESS, CAPACITY, COUNT = range(3)
"""Words of a list in the lanes' tables (`k3_list`)."""

Rank = tuple[int, int, int]
"""(-priority, 0, number of first admission), or before that (-priority, 1, number of submission): the smallest goes
first and is retracted last."""


def listed(array: Int32, count: int) -> Int64:
    """[3] words of a list whose items are the first `count` of an array that stays where it is."""
    return np.array((address_of(array), len(array), count), np.int64)


def address_of(array: Int32) -> int:
    """Where an array's items lie."""
    return int(ffi.cast("uintptr_t", ffi.from_buffer(array)))


class End(IntEnum):
    """Why a job leaves its lane."""

    FINISH = 0
    RETRACT = 1
    ABORT = 2


@dataclass(slots=True, eq=False)
class Job:
    """A request and all tokens known of it; survives retraction. `tokens[:count]` are prompt and committed output."""

    request: Request
    """The engine's own copy: what the caller changes in his meanwhile concerns nobody."""
    scope: ScopeId
    serial: int
    """Order of submission."""
    tokens: Int32
    known: InitVar[int]
    """`count` to begin with."""
    prompt: int
    limit: int
    """Committed depth at which it ends."""
    hit: Hit | None = None
    waits: int = 0
    """Plans for which it has waited as a follower."""
    retractions: int = 0
    again: int = 0
    """Tokens to compute again after retractions and failures."""
    reason: str | None = None
    keep: int | None = None
    ticket: int = 0
    """The eviction policy's number of it."""
    admission: int | None = None
    """Order of first admission; a retracted job keeps it, and with it its rank. Never changes while the job is in the
    queue, which is sorted by rank."""
    opening: bytes | None = None
    """The first tokens, as many as the grid, where more are known; as of its last entry into the queue."""
    shared: dict[tuple[int, int], int] = field(default_factory=dict)
    """(lane, generation) of a running prompt -> deepest grid depth that it has in common with this one, which waits."""
    text: Int64 = field(init=False)
    """[3] where `tokens` lie, and `count`: the job's own, or its lane's row of `Lanes.text` while it has one."""
    at: int = field(init=False)
    """Where `tokens` lie."""

    def __post_init__(self, known: int) -> None:
        self.text = listed(self.tokens, known)
        self.at = int(self.text[ADDRESS])

    @property
    def count(self) -> int:
        """Tokens known."""
        return int(self.text[COUNT])

    @count.setter
    def count(self, value: int) -> None:
        self.text[COUNT] = value

    @property
    def rank(self) -> Rank:
        priority = -self.request.priority
        return (priority, 1, self.serial) if self.admission is None else (priority, 0, self.admission)

    def append(self, new: Int32) -> None:
        """Add committed tokens; the buffer doubles as needed. O(new) amortised."""
        self.count = self._write(new)

    def preview(self, new: Int32) -> Int32:
        """A read-only view of the output as it will be once `new` is appended; nothing is appended yet. O(new)
        amortised."""
        return read_only(self.tokens[self.prompt : self._write(new)])

    def reserve(self, end: int) -> None:
        """Room for tokens up to `end`; the buffer doubles as needed. O(tokens) where it grows."""
        if end > len(self.tokens):
            count = self.count
            grown = np.empty(min(max(end, 2 * len(self.tokens), 256), max(self.limit, end)), np.int32)
            grown[:count] = self.tokens[:count]
            self.tokens = grown
            self.at = address_of(grown)
            self.text[:COUNT] = self.at, len(grown)

    def _write(self, new: Int32) -> int:
        """Put tokens beyond the known ones; where they end."""
        count = self.count
        end = count + len(new)
        self.reserve(end)
        self.tokens[count:end] = new
        return end


def read_only(view: Int32) -> Int32:
    """The same view, for somebody who may only read. O(1)."""
    view.flags.writeable = False
    return view


@dataclass(slots=True, eq=False)
class Seated:
    """A job on a lane: what it owns and how far its launched rows go. What every step needs lives in `Lanes`."""

    job: Job
    lane: Lane
    generation: int
    target: int
    """Tokens to absorb before decoding starts (prompt, and after a retraction the output so far)."""
    state: StateId
    node: NodeId
    """Deepest tree node used: locked by this seat."""
    node_depth: int
    pages: Int32
    """Page list, [pages up to the job's limit]; entries below `owned` belong to the tree (this seat's lock keeps them),
    those from there to `page_count` to this seat."""
    held: Int64
    """[3] where `pages` lie, and `page_count`: the lane's row of `Lanes.held`."""
    owned: int
    prefilled: int
    """Absorbed depth after its launched prefill rows; `target` from then on."""
    anchors: dict[int, Kind] = field(default_factory=dict)
    """Depths at which prefill should leave a checkpoint."""
    slots: dict[int, StateId] = field(default_factory=dict)
    """Targets already taken for anchors that followers wait for."""
    extra: ExtraBuffer = field(default_factory=ExtraBuffer)
    lent: Rank | None = None
    """Best rank among the followers of this seat, when they were last judged."""
    end: End | None = None
    first: Int32 = field(default_factory=lambda: np.zeros(1, np.int32))
    """[1] `touched`: the lane's word of `Lanes.touched`."""
    at: int = field(init=False)
    """Where `pages` lie."""

    def __post_init__(self) -> None:
        self.at = int(self.held[ADDRESS])

    @property
    def page_count(self) -> int:
        """Pages in the list."""
        return int(self.held[COUNT])

    @page_count.setter
    def page_count(self, value: int) -> None:
        self.held[COUNT] = value

    @property
    def touched(self) -> int:
        """Pages below this index hold nothing of earlier tenants: zeroed, copied or written whole."""
        return int(self.first[0])

    @touched.setter
    def touched(self, value: int) -> None:
        self.first[0] = value

    @property
    def rank(self) -> Rank:
        return self.job.rank if self.lent is None else min(self.job.rank, self.lent)


__all__ = ["End", "Job", "NO_NODE", "NO_STATE", "Rank", "Seated"]
