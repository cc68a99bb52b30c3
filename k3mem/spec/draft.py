"""Drafters: who proposes the tokens that VERIFY rows check.

A *host* drafter is asked while a step is planned and sees committed tokens only, so its lanes join a plan when their
last step has committed. A *device* drafter is the executor's: it runs in a plan's draft phase, the host sees what it
proposed with the step's result at the earliest, and so chooses by confidences that are some steps old.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from k3mem.types import Float64, Int32

UNSURE = 0.5
"""Confidence of a draft token whose drafter gives none: calibration learns what it is worth, by its position."""
EMPTY = np.zeros(0, np.int32)


class Draft(NamedTuple):
    """Guesses with how sure the drafter is of each."""

    tokens: Int32
    """[n] what follows."""
    confidence: Float64 | None = None
    """[n] chance, 0 to 1, that tokens[i] is right if all before it were; None: the drafter cannot tell."""


class Drafter(Protocol):
    """Proposes tokens for a request from its committed tokens (a host drafter).

    A drafter that keeps something of a request has a method `ended(request_id)` too: the request has ended, and its id
    may come again for another one. It must not call the engine; what it raises is an event. One whose drafts leave KV
    of their own has a `version`, a string: requests drafted by different versions share nothing.
    """

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32 | Draft:
        """Up to `limit` guesses, ids of the vocabulary, for what follows `tokens` (a read-only view; ids from the
        vocabulary's size on stand for media). An empty array is fine. Asked again with the same tokens where a plan
        was cancelled. What this raises comes out of `plan()`."""
        ...


class LaneDrafter(Drafter, Protocol):
    """A drafter that knows requests by the lanes of an executor: it is asked by `draft_lane` alone."""

    def draft_lane(self, lane: int, generation: int, tokens: Int32, limit: int) -> Int32 | Draft:
        """As `draft`, for the tenant of a lane."""
        ...


class Scripted:
    """A drafter for tests: it is told what each request will say, and goes wrong where it is told to.

    lines: request id -> the whole line, prompt and answer. wrong: depths at which it guesses another token, of
    `vocab`. confidence: of the draft token at (request id, depth); None gives no confidences.
    """

    def __init__(self, lines: Mapping[Hashable, Sequence[int]], vocab: int, wrong: frozenset[int] = frozenset(),
                 confidence: Callable[[Hashable, int], float] | None = None) -> None:
        self.lines, self.vocab, self.wrong, self.confidence = lines, vocab, wrong, confidence
        self.asked: list[tuple[Hashable, int, int]] = []
        """(request id, committed tokens, limit) of each call."""
        self.gone: list[Hashable] = []
        """Requests that ended."""

    def draft(self, request_id: Hashable, tokens: Int32, limit: int) -> Int32 | Draft:
        """As `Drafter.draft`. O(limit)."""
        at = len(tokens)
        self.asked.append((request_id, at, limit))
        true = self.lines.get(request_id, ())[at : at + limit]
        guess = np.array([(t + 1) % self.vocab if at + i in self.wrong else t for i, t in enumerate(true)], np.int32)
        if self.confidence is None:
            return guess
        return Draft(guess, np.array([self.confidence(request_id, at + i) for i in range(len(guess))]))

    def ended(self, request_id: Hashable) -> None:
        """As the protocol says."""
        self.gone.append(request_id)
