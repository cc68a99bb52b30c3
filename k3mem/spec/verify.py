"""The verify planner: which drafts are worth verifying in a step.

A row that verifies its first k drafts commits one token and, of those drafts, as many as turn out right: expected
1 + s_1 + ... + s_k, where s_j, the *survival* of draft j, is the product of the first j confidences. A step's worth is

    (rows + sum of survivals of all verified drafts) / its time        tokens per microsecond

Survivals fall along a row. So the best set of any size, the largest survivals, is a prefix of each row by itself, and
best sets of growing size are nested: one sort gives all of them. Between two edges of the surface more drafts cost
nothing, so only edges are compared. O(n log n) for n drafts, exact.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

import numpy as np

from k3mem.spec.calibrate import Calibration
from k3mem.spec.surface import Corrected, Surface
from k3mem.types import Float64, Int32, Int64


class Planner(Protocol):
    """Chooses windows when a step is planned, and is told what came of them when it commits.

    Rows are all decode and verify rows of the step. confidence: [rows, most] of their drafts in order, whatever stands
    beyond a row's `offered` drafts. `choose` may be asked again where a plan was cancelled; what it raises comes out of
    `plan()`. What the others raise is an event, and that lesson is lost.
    """

    def choose(self, confidence: Float64, offered: Int32, context: int) -> Int32:
        """[rows] how many of its offered[i] drafts each row verifies: the first ones. `context`: sum of depths."""
        ...

    def accepted(self, confidence: Float64, kept: Int32, right: Int32) -> None:
        """Rows that verified their first kept[i] drafts had right[i] of them accepted, and nothing but a wrong draft
        or the window's end stopped them."""
        ...

    def took(self, rows: int, tokens: int, context: int, us: float) -> None:
        """A step of these rows alone, `tokens` in all their windows, took `us` microseconds."""
        ...


class Best(NamedTuple):
    """The best budget."""

    budget: int
    """Drafts to verify, over all rows."""
    worth: float
    """Expected tokens per microsecond."""


def survivals(confidence: Float64, offered: Int32) -> Float64:
    """[rows, most] survival of each draft; -1 beyond those offered."""
    s = np.cumprod(np.clip(confidence, 0.0, 1.0), axis=1, dtype=np.float64)
    s[np.arange(s.shape[1]) >= offered[:, None]] = -1.0
    return s


def best_budget(surface: Surface, survival: Float64, context: int = 0) -> Best:
    """How many drafts are worth verifying, exactly: the fewest of all budgets of greatest worth. `survival`: [rows,
    most], -1 where there is no draft. O(n log n)."""
    flat = np.sort(survival[survival >= 0])[::-1]
    return _best(surface, np.append(0.0, np.cumsum(flat)), len(survival), context)


def _best(surface: Surface, gain: Float64, rows: int, context: int) -> Best:
    """`gain`: [budgets] expected accepted drafts of each budget from 0 on; never falls."""
    edges = surface.edges(rows, rows + len(gain) - 1)
    worth = (rows + gain[edges - rows]) / surface.step_us(rows, edges, context)
    at = int(np.argmax(worth))
    # the last drafts of a tread may be worth nothing, to the last bit: leave them out
    first, last = int(edges[at - 1]) + 1 - rows if at else 0, int(edges[at]) - rows
    tread = (rows + gain[first : last + 1]) / surface.step_us(rows, edges[at : at + 1], context)
    return Best(first + int(np.argmax(tread)), float(worth[at]))


def assign(survival: Float64, budget: int) -> Int32:
    """[rows] drafts of each row when `budget` of all are verified: those that survive likeliest, prefix-closed.
    O(n log n). What a device does with current confidences, within the host's budget."""
    rows, most = survival.shape
    order = _ranked(survival, min(budget, int((survival >= 0).sum())))
    return np.bincount(order % rows, minlength=rows).astype(np.int32) if most else np.zeros(rows, np.int32)


def _ranked(survival: Float64, count: int) -> Int64:
    """[count] the drafts that survive likeliest, each as position x rows + row: of equal survivals the earlier position
    comes first, so that any number of them is prefix-closed."""
    out: Int64 = np.argsort(-survival.T.ravel(), kind="stable")[:count]
    return out


def is_flat(surface: Surface, rows: int, drafts: int, context: int) -> bool:
    """Whether verifying all drafts costs no more than none: nothing to plan."""
    ends = np.array([rows, rows + drafts], np.int64)
    if len(surface.edges(rows, rows + drafts)) > 1:
        return False
    none, everything = surface.step_us(rows, ends, context).tolist()
    return bool(everything <= none)


class VerifyPlanner:
    """A planner over a surface, which it corrects by measured steps, with confidences that it calibrates.

    surface: None verifies everything. window: the largest one, 1 + drafts. late: by how many steps the host knows
    confidences later than whoever assigns windows (0: host drafters). Then the budget is that of steps of the past:
    the newest reports at least `late` steps old, cut into groups of as many rows as this step has, whose average worth
    is maximised; a single group is a small sample, and a budget that fits it does not fit the next. Before there is
    any report everything is verified. `learn`: False trusts surface and confidences for ever.

    Small batches exit early: where all drafts fit the tread of none, nothing is computed. Raises ValueError.
    """

    POOL = 256
    """Rows of reports to average over, at least, where there are so many ..."""
    KEEP = 64
    """... among the newest so many steps."""
    MARGIN = 0.01
    """A late budget must promise so much more than verifying everything, from a whole pool; from less of one, more."""

    def __init__(self, surface: Surface | None, window: int, *, late: int = 0, learn: bool = True) -> None:
        if window < 1 or late < 0:
            raise ValueError(f"a planner needs window >= 1 and late >= 0, got {window} and {late}")
        self.surface: Surface | None = Corrected(surface) if surface is not None and learn else surface
        self.calibration = Calibration(window - 1) if learn and window > 1 else None
        self.window, self.late = window, late
        self._reports: deque[Float64] = deque(maxlen=self.KEEP + late)
        """Survivals of each step, oldest first."""

    def choose(self, confidence: Float64, offered: Int32, context: int) -> Int32:
        """As `Planner.choose`. O(n log n). Raises ValueError for more drafts a row than the window has."""
        if confidence.shape[1] >= self.window:
            raise ValueError(f"rows of {confidence.shape[1]} drafts, but this planner's window is {self.window} (1 + "
                             "drafts): make it for the engine's window")
        rows, drafts = len(offered), int(offered.sum())
        if self.surface is None or not drafts:
            return offered
        flat = is_flat(self.surface, rows, drafts, context)
        if flat and not self.late:
            return offered
        survival = survivals(self._calibrated(confidence), offered)
        if self.late:
            self._reports.append(survival)
        if flat:
            return offered
        order = _ranked(survival, drafts)
        if not self.late:
            gain = np.append(0.0, np.cumsum(survival.T.ravel()[order]))
            budget = _best(self.surface, gain, rows, context).budget
        else:
            budget = self._late_budget(self.surface, rows, drafts, context)
        return np.bincount(order[:budget] % rows, minlength=rows).astype(np.int32)

    def accepted(self, confidence: Float64, kept: Int32, right: Int32) -> None:
        """As `Planner.accepted`. O(rows x window)."""
        if self.calibration is not None:
            self.calibration.observe(confidence, kept, right)

    def took(self, rows: int, tokens: int, context: int, us: float) -> None:
        """As `Planner.took`. O(1)."""
        if isinstance(self.surface, Corrected):
            self.surface.took(rows, tokens, context, us)

    def _calibrated(self, confidence: Float64) -> Float64:
        return confidence if self.calibration is None else self.calibration.apply(confidence)

    def _late_budget(self, surface: Surface, rows: int, drafts: int, context: int) -> int:
        gain, count = self._past(rows, drafts)
        if not count:
            return drafts
        best = _best(surface, gain, rows, context)
        ends = np.array([rows + drafts], np.int64)
        everything = float((rows + gain[-1]) / surface.step_us(rows, ends, context)[0])
        margin = self.MARGIN * max(1.0, self.POOL / count) ** 0.5
        return best.budget if best.worth >= everything * (1 + margin) else drafts

    def _past(self, rows: int, drafts: int) -> tuple[Float64, int]:
        """([drafts + 1] gain of each budget, averaged over groups of `rows` rows of the past; how many rows)."""
        reports = list(self._reports)[: len(self._reports) - self.late]
        picked: list[Float64] = []
        count = 0
        for report in reversed(reports):
            if count >= max(rows, self.POOL):
                break
            picked.append(report)
            count += len(report)
        if not count:
            return np.zeros(drafts + 1), 0
        most = max(report.shape[1] for report in picked)
        whole = np.concatenate([np.pad(np.maximum(r, 0.0), ((0, 0), (0, most - r.shape[1]))) for r in picked])
        if count < rows:
            whole = np.resize(whole, (rows, most))
        groups = len(whole) // rows
        each = np.sort(whole[: groups * rows].reshape(groups, rows * most), axis=1)[:, ::-1]
        gain = np.zeros(drafts + 1)
        upto = min(drafts, rows * most)
        gain[1 : upto + 1] = np.cumsum(each[:, :upto].mean(axis=0))
        gain[upto + 1 :] = gain[upto]
        return gain, count

