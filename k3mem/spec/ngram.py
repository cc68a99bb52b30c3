"""Prompt lookup: what followed the last time that these tokens stood here."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from k3mem.spec.draft import EMPTY, Draft
from k3mem.types import Int32

FACTOR, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
"""Odd, so that its powers are distinct modulo 2^64."""
FEW = 16
"""Below so many new runs plain integers are quicker than arrays."""


@dataclass(slots=True)
class _Index:
    """Of one request: for each n, the hash of n tokens -> the position after their newest occurrence."""

    after: list[dict[int, int]]
    count: int = 0
    """Tokens looked at. The run that ends at the newest one is left out: nothing has followed it yet."""
    last: list[int] = field(default_factory=list)
    """Hash of the newest n tokens, by n; -1 where there are fewer."""


class NGram:
    """A drafter that looks the last `most` tokens up in the request's own prompt and answer, then fewer, down to
    `least`, and proposes what followed their newest earlier occurrence. Confidence k / (k + 1) for a match of k tokens.

    Keeps, per request, one entry a token and n; dropped when the request ends. O(most - least + 1) amortised a token,
    O(limit) more a call. Raises ValueError unless 1 <= least <= most.
    """

    def __init__(self, most: int = 4, least: int = 2) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"an n-gram drafter needs 1 <= least <= most, got least {least} and most {most}")
        self.most, self.least = most, least
        self._of: dict[Hashable, _Index] = {}

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Draft:
        """As `Drafter.draft`."""
        index = self._of.get(request_id)
        if index is None or index.count > len(tokens):
            index = self._of[request_id] = _Index([{} for _ in range(self.most - self.least + 1)])
        self._learn(index, tokens)
        for n in range(self.most, self.least - 1, -1):
            key = index.last[n - self.least]
            at = index.after[n - self.least].get(key, -1) if key >= 0 else -1
            if at >= 0 and tokens[at - n : at].tolist() == tokens[len(tokens) - n :].tolist():
                guess = tokens[at : at + limit].copy()
                if len(guess) < limit:
                    guess = np.resize(guess, limit)  # what repeats goes on repeating
                return Draft(guess, np.full(len(guess), n / (n + 1)))
        return Draft(EMPTY, None)

    def ended(self, request_id: Hashable) -> None:
        """The request has ended: forget it."""
        self._of.pop(request_id, None)

    def __len__(self) -> int:
        """Requests that something is kept of."""
        return len(self._of)

    def _learn(self, index: _Index, tokens: Int32) -> None:
        """Enter all runs that something has followed by now. O(new tokens)."""
        count = len(tokens)
        if count == index.count and index.last:
            return
        before, index.count = index.count, count
        index.last = []
        for n in range(self.least, self.most + 1):
            first = max(0, before - n)  # runs that end at `before` or later: that one was left out then
            keys = _hashes(tokens[first:], n)
            index.last.append(keys[-1] if keys else -1)
            index.after[n - self.least].update(zip(keys[:-1], range(first + n, count), strict=True))


def _hashes(tokens: Int32, n: int) -> list[int]:
    """Hash of each run of n tokens, in order. O(tokens x n)."""
    runs = len(tokens) - n + 1
    if runs <= FEW:
        near, keys = [t + 1 for t in tokens.tolist()], []
        for first in range(runs):
            key = 0
            for t in near[first : first + n]:
                key = (key * FACTOR + t) & MASK
            keys.append(key)
        return keys
    out: npt.NDArray[np.uint64] = np.zeros(runs, np.uint64)
    wide = tokens.astype(np.uint64)
    for i in range(n):
        out = out * np.uint64(FACTOR) + wide[i : i + runs] + np.uint64(1)
    found: list[int] = out.tolist()
    return found


__all__ = ["NGram"]
