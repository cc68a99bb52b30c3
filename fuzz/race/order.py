"""Happens-before over streams, phases and events.

    stream A   | moves | tables | rows ...... (signals e) |            commands of one phase: no order
    stream B               | (waits e) read, read |                    streams: no order without an event

Commands on a stream are numbered. A phase is a run of commands without an order among them; everything of an earlier
phase comes before everything of a later one. An event that a command signals stands for all that its stream was given
up to it; a command that waits for it, and all behind that command, come after. Each stream has a vector clock: for
every other stream the number below which all of its commands come before.

Within a phase the ranges are sorted and swept. Across streams a phase is swept against what it is not ordered after:
each stream's log keeps, for each range it used, the newest command alone, since who comes after that one comes after
all. Both find every pair with an overlap and at least one write. O(accesses log accesses).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from k3mem.types import Bool, Int64

Event = Hashable
NONE: Int64 = np.zeros((0, 2), np.int64)
LOG_SLACK = 1 << 16
"""Accesses that a log takes before ranges used again are forgotten but for their newest use."""
NAMES = 1 << 12
"""Newest commands of a stream that are remembered whole; of older ones only the number is."""


class Command(NamedTuple):
    """One piece of work on a stream, and the addresses that it uses (see `Space`)."""

    stream: str
    name: str
    reads: Int64 = NONE
    """[n, 2] address ranges [low, high)."""
    writes: Int64 = NONE
    """As `reads`; what is read and written stands here alone."""
    waits: tuple[Event, ...] = ()
    """Events that must have happened before it."""
    signals: tuple[Event, ...] = ()
    """Events that happen when it, and all before it on its stream, are done."""
    phase: Hashable = None
    """Neighbours on a stream with the same phase have no order among them; None: alone."""
    step: int = 0
    working: int = -1
    """Lowest address of the state that it updates in place, -1 for none."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two commands without an order that share bytes, one of them writing."""

    first: Command | str
    """The name alone where the command is long past."""
    second: Command
    low: int
    high: int


@dataclass(slots=True)
class _Log:
    """Accesses of one stream: columns low, high, write, number."""

    blocks: list[Int64]
    size: int = 0
    limit: int = LOG_SLACK

    def add(self, block: Int64) -> None:
        self.blocks.append(block)
        self.size += len(block)
        if self.size > self.limit:
            whole = np.concatenate(self.blocks)
            whole = whole[np.lexsort((whole[:, 3], whole[:, 2], whole[:, 1], whole[:, 0]))]
            newest = np.ones(len(whole), np.bool_)
            newest[:-1] = (whole[1:, :3] != whole[:-1, :3]).any(axis=1)
            self.blocks = [whole[newest]]
            self.size = len(self.blocks[0])
            self.limit = 2 * self.size + LOG_SLACK

    def since(self, number: int) -> Int64:
        """Accesses of commands numbered `number` and up. Blocks are in the order of their commands."""
        recent = []
        for block in reversed(self.blocks):
            recent.append(block[block[:, 3] >= number])
            if not len(recent[-1]) and len(block):
                break
        return np.concatenate(recent) if recent else np.zeros((0, 4), np.int64)


class _Stream:
    """Commands of one stream, and its vector clock."""

    def __init__(self) -> None:
        self.waiting: deque[Command] = deque()
        """Behind an event that did not happen yet."""
        self.phase: list[Command] = []
        """The open phase."""
        self.clock: dict[str, int] = {}
        """[other stream] commands of it below this number come before the next command here."""
        self.number = 0
        """Of the next command."""
        self.log = _Log([])
        self.recent: deque[Command] = deque(maxlen=NAMES)

    def command(self, number: int) -> Command | str:
        at = number - self.number + len(self.recent)
        return self.recent[at] if at >= 0 else f"an earlier command ({number})"


class Order:
    """Takes commands, in any order that keeps each stream's own, and calls `found` for every pair without an order."""

    def __init__(self, found: Callable[[Pair], None]) -> None:
        self.found = found
        self.streams: dict[str, _Stream] = {}
        self.events: dict[Event, dict[str, int]] = {}
        """Vector clock of each event that happened. Callers name events by growing numbers; `forget` drops old ones."""
        self.commands = self.accesses = self.pairs = 0

    def put(self, command: Command) -> None:
        """Queue a command; it is judged once the events it waits for are known."""
        self.streams.setdefault(command.stream, _Stream()).waiting.append(command)
        while any(self._go_on(name, stream) for name, stream in self.streams.items() if stream.waiting):
            pass

    def finish(self) -> list[Command]:
        """Judge what is still open. Returns the commands that wait for events which nothing signals."""
        for name, stream in self.streams.items():
            self._close(name, stream)
        return [stream.waiting[0] for stream in self.streams.values() if stream.waiting]

    def forget(self, events: list[Event]) -> None:
        """These events will not be waited for any more."""
        for event in events:
            self.events.pop(event, None)

    def _go_on(self, name: str, stream: _Stream) -> bool:
        """Take the stream's next commands as far as their events happened; whether an event was signalled."""
        signalled = False
        while stream.waiting and all(event in self.events for event in stream.waiting[0].waits):
            command = stream.waiting.popleft()
            if stream.phase and (command.phase is None or command.waits or command.phase != stream.phase[0].phase):
                self._close(name, stream)
            for event in command.waits:
                for other, number in self.events[event].items():
                    stream.clock[other] = max(number, stream.clock.get(other, 0))
            stream.phase.append(command)
            if command.signals:
                self._close(name, stream)
                for event in command.signals:
                    self.events[event] = {**stream.clock, name: stream.number}
                signalled = True
        return signalled

    def _close(self, name: str, stream: _Stream) -> None:
        """Number the open phase's commands and compare them with each other and with the other streams."""
        phase, stream.phase = stream.phase, []
        if not phase:
            return
        first = stream.number
        stream.number += len(phase)
        stream.recent.extend(phase)
        block = _accesses(phase, first)
        self.commands += len(phase)
        self.accesses += len(block)
        self.pairs += len(phase) * (len(phase) - 1) // 2
        if len(phase) > 1:
            for a, b in _overlaps(block):
                self._report(phase[int(block[a, 3]) - first], phase[int(block[b, 3]) - first], block[[a, b]])
        for other, theirs in self.streams.items():
            if theirs is stream or not theirs.number:
                continue
            since = stream.clock.get(other, 0)
            self.pairs += len(phase) * (theirs.number - since)
            if since < theirs.number:
                self._across(theirs, theirs.log.since(since), phase, first, block)
        stream.log.add(block)

    def _across(self, theirs: _Stream, old: Int64, phase: list[Command], first: int, new: Int64) -> None:
        """The phase, numbered from `first`, against accesses that it is not ordered after."""
        seen: set[tuple[int, int]] = set()
        for before in old[_touched(old, new)]:
            shared = (new[:, 0] < before[1]) & (new[:, 1] > before[0]) & ((new[:, 2] | before[2]) != 0)
            for after in new[shared]:
                pair = int(before[3]), int(after[3])
                if pair not in seen:
                    seen.add(pair)
                    self._report(theirs.command(pair[0]), phase[pair[1] - first], np.stack([before, after]))

    def _report(self, first: Command | str, second: Command, accesses: Int64) -> None:
        self.found(Pair(first, second, int(accesses[:, 0].max()), int(accesses[:, 1].min())))


def _accesses(phase: list[Command], first: int) -> Int64:
    """[n, 4] low, high, write, number of every access of these commands."""
    parts = [part for c in phase for part in (c.reads, c.writes)]
    sizes = [len(part) for part in parts]
    block = np.empty((sum(sizes), 4), np.int64)
    if len(block):
        block[:, :2] = np.concatenate(parts)
        of = np.repeat(np.arange(len(parts)), sizes)
        block[:, 2] = of & 1
        block[:, 3] = first + (of >> 1)
    return block


def _touched(old: Int64, new: Int64) -> Bool:
    """[n] which of the old accesses share bytes with a new one, one of the two writing. O(n log n)."""
    by_low = new[np.argsort(new[:, 0])]
    out = np.zeros(len(old), np.bool_)
    for news, olds in ((by_low, old[:, 2] != 0), (by_low[by_low[:, 2] != 0], old[:, 2] == 0)):
        if len(news):
            reach = np.concatenate([[-1], np.maximum.accumulate(news[:, 1])])
            out |= olds & (reach[np.searchsorted(news[:, 0], old[:, 1], "left")] > old[:, 0])
    return out


def _overlaps(block: Int64) -> Iterator[tuple[int, int]]:
    """Index pairs of accesses of different commands that share bytes, one of them writing; one pair a pair of
    commands, the lower number first. O(n log n) where there is none."""
    order = np.argsort(block[:, 0], kind="stable")
    low, high, write = block[order, 0], block[order, 1], block[order, 2] != 0
    if not _any_overlap(low, high, write):
        return
    open_: list[tuple[int, int, bool, int]] = []
    seen: set[tuple[int, int]] = set()
    for at, begin, end, writes, number in zip(order.tolist(), low.tolist(), high.tolist(), write.tolist(),
                                              block[order, 3].tolist(), strict=True):
        open_ = [other for other in open_ if other[1] > begin]
        for before, _, wrote, other in open_:
            key = (min(number, other), max(number, other))
            if (writes or wrote) and number != other and begin < end and key not in seen:
                seen.add(key)
                yield (before, at) if other < number else (at, before)
        open_.append((at, end, writes, number))


def _any_overlap(low: Int64, high: Int64, write: npt.NDArray[np.bool_]) -> bool:
    """Whether any access, sorted by its low end, may share bytes with an earlier one, one of them writing."""
    if len(low) < 2 or not write.any():
        return False
    every = np.maximum.accumulate(high)[:-1]
    writes = np.maximum.accumulate(np.where(write, high, -1))[:-1]
    return bool(((low[1:] < writes) | (write[1:] & (low[1:] < every))).any())
