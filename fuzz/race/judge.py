"""From records to a report.

A plan waits for its outcome before it is expanded, so that its rows are judged at the depths where they really stood;
the outcome comes at most some steps later. What has none at the end is judged by its worst case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from os import PathLike
from typing import BinaryIO

import numpy as np

from k3mem.errors import Effect
from k3mem.executor import Layout
from k3mem.fuzz.race.expand import FORWARD, Expander
from k3mem.fuzz.race.order import Command, Order, Pair
from k3mem.fuzz.race.report import Race, Report
from k3mem.fuzz.race.space import PART, Space
from k3mem.fuzz.record import BadRecording, Failure, Record, read
from k3mem.plan import Plan, Result, Row

MOST_OPEN = 256
"""Plans that wait for an outcome; beyond, the oldest is judged without one."""
EVENTS_KEPT = 1024
"""Steps whose end other streams may still wait for."""
WITHIN = {"moves": "moves_overlap", "page copies": "copies_overlap", "restores": "restores_overlap",
          "zeroing": "zeroed_twice", "seats": "lane_seated_twice", "sample": "two_rows_one_lane",
          "fold": "folded_twice"}
"""Kind of race between two commands of one phase."""


class Judge:
    """Takes records (a `Sink`) and commands of other streams; `report` is complete after `finish`.

    Commands of transfers name addresses of `space` and wait for ("forward", step), the end of that step on the forward
    stream. Memory: O(arena + lanes' pages), whatever the recording's length.
    """

    def __init__(self) -> None:
        self.report = Report()
        self._open: deque[tuple[Plan, Result | Failure | None]] = deque()
        """Launched plans and their outcomes, oldest first; only those behind one without an outcome."""
        self._expander: Expander | None = None
        self._order = Order(self._pair)

    @property
    def space(self) -> Space:
        """Addresses of the layout attached last. Raises BadRecording before there is one."""
        if self._expander is None:
            raise BadRecording("a plan or a command comes before any layout")
        return self._expander.space

    def put(self, record: Record) -> None:
        """The next record. Raises BadRecording where no executor could show it now."""
        if isinstance(record, Plan):
            _fits(record, self.space)
            self._open.append((record, None))
            self.report.steps += record.repeat
            if len(self._open) > MOST_OPEN:
                self._settle(force=True)
        elif isinstance(record, Result):
            self._collected(record)
        elif isinstance(record, Failure):
            self._failed(record)
        else:
            self._attach(record)

    def command(self, command: Command) -> None:
        """A command of another stream."""
        self._order.put(command)

    def finish(self) -> Report:
        """Judge what is open. Returns the report."""
        while self._open:
            self._settle(force=True)
        for stuck in self._order.finish():
            self._tell(Race("stuck", stuck.step, "nothing", stuck.name, f"events {stuck.waits}", "a signal"))
        self._count()
        return self.report

    # -- records

    def _attach(self, layout: Layout) -> None:
        while self._open:
            self._settle(force=True)
        self._order.finish()
        self._count()
        self._order = Order(self._pair)
        self._expander = Expander(Space(layout), self._tell)

    def _collected(self, result: Result) -> None:
        at = next((i for i, (_, outcome) in enumerate(self._open) if outcome is None), None)
        if at is None or self._open[at][0].step != result.step:
            expected = f"that of step {self._open[at][0].step}" if at is not None else "none"
            raise BadRecording(f"a result of step {result.step} where {expected} was to come")
        self._open[at] = (self._open[at][0], result)
        self._settle()

    def _failed(self, failure: Failure) -> None:
        if not self._open:
            raise BadRecording(f"step {failure.step} fails, and no plan is open")
        if failure.at == "launch":
            self._open[-1] = (self._open[-1][0], failure)
        else:
            self._open = deque((plan, outcome or failure) for plan, outcome in self._open)
        self.report.failures += 1
        self._settle()

    def _settle(self, force: bool = False) -> None:
        """Judge plans with an outcome, up to the first without; with `force` that one, too."""
        while self._open and (force or self._open[0][1] is not None):
            plan, outcome = self._open.popleft()
            expander = self._expander
            assert expander is not None
            if isinstance(outcome, Failure):
                if outcome.effect == Effect.CONTENTS_LOST:
                    expander.mirror.poison_all()
                expander.fail(plan, outcome.effect == Effect.UNKNOWN)
            else:
                for command in expander.expand(plan, outcome):
                    self._order.put(command)
                self._order.forget([(FORWARD, plan.step + n - EVENTS_KEPT) for n in range(plan.repeat)])
            force = False

    # -- findings

    def _pair(self, pair: Pair) -> None:
        first, second = pair.first, pair.second
        name = first if isinstance(first, str) else first.name
        place = self.space.describe(pair.low, pair.high)
        if isinstance(first, str) or first.stream != second.stream:
            moves = any("moves" in str(c.phase) for c in (first, second) if isinstance(c, Command))
            kind = "moved_while_read" if moves else "unordered"
            edge = f"an event from {name} to {second.name}, or back"
        else:
            kind = self._within(first, second, pair)
            edge = f"an order inside the phase {_phase(second)}"
        self._tell(Race(kind, second.step, name, second.name, place, edge))

    def _within(self, first: Command, second: Command, pair: Pair) -> str:
        phase = _phase(second)
        if phase in WITHIN:
            return WITHIN[phase]
        if phase != "rows":
            return "unordered"
        if pair.low >= PART:
            return "two_rows_one_lane"
        states = {c.working for c in (first, second)}
        if len(states) == 1 and pair.low in states:
            return "rows_share_state"
        page = any(low <= pair.low < high and high - low <= self.space.page for low, high in first.writes.tolist())
        return "rows_share_page" if page and pair.low not in states else "target_in_use"

    def _tell(self, race: Race) -> None:
        self.report.add(race)

    def _count(self) -> None:
        order, report = self._order, self.report
        report.commands += order.commands
        report.accesses += order.accesses
        report.pairs += order.pairs
        order.commands = order.accesses = order.pairs = 0


def _phase(command: Command) -> str:
    return str(command.phase[1]) if isinstance(command.phase, tuple) else "-"


def _fits(plan: Plan, space: Space) -> None:
    """Raises BadRecording for a plan that says nothing, however wrong: arrays that do not fit each other."""
    rows, offsets = plan.rows, plan.token_offset
    columns = (plan.lane, plan.generation, plan.start, plan.length, plan.sample)
    if any(len(column) != rows for column in columns) or len(offsets) != rows + 1 or plan.repeat < 1:
        raise BadRecording(f"plan {plan.step}: its {rows} rows do not have one entry in each array")
    if offsets[0] != 0 or offsets[-1] != len(plan.tokens) or (np.diff(offsets) < 0).any():
        raise BadRecording(f"plan {plan.step}: token_offset does not divide its {len(plan.tokens)} tokens")
    if rows and plan.kind.max() > max(Row):
        raise BadRecording(f"plan {plan.step}: a row of kind {plan.kind.max()}, which is none")
    widths = (("moves", 4), ("page_table", 2), ("state_table", 2), ("lane_pages", 3), ("page_copies", 3),
              ("restores", 2), ("snapshots", 3))
    if any(getattr(plan, name).shape[1:] != (width,) for name, width in widths):
        raise BadRecording(f"plan {plan.step}: an array has not the columns that it should have")
    reach = space.span * space.page_ids
    if rows and (plan.start.min() < 0 or plan.length.min() < 0 or int(plan.start.max()) > reach or
                 int(plan.length.max()) * plan.repeat > reach):
        raise BadRecording(f"plan {plan.step}: a row lies outside the {reach} positions that all pages have")


def judge(source: str | PathLike[str] | BinaryIO | Iterable[Record]) -> Report:
    """Judge a recording: a file, or its records. O(accesses log accesses of a phase). Raises BadRecording, naming the
    record, for what is no recording."""
    judge, number = Judge(), 0
    named = isinstance(source, (str, PathLike)) or hasattr(source, "read")
    records: Iterable[Record] = read(source) if named else source  # type: ignore[arg-type, assignment]
    for number, record in enumerate(records, 1):
        try:
            judge.put(record)
        except BadRecording as e:
            name = str(source) if isinstance(source, (str, PathLike)) else "recording"
            raise BadRecording(f"{name}: record {number}: {e}") from e
    return judge.finish()
