"""Rows in, turns out: interning of block ids, shared storage of streams, tails read from later rows.

A stream's rows mostly append, so its block ids stand in one growing array, a `_Path`, and each turn holds
(array, length). A row that leaves the path at an earlier block starts a new one with a copy of what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from k3mem.replay.formats.base import Reject
from k3mem.replay.trace import BadTrace, Trace, Turn
from k3mem.types import Int32

ID_LIMIT = 2**31 - 1
"""Token ids, and lengths in tokens, stay below this: they are int32."""


class Full(Exception):
    """The caller's limit of turns is reached."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a row says beside its lengths and ids; times in seconds."""

    n: int | None = None
    arrival: float | None = None
    think: float | None = None
    api: float | None = None
    stop: str | None = None
    reply: Int32 | None = None
    """Ids of the output."""
    spawned_after: int | None = None
    """`n` of the main stream's turn that spawned this stream."""
    parent: int | None = None
    """The same, as an index of the trace; holds for the rest of the stream."""


NO_FACTS = Facts()


class _Path:
    """Block ids of consecutive rows of one stream of which each keeps all whole blocks of the one before."""

    __slots__ = ("parts", "size", "turns")

    def __init__(self, kept: Int32) -> None:
        self.parts: list[Int32] = [kept]
        self.size = len(kept)
        self.turns: list[Turn] = []

    def extend(self, ids: Int32) -> None:
        self.parts.append(ids)
        self.size += len(ids)

    def ids(self) -> Int32:
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0]


class _Stream:
    __slots__ = ("name", "path", "indexes", "parent", "by_n")

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = _Path(np.zeros(0, np.int32))
        self.indexes: list[int] = []
        self.parent: int | None = None
        self.by_n: dict[int, int] = {}


class Builder:
    """Collects the turns of one trace. `add` and `add_list` raise Reject and then leave everything as it was."""

    def __init__(self, block: int, *, limit: int | None = None, progress: Callable[[int], None] | None = None) -> None:
        if not 1 <= block < ID_LIMIT:
            raise ValueError(f"block must be 1 or more tokens, got {block}")
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be 1 or more turns, got {limit}")
        self.block = block
        self.turns: list[Turn] = []
        self.ids = 0
        """Ids below this are taken by blocks (or, for token ids, may be real tokens)."""
        self._limit = limit
        self._progress = progress
        self._scopes: dict[Hashable, dict[int, int]] = {}
        self._streams: dict[tuple[str, int | str], _Stream] = {}
        self._paths: list[_Path] = []
        self._spawned: list[tuple[Turn, int]] = []

    def intern(self, scope: Hashable, ids: Iterable[int]) -> list[int]:
        """Dense ids >= 0 for block ids of a scope, in order of first sight. O(len)."""
        known = self._scopes.setdefault(scope, {})
        out = []
        for key in ids:
            dense = known.get(key)
            if dense is None:
                dense = known[key] = self.ids
                self.ids += 1
            out.append(dense)
        return out

    def reserve(self, *ids: Int32 | None) -> None:
        """Take real token ids as they are: no id of a turn's own will equal one of them. O(len)."""
        for some in ids:
            if some is not None and len(some):
                self.ids = max(self.ids, int(some.max()) + 1)

    def length(self, session: str, sub: int | str = 0) -> int | None:
        """Whole blocks of the stream's last row; None if there is none."""
        stream = self._streams.get((session, sub))
        return stream.path.size if stream is not None else None

    def last(self, session: str, sub: int | str = 0) -> Turn | None:
        """The stream's last turn."""
        stream = self._streams.get((session, sub))
        return self.turns[stream.indexes[-1]] if stream is not None else None

    def check(self, input: int, output: int) -> None:
        """Raises Reject for lengths that no request has."""
        if input < 1:
            raise Reject(f"input of {input} tokens: a request has at least one")
        if output < 0:
            raise Reject(f"output of {output} tokens is negative")
        if input + output >= ID_LIMIT:
            raise Reject(f"input + output = {input + output} tokens do not fit 32 bits")

    def add(self, session: str, sub: int | str, input: int, output: int, keep: int, new: Sequence[int] | Int32,
            facts: Facts = NO_FACTS, *, tail: int | None = None) -> Turn:
        """Add a row that keeps `keep` whole blocks of its stream's last row, then has the dense ids `new`.

        tail: dense id of the partial block at the prompt's end, if the row gives one. Raises Reject, Full.
        """
        self.check(input, output)
        if keep + len(new) != input // self.block:
            raise Reject(f"{keep + len(new)} blocks for {input} tokens: expected {input // self.block}")
        stream = self._streams.get((session, sub))
        before = stream.path.size if stream is not None else 0
        if not 0 <= keep <= before:
            raise Reject(f"keeps {keep} blocks of a row that has {before}")
        if stream is None:
            stream = self._streams[session, sub] = _Stream(f"{session}/{sub}")
            self._paths.append(stream.path)

        turn = Turn()
        turn.index = len(self.turns)
        turn.session, turn.stream = session, stream.name
        turn.key = f"{stream.name}#{len(stream.indexes)}"
        turn.n = len(stream.indexes) if facts.n is None else facts.n
        turn.input, turn.output = input, max(output, 1)
        turn.keep = self._extend(stream, keep, np.asarray(new, np.int32))
        turn.grid_known = input // self.block * self.block
        turn._block, turn._tail = self.block, -1 if tail is None else tail
        self._note(turn, stream, facts)
        self.turns.append(turn)
        if self._progress is not None and len(self.turns) % 1000 == 0:
            self._progress(len(self.turns))
        if len(self.turns) == self._limit:
            raise Full
        return turn

    def add_list(self, session: str, sub: int | str, input: int, output: int, ids: Sequence[int],
                 facts: Facts = NO_FACTS, *, scope: Hashable = None) -> Turn:
        """Add a row that lists all of its block ids (raw ones); one more than the whole blocks names the partial."""
        self.check(input, output)
        whole, partial = divmod(input, self.block)
        if len(ids) != whole and not (partial and len(ids) == whole + 1):
            raise Reject(f"{len(ids)} hash ids for {input} tokens: blocks of {self.block} need "
                         f"{whole + bool(partial)} (give block= if blocks have another size)")
        dense = self.intern(scope, ids)
        tail = dense.pop() if len(dense) > whole else None
        return self.add_whole(session, sub, input, output, np.asarray(dense, np.int32), facts, tail=tail)

    def add_whole(self, session: str, sub: int | str, input: int, output: int, ids: Int32,
                  facts: Facts = NO_FACTS, *, tail: int | None = None) -> Turn:
        """Add a row by all its whole blocks' dense ids; what it keeps of the last row is found by comparing. O(len)."""
        stream = self._streams.get((session, sub))
        keep = _common(stream.path.ids(), ids) if stream is not None else 0
        return self.add(session, sub, input, output, keep, ids[keep:], facts, tail=tail)

    def _note(self, turn: Turn, stream: _Stream, facts: Facts) -> None:
        turn.arrival, turn.think, turn.api = facts.arrival, facts.think or 0.0, facts.api
        turn.stop = facts.stop or ""
        turn._reply = facts.reply if facts.reply is not None and len(facts.reply) else None
        if stream.parent is None:
            stream.parent = facts.parent
        turn.parent = stream.parent
        if facts.spawned_after is not None:
            self._spawned.append((turn, facts.spawned_after))
        stream.by_n[turn.n] = turn.index
        stream.indexes.append(turn.index)
        stream.path.turns.append(turn)

    def _extend(self, stream: _Stream, keep: int, new: Int32) -> int:
        """Put a row on its stream's path, on a new one if it leaves it. Returns the blocks that it really keeps."""
        path = stream.path
        if keep < path.size:
            more = _common(path.ids()[keep:], new)
            keep, new = keep + more, new[more:]
            if keep < path.size:
                path = stream.path = _Path(path.ids()[:keep].copy())
                self._paths.append(path)
        path.extend(new)
        return keep

    def finish(self, name: str, format: str, *, has_sessions: bool, wall_clock: bool,
               problems: list[BadTrace]) -> Trace:
        """Resolve tails and spawns; the builder is used up."""
        if wall_clock:
            first = min((turn.arrival for turn in self.turns if turn.arrival is not None), default=0.0)
            for turn in self.turns:
                turn.arrival = None if turn.arrival is None else turn.arrival - first
        for path in self._paths:
            self._resolve(path)
        for turn, n in self._spawned:
            main = self._streams.get((turn.session, 0))
            turn.parent = main.by_n.get(n) if main is not None else None
        tokens = self.ids + len(self.turns)
        if tokens >= ID_LIMIT:
            raise BadTrace(name, 0, f"{tokens} distinct ids do not fit 32 bits")
        return Trace(
            name=name, format=format, turns=self.turns, block=self.block, tokens=tokens,
            streams={stream.name: stream.indexes for stream in self._streams.values() if stream.indexes},
            has_sessions=has_sessions, has_arrivals=all(turn.arrival is not None for turn in self.turns),
            problems=problems,
        )  # fmt: skip

    def _resolve(self, path: _Path) -> None:
        """Give the path's turns its ids and, from the last turn to the first, how far they are known.

        The next turn on the path keeps all whole blocks of this one; so it shows this one's tokens as far as its own
        prompt is shown, which for its own tail again depends on its next.
        """
        if not path.turns:
            return
        last = path.turns[-1]
        if last._tail >= 0:
            path.extend(np.asarray([last._tail], np.int32))
        ids = path.ids()
        ids.flags.writeable = False
        path.parts = []
        shown = last.input if last._tail >= 0 else last.grid_known
        for turn in reversed(path.turns):
            turn._ids = ids
            turn._known = min(turn.input + turn.output, max(turn.grid_known, shown))
            turn._own = self.ids + turn.index
            shown = min(turn.input, turn._known)
            turn.shown = turn.input if turn._tail >= 0 else shown
            if turn._tail < 0:
                turn._tail = turn._own


def _common(a: Int32, b: Int32) -> int:
    """Length of the common prefix. O(len)."""
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    at = int(differ.argmax()) if size else 0
    return at if size and differ[at] else size
