"""Values of checkpoints by class and age: recency alone, or learned from when checkpoints of a class are used again.

A class is (structure, what was said of the next use, turns above). For each class and bucket of age the tree counts
returns and the seconds spent waiting, in evicted checkpoints that were asked for again too; their quotient is a hazard
rate. The value at an age is the Gittins index: the most returns a second that keeping the checkpoint for some time from
now on promises,

    max over s of  P(returns within s) / E[time until it returns, or s].

Times the recompute that a return saves, by the bytes held meanwhile (the tree's part), this is tokens saved for each
byte and second.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from k3mem.radix.kinds import DUE_MOST, PASSED, Kind, Note
from k3mem.radix.policy import Keeper, Passive, Prices, ranks
from k3mem.radix.tree import AGES, Tree
from k3mem.types import Float64, Int32, ScopeId, UInt8

Float32 = npt.NDArray[np.float32]
UInt16 = npt.NDArray[np.uint16]

EDGES = np.concatenate(([0.0], 0.25 * 2.0 ** np.arange(AGES - 1)))
"""Seconds at which buckets of age begin: octaves from a quarter of a second on."""
WIDTHS = np.append(np.diff(EDGES), EDGES[-1])
MIDDLES = np.sqrt(np.maximum(EDGES, 0.125) * (EDGES + WIDTHS))

STRUCTURES = 3
LEAF, LINE, FORK = range(STRUCTURES)
NOTES = (Note.RUNNING, Note.TOOL, Note.END, Note.UNKNOWN)
"""Notes that are told apart turn by turn; OVER counts as UNKNOWN. Expected returns have a class for each time."""
TURNS = 7
"""Turns above: 0, 1, 2, 3, 4 - 7, 8 - 15, more."""
CLASSES = STRUCTURES * (len(NOTES) * TURNS + DUE_MOST + 1)
PRIOR = 0.3
"""Before anything is known, returns a second are this by the age: recency decides, as in LRU."""


def class_table() -> UInt16:
    """[structure, note, turns]: the class. Classes of a structure are [notes x turns], then the expected returns."""
    turn = np.searchsorted([1, 2, 3, 4, 8, 16], np.arange(256), side="right")
    table = np.empty((STRUCTURES, 32, 256), np.uint16)
    each = CLASSES // STRUCTURES
    for structure in range(STRUCTURES):
        table[structure] = each * structure + NOTES.index(Note.UNKNOWN) * TURNS + turn
        for place, note in enumerate(NOTES):
            table[structure, note] = each * structure + place * TURNS + turn
        for k in range(DUE_MOST + 1):
            table[structure, Note.DUE + k] = each * structure + len(NOTES) * TURNS + k
    return table


def hazards(returns: Float64, exposure: Float64, strength: float) -> Float64:
    """[CLASSES, AGES] returns a second, each shrunk to what its like have by `strength` returns: a class to its note
    over all turns, a note to all notes, those to PRIOR by age. RUNNING has not been waited for yet: it stands for what
    the notes have together."""
    k = strength
    shape = (STRUCTURES, -1, AGES)
    split = len(NOTES) * TURNS
    by_note = [x.reshape(shape)[:, :split].reshape(STRUCTURES, len(NOTES), TURNS, AGES) for x in (returns, exposure)]
    r, t = by_note
    others = [0, 2]  # a line is superseded: it says nothing of the others
    base = (r[others, 1:].sum((0, 1, 2)) + k) / (t[others, 1:].sum((0, 1, 2)) + k * MIDDLES / PRIOR)
    note = (r.sum(2) + k) / (t.sum(2) + k / base)
    out = np.empty((STRUCTURES, CLASSES // STRUCTURES, AGES))
    fine = (r + k) / (t + k / note[:, :, None])
    fine[:, 0] = (r[:, 1:].sum(1) + k) / (t[:, 1:].sum(1) + k / base)
    out[:, :split] = fine.reshape(STRUCTURES, split, AGES)
    due_r, due_t = (x.reshape(shape)[:, split:] for x in (returns, exposure))
    out[:, split:] = (due_r + k) / (due_t + k / base)
    return out.reshape(CLASSES, AGES)


def gittins(hazard: Float64) -> Float64:
    """[..., AGES] index at the start of each bucket, for hazards that are constant within one. O(AGES^2) a row."""
    survival = np.exp(-np.cumsum(hazard * WIDTHS, -1))
    survival = np.concatenate((np.ones((*hazard.shape[:-1], 1)), survival), -1)
    hits = survival[..., :-1] - survival[..., 1:]
    time = hits / np.maximum(hazard, 1e-30)
    zero = np.zeros((*hazard.shape[:-1], 1))
    hits, time = (np.concatenate((zero, np.cumsum(x, -1)), -1) for x in (hits, time))
    out = np.empty_like(hazard)
    for age in range(hazard.shape[-1]):
        gain, cost = (x[..., age + 1 :] - x[..., age : age + 1] for x in (hits, time))
        out[..., age] = np.max(gain / np.maximum(cost, 1e-30), -1)
    return out


class Learning:
    """The keeper of `Learned`: every `period` requests, later more seldom, it looks at what the tree has counted, and
    sets its values unless somebody else has them `held` back."""

    heeds = True

    def __init__(self, tree: Tree, prices: Prices, policy: Learned, held: bool = False) -> None:
        self.tree, self.policy, self.held = tree, policy, held
        tree.learn(class_table(), CLASSES, EDGES.tolist(), prices.state_tokens)
        self.returns, self.exposure = tree.learned()
        self.requests = self._looked = 0
        self._look()

    def _look(self) -> None:
        gap, self._looked = self.requests - self._looked, self.requests
        if not self.held:
            exposure = self.exposure + self.tree.waiting()
            self.tree.values(gittins(hazards(self.returns, exposure, self.policy.strength)).astype(np.float32))
        self.returns *= self.policy.decay**gap
        self.exposure *= self.policy.decay**gap

    def hold(self, held: bool) -> None:
        """Keep the values from the tree, which then goes by last use, or give them to it."""
        self.held = held
        if held:
            self.tree.values(None)
        else:
            self._look()

    def requested(self, scope: ScopeId, prompt: Int32, now: float) -> int:
        self.tree.time(now)
        self.requests += 1
        least = self.policy.period
        if self.requests - self._looked >= min(max(least, self.requests // 32), 8 * least):
            self._look()
        return self.requests

    def finished(self, request: int, note: int) -> None:
        """The tree itself was told."""

    def resized(self, capacity_bytes: int) -> None:
        """Values do not depend on it."""

    def stats(self) -> dict[str, object]:
        return {"returns": float(self.returns.sum())}


@dataclass(frozen=True, slots=True)
class Learned:
    """Tokens saved for each byte and second, from learned times of return (see the module). Superseded checkpoints of
    the kinds in `superseded_first` go before all others."""

    superseded_first: tuple[Kind, ...] = PASSED
    period: int = 64
    """Requests between two looks at what was counted, at first; later 3 % of all so far, at most 8 periods."""
    decay: float = 0.99995
    """What a count is worth one request later: half of it is forgotten in 14,000."""
    strength: float = 1.0
    """How many returns a class must have seen to weigh as much as what is known of its like."""

    def classes(self) -> UInt8:
        return ranks(self.superseded_first)

    def keeper(self, tree: Tree, prices: Prices) -> Keeper:
        return Learning(tree, prices, self)


class Pricing(Passive):
    """The keeper of `Cost`: only age and price count."""

    def __init__(self, tree: Tree, prices: Prices) -> None:
        self.tree = tree
        tree.learn(np.zeros((STRUCTURES, 32, 256), np.uint16), 1, EDGES.tolist(), prices.state_tokens)
        tree.values((1 / MIDDLES).astype(np.float32)[None])

    def requested(self, scope: ScopeId, prompt: Int32, now: float) -> int:
        self.tree.time(now)
        return 0


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of recompute saved for each byte held, by the time since last use: recency with a price."""

    superseded_first: tuple[Kind, ...] = PASSED

    def classes(self) -> UInt8:
        return ranks(self.superseded_first)

    def keeper(self, tree: Tree, prices: Prices) -> Keeper:
        return Pricing(tree, prices)
