"""Hand-made plans for tests: a builder, a host that hands out ids, and ways to spoil a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.executor import Layout
from k3mem.plan import Plan, Result, Row, Sampling, Seat
from k3mem.shape import Shape

PHASES = ("moves", "page_table", "state_table", "seats", "lane_pages", "zero_pages", "zero_states", "page_copies",
          "restores", "snapshots")
"""Phases of a plan out of which `omit` can leave an entry."""


def small_shape(page_tokens: int = 4, vocab_size: int = 1000, **changes: Any) -> Shape:
    """A shape with pages of 40 bytes and states of 100: places of both kinds overlap at odd offsets."""
    return Shape(name="small", state_bytes=100, token_bytes=10, page_tokens=page_tokens, state_chunk=4,
                 vocab_size=vocab_size, align=1, **changes)


def layout_of(shape: Shape, pages: int = 64, states: int = 16, lanes: int = 8) -> Layout:
    """An arena in which `pages` pages and `states` states fit side by side; ids for as many."""
    top = pages * shape.page_bytes + states * shape.state_bytes
    return Layout(shape=shape, capacity_bytes=top, state_top=top, page_ids=pages, state_ids=states, lanes=lanes)


class PlanBuilder:
    """Collects the entries of one plan; every method returns the builder, `build` the plan."""

    def __init__(self, step: int, *, resync: bool = False, repeat: int = 1) -> None:
        self.head: dict[str, Any] = {"step": step, "resync": resync, "repeat": repeat}
        self.entries: dict[str, list[Any]] = {phase: [] for phase in PHASES}
        self.rows: list[tuple[int, int, int, int, int, bool]] = []
        self.tokens: list[int] = []
        self.offsets = [0]

    def add(self, phase: str, *entries: Any) -> PlanBuilder:
        """Entries of any phase, as its array's rows (or `Seat`s)."""
        self.entries[phase] += entries
        return self

    def row(self, kind: Row, lane: int, generation: int, start: int, length: int, sample: bool,
            tokens: Sequence[int] = ()) -> PlanBuilder:
        self.rows.append((int(kind), lane, generation, start, length, sample))
        self.tokens += tokens
        self.offsets.append(len(self.tokens))
        return self

    def prefill(self, lane: int, start: int, tokens: Sequence[int], sample: bool, generation: int = 1) -> PlanBuilder:
        return self.row(Row.PREFILL, lane, generation, start, len(tokens), sample, tokens)

    def decode(self, lane: int, start: int, generation: int = 1) -> PlanBuilder:
        return self.row(Row.DECODE, lane, generation, start, 1, True)

    def verify(self, lane: int, start: int, drafts: Sequence[int], generation: int = 1) -> PlanBuilder:
        return self.row(Row.VERIFY, lane, generation, start, 1 + len(drafts), True, drafts)

    def snapshot(self, depth: int, target: int) -> PlanBuilder:
        """Of the newest row."""
        return self.add("snapshots", (len(self.rows) - 1, depth, target))

    def build(self) -> Plan:
        widths = {"moves": 4, "lane_pages": 3, "page_copies": 3, "snapshots": 3, "zero_pages": 0, "zero_states": 0}
        arrays: dict[str, Any] = {}
        for phase, entries in self.entries.items():
            if phase == "seats":
                arrays[phase] = tuple(entries)
            else:
                width = widths.get(phase, 2)
                arrays[phase] = np.array(entries, np.int32).reshape((-1, width) if width else (-1,))
        columns = list(zip(*self.rows, strict=True)) or [()] * 6
        return Plan(
            **self.head, **arrays,
            kind=np.array(columns[0], np.uint8),
            lane=np.array(columns[1], np.int32),
            generation=np.array(columns[2], np.int32),
            start=np.array(columns[3], np.int32),
            length=np.array(columns[4], np.int32),
            sample=np.array(columns[5], np.bool_),
            token_offset=np.array(self.offsets, np.int32),
            tokens=np.array(self.tokens, np.int32),
        )


class Host:
    """Numbers steps and hands out ids; id n lies at place n until a test moves it."""

    def __init__(self, layout: Layout) -> None:
        self.span = layout.shape.page_span
        self.step = 0
        self.pages = 0
        self.states = 0

    def plan(self, *, resync: bool = False, repeat: int = 1) -> PlanBuilder:
        """A builder for the next step."""
        builder = PlanBuilder(self.step + 1, resync=resync, repeat=repeat)
        self.step += repeat
        return builder

    def new_pages(self, builder: PlanBuilder, count: int, *, zero: bool = True) -> list[int]:
        ids = list(range(self.pages + 1, self.pages + 1 + count))
        self.pages += count
        builder.add("page_table", *[(page, page) for page in ids])
        if zero:
            builder.add("zero_pages", *ids)
        return ids

    def new_state(self, builder: PlanBuilder, *, zero: bool = True) -> int:
        self.states += 1
        builder.add("state_table", (self.states, self.states))
        if zero:
            builder.add("zero_states", self.states)
        return self.states

    def seat(self, builder: PlanBuilder, lane: int, *, prompt: int, limit: int, generation: int = 1, depth: int = 0,
             scope: bytes = b"scope", sampling: Sampling | None = None, shared: Sequence[int] = (),
             checkpoint: int = 0, tail: tuple[int, int] | None = None, last_token: int = -1, state: int = 0,
             overwritten: int = 0) -> int:
        """Seat a lane with pages for all of `limit` and a working state; returns the state's id.

        shared: ids of pages to begin with. tail: (page, rows) to copy into the next page. checkpoint: id of the state
        to restore, zero state without. state: id of the working state, a new one without. overwritten: that many of
        the new pages are overwritten whole by this plan, so they are not zeroed.
        """
        state = state or self.new_state(builder, zero=not checkpoint)
        if checkpoint:
            builder.add("restores", (checkpoint, state))
        builder.add("seats", Seat(lane=lane, generation=generation, scope=scope, state=state, depth=depth,
                                  prompt=prompt, limit=limit, last_token=last_token, sampling=sampling or Sampling()))
        pages = list(shared)
        if tail is not None:
            pages += self.new_pages(builder, 1, zero=False)
            builder.add("page_copies", (tail[0], pages[-1], tail[1]))
        pages += self.new_pages(builder, overwritten, zero=False)
        pages += self.new_pages(builder, -(-limit // self.span) - len(pages))
        builder.add("lane_pages", *[(lane, index, page) for index, page in enumerate(pages)])
        return state


def omit(plan: Plan, phase: str, index: int) -> Plan:
    """A copy of the plan without entry `index` of one of `PHASES`.

    Without a snapshot, the result has one `written` less: `mend` puts it back. Raises IndexError.
    """
    entries = getattr(plan, phase)
    if not 0 <= index < len(entries):
        raise IndexError(f"{phase} has {len(entries)} entries, none at {index}")
    if phase == "seats":
        return replace(plan, seats=entries[:index] + entries[index + 1 :])
    return replace(plan, **{phase: np.delete(entries, index, axis=0)})


def mend(result: Result, phase: str, index: int) -> Result:
    """The result as the whole plan would have it: an omitted snapshot claims to be written."""
    if phase != "snapshots":
        return result
    return replace(result, written=np.insert(result.written, index, True))


def run(executor: Any, *plans: Plan | PlanBuilder) -> list[Result]:
    """Launch and collect one plan after another."""
    out = []
    for plan in plans:
        out.append(executor.collect(executor.launch(plan.build() if isinstance(plan, PlanBuilder) else plan)))
    return out


def run_overlapped(executor: Any, *plans: Plan | PlanBuilder) -> list[Result]:
    """Launch each plan before the one before it is collected."""
    out: list[Result] = []
    ticket = None
    for plan in plans:
        following = executor.launch(plan.build() if isinstance(plan, PlanBuilder) else plan)
        if ticket is not None:
            out.append(executor.collect(ticket))
        ticket = following
    return [*out, executor.collect(ticket)] if ticket is not None else out


def tokens_of(results: Sequence[Result], lane: int) -> list[int]:
    """All tokens that a lane committed in these results."""
    out: list[int] = []
    for result in results:
        ends = np.cumsum(result.accepted)
        for i, who in enumerate(result.lane.tolist()):
            if who == lane:
                out += result.tokens[ends[i] - result.accepted[i] : ends[i]].tolist()
    return out
