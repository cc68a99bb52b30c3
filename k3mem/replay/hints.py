"""Eviction policies by name, and what a caller could have told the cache about each request of a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

from k3mem.radix import Auto, Cost, EvictionPolicy, Kind, Learned, Lru, Note, due
from k3mem.radix.kinds import PASSED
from k3mem.replay.options import BadOption
from k3mem.replay.trace import Trace, Turn

POLICIES: dict[str, Callable[[tuple[Kind, ...]], EvictionPolicy]] = {
    "lru": Lru, "cost": Cost, "learned": Learned, "auto": Auto,
}

TOOL = frozenset({"tool_use", "tool", "tool_calls", "function_call"})
END = frozenset({"end_turn", "stop", "stop_sequence", "end"})


def eviction(name: str, superseded_first: tuple[Kind, ...] = PASSED) -> EvictionPolicy:
    """The policy of a name; superseded checkpoints of these kinds go first. Raises BadOption."""
    if name not in POLICIES:
        raise BadOption(f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    return POLICIES[name](superseded_first)


def stop_of(turn: Turn) -> Literal["tool", "end"] | None:
    """Why a turn's answer ended, in the words of `Engine.hint`."""
    return "tool" if turn.stop in TOOL else "end" if turn.stop in END else None


class Hints:
    """What is known of a turn when its answer ends: why it ended; and with hints, what its caller knew besides.

    end: that nobody comes back: the last turn of its session or sub-agent; without sessions, a prompt whose last whole
    block no later prompt has. tool: after a tool call, the time to the next turn, to a factor of two. fork: while the
    prompt runs already, the depth at which a later prompt of the same session leaves it.
    """

    def __init__(self, trace: Trace, turns: Sequence[Turn], hints: Sequence[str]) -> None:
        self._last: set[int] = set()
        self._pause: dict[int, float] = {}
        self._forks: dict[int, list[int]] = defaultdict(list)
        if "end" in hints:
            self._find_ends(trace, turns)
        if not {"tool", "fork"} & set(hints):
            return
        following = {a: trace.turns[b] for stream in trace.streams.values()
                     for a, b in zip(stream, stream[1:], strict=False)}
        if "tool" in hints:
            self._pause = {index: turn.think for index, turn in following.items() if turn.think > 0}
        if "fork" in hints:
            for index, turn in following.items():
                if turn.keep * trace.block < trace.turns[index].grid_known:
                    self._forks[index].append(turn.keep * trace.block)

    def note(self, turn: Turn) -> int:
        """What is known of the next use of what a turn leaves, once it has ended (`k3mem.radix.Note`)."""
        if turn.index in self._last:
            return Note.OVER
        if turn.stop in TOOL:
            return due(self._pause[turn.index]) if turn.index in self._pause else Note.TOOL
        return Note.END if turn.stop in END else Note.UNKNOWN

    def forks(self, turn: Turn) -> Sequence[int]:
        """Depths in tokens at which later prompts leave this one."""
        return self._forks.get(turn.index, ())

    def _find_ends(self, trace: Trace, turns: Sequence[Turn]) -> None:
        if trace.has_sessions:
            last = {turn.stream: turn.index for turn in turns}
            self._last = set(last.values())
            return
        seen: dict[int, int] = {}
        for turn in reversed(turns):
            blocks = turn.blocks
            end = (turn.input - 1) // trace.block
            if end and int(blocks[end - 1]) not in seen:
                self._last.add(turn.index)
            for block in blocks.tolist():
                seen[block] = turn.index
