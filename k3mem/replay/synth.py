"""Seeded agent sessions with the shapes that published traces of coding agents have.

A session starts with tool definitions that it shares with others, its own system prompt and context; turns append the
answer and a tool result or a human's next message; now and then one edits history or compacts it, and some spawn
sub-agents, which share the tool part alone.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from k3mem.replay.convert import convert
from k3mem.replay.formats.build import Builder, Facts
from k3mem.replay.trace import Trace

Z99 = 2.3263
"""99th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What sessions are like. Lengths in tokens, before `scale`; times in seconds. Lognormals as (median, sigma)."""

    turns: tuple[float, float] = (40, 0.7)
    start: tuple[float, float] = (30_000, 0.5)
    """The first prompt's own part, after the tool definitions."""
    peak: tuple[float, float] = (198_000, 0.35)
    """Where the input would be after the last turn without compaction."""
    window: int = 230_000
    """An input that would pass this is compacted first."""
    tools: tuple[int, ...] = (12_439, 12_597, 9_292, 12_974)
    """Tool definitions: one variant for each entry."""
    output: tuple[float, float] = (300, 0.9)
    tool_gap: tuple[float, float] = (9, math.log(611 / 9) / Z99)
    human_gap: tuple[float, float] = (210, 1.2)
    end_turn: float = 0.06
    """Share of turns after which a human speaks."""
    leaves: float = 0.02
    """Share of turns that edit history; compactions (see `window`) make it about 0.03 in all."""
    spawns: float = 0.02
    """Share of tool calls that start a sub-agent."""
    sub_turns: tuple[float, float] = (6, 0.5)
    apart: float = 60
    """Mean time between the starts of two sessions."""


AGENT = Traffic()
SHORT = Traffic(turns=(2, 0.4), start=(2_500, 0.5), peak=(6_000, 0.4), tools=(1_500,), spawns=0, apart=4)
LONG = Traffic(turns=(60, 0.3), start=(60_000, 0.4), peak=(450_000, 0.2), window=600_000, tools=(1_500,), apart=30)


@dataclass(slots=True)
class _Row:
    arrival: float
    session: str
    sub: int
    n: int
    input: int
    output: int
    path: list[int]
    keep: int
    think: float
    stop: str
    spawned_after: int | None


Mix = Literal["agent", "flip", "document"]


@dataclass(frozen=True, slots=True)
class Readers:
    """What readers of long shared documents are like: each is given a document up to one of its places, and asked
    something of his own. Readers of one document come together, then those of another: what is reused must outlive
    the others, or be computed again at once for all. Lengths in tokens, before `scale`; times in seconds."""

    a_document: int = 60
    """Readers for each document that there is."""
    together: int = 15
    length: tuple[float, float] = (160_000, 0.3)
    places: int = 24
    """Where readers of a document stop; some are far more common than others (1, 1/2, 1/3, ...)."""
    question: tuple[float, float] = (400, 0.5)
    output: tuple[float, float] = (200, 0.5)
    apart: float = 20


def synth(seed: int, sessions: int, *, scale: float = 1.0, block: int = 64, mix: Mix = "agent",
          traffic: Traffic | None = None) -> Trace:
    """A trace in arrival order; a function of its arguments alone.

    scale: factor on all lengths in tokens (not on times and turns). mix `flip`: `sessions` short chats, then, when the
    last of them has come, max(2, sessions // 16) very long sessions. mix `document`: `sessions` readers of long
    documents (see `Readers`). Raises ValueError. O(tokens / block).
    """
    if sessions < 1 or scale <= 0:
        raise ValueError(f"synth needs sessions >= 1 and scale > 0, got {sessions} and {scale}")
    if mix not in get_args(Mix):
        raise ValueError(f"unknown mix {mix!r}: {', '.join(get_args(Mix))}")
    world = _World(np.random.default_rng(seed), scale, block)
    if mix == "agent":
        world.run(AGENT if traffic is None else traffic, sessions)
    elif mix == "document":
        world.read(Readers(), sessions)
    else:
        world.run(SHORT, sessions)
        world.clock = max(row.arrival for row in world.rows)
        world.run(LONG, max(2, sessions // 16))
    return world.trace(f"synth-{mix}-{seed}")


def write_synth(path: str | os.PathLike[str], seed: int, sessions: int, *, scale: float = 1.0, block: int = 64,
                mix: Mix = "agent") -> Trace:
    """`synth`, written as `arrivals` (gzip if the name ends in .gz). The same arguments give the same bytes."""
    trace = synth(seed, sessions, scale=scale, block=block, mix=mix)
    convert(trace, path, "arrivals")
    return trace


class _World:
    """Draws sessions one after the other; every block that is new text gets the next id."""

    def __init__(self, rng: np.random.Generator, scale: float, block: int) -> None:
        self.rng = rng
        self.scale = scale
        self.block = block
        self.rows: list[_Row] = []
        self.clock = 0.0
        self._sessions = 0
        self._ids = 0
        self._tools: dict[int, list[int]] = {}

    def run(self, traffic: Traffic, sessions: int) -> None:
        for _ in range(sessions):
            self.clock += float(self.rng.exponential(traffic.apart))
            name = f"s{self._sessions:05d}"
            self._sessions += 1
            tools = int(self.rng.choice(traffic.tools))
            turns = max(1, round(self._draw(traffic.turns)))
            self._stream(traffic, name, 0, tools, turns, self.clock, None)

    def read(self, readers: Readers, sessions: int) -> None:
        """`sessions` readers, each a session of one turn."""
        documents = [self._document(readers) for _ in range(max(2, sessions // readers.a_document))]
        weights = 1.0 / np.arange(1, readers.places + 1)
        for i in range(sessions):
            if i % readers.together == 0:
                blocks, places = documents[int(self.rng.integers(len(documents)))]
            self.clock += float(self.rng.exponential(readers.apart))
            path = blocks[: int(self.rng.choice(places, p=weights / weights.sum()))]
            input = len(path) * self.block + self._tokens(self._draw(readers.question))
            self._fill(path, input)
            output = max(1, round(self._draw(readers.output) * self.scale))
            self.rows.append(_Row(self.clock, f"s{self._sessions:05d}", 0, 0, input, output, path, 0, 0.0, "end_turn",
                                  None))
            self._sessions += 1

    def _document(self, readers: Readers) -> tuple[list[int], list[int]]:
        """Its blocks, and how many of them readers get, the most common first."""
        blocks: list[int] = []
        self._fill(blocks, self._tokens(self._draw(readers.length)))
        return blocks, [int(place) for place in self.rng.integers(1, len(blocks) + 1, readers.places)]

    def _stream(self, traffic: Traffic, name: str, sub: int, tools: int, turns: int, clock: float,
                spawned_after: int | None) -> None:
        small = 0.1 if sub else 1.0
        input = self._tokens(tools + small * self._draw(traffic.start))
        growth = max(0.0, small * self._draw(traffic.peak) - small * traffic.start[0] - tools) / turns
        path, keep, think, subs = list(self._tool_blocks(tools)), 0, 0.0, 0
        for n in range(turns):
            self._fill(path, input)
            output = max(1, round(self._draw(traffic.output) * self.scale))
            ends = n == turns - 1 or self.rng.random() < traffic.end_turn
            self.rows.append(_Row(clock, name, sub, n, input, output, list(path), keep, think,
                                  "end_turn" if ends else "tool_use", spawned_after))
            served = 1.0 + 0.015 * output / self.scale
            if not sub and not ends and self.rng.random() < traffic.spawns:
                subs += 1
                length = max(1, round(self._draw(traffic.sub_turns)))
                self._stream(traffic, name, subs, tools, length, clock + served, n)
            think = round(self._draw(traffic.human_gap if ends else traffic.tool_gap), 3)
            clock += served + think
            grown = input + output + self._tokens(growth * self.rng.exponential())
            input, keep = self._next(traffic, path, grown, tools)

    def _next(self, traffic: Traffic, path: list[int], grown: int, tools: int) -> tuple[int, int]:
        """Next input and the blocks kept of `path`, which is cut to them."""
        head = self._tokens(tools)
        room = max(0, len(path) * self.block - head)
        if grown > self._tokens(traffic.window):
            depth, grown = head, head + int(0.3 * room) + 1
        elif self.rng.random() < traffic.leaves:
            depth = head + int(room * self.rng.uniform(0.5, 1.0))
            grown = depth + self.block + int((grown - depth) * self.rng.random())
        else:
            depth = len(path) * self.block
        del path[depth // self.block :]
        return max(grown, depth + 1), len(path)

    def _fill(self, path: list[int], input: int) -> None:
        """New text from the path's end to the last whole block of the input."""
        whole = input // self.block
        path[:] = path[:whole]
        fresh = whole - len(path)
        path.extend(range(self._ids, self._ids + fresh))
        self._ids += fresh

    def _tool_blocks(self, tools: int) -> list[int]:
        if tools not in self._tools:
            self._tools[tools] = []
            self._fill(self._tools[tools], self._tokens(tools))
        return self._tools[tools]

    def _draw(self, median_sigma: tuple[float, float]) -> float:
        median, sigma = median_sigma
        return float(median * math.exp(sigma * self.rng.standard_normal()))

    def _tokens(self, length: float) -> int:
        return max(1, round(length * self.scale))

    def trace(self, name: str) -> Trace:
        """The rows as turns, in arrival order."""
        builder = Builder(self.block)
        for row in sorted(self.rows, key=lambda row: (row.arrival, row.session, row.sub, row.n)):
            dense = builder.intern(None, row.path[row.keep :])
            builder.add(row.session, row.sub, row.input, row.output, row.keep, dense, Facts(
                n=row.n, arrival=round(row.arrival, 3), think=row.think, stop=row.stop,
                spawned_after=row.spawned_after))
        return builder.finish(name, "synth", has_sessions=True, wall_clock=False, problems=[])
