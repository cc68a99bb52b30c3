"""What session admission learns from traffic: how long pauses last, and whether evictions keep the server busy."""

from __future__ import annotations

import math

import numpy as np

BINS_AN_OCTAVE = 4
SHORTEST = 2.0**-6
"""Seconds; shorter pauses count as this long."""
OCTAVES = 30
"""Up to 194 days."""
FEW = 32
"""Pauses below which nothing is said of them."""
MEMORY = 4096
"""Pauses after which all counts are halved: old ones fade."""
FADE = 1 - 1 / 64
"""What is left of a sum with each new sample."""
SAMPLES = 16


class Pauses:
    """How long pauses between requests of a session last, in bins a quarter of an octave wide."""

    def __init__(self) -> None:
        self._counts = np.zeros(OCTAVES * BINS_AN_OCTAVE, np.float64)
        self._total = 0.0
        self._known: dict[float, float] = {}

    def add(self, seconds: float) -> None:
        """One pause. O(1)."""
        at = math.log2(max(seconds, SHORTEST) / SHORTEST) * BINS_AN_OCTAVE
        self._counts[min(int(at), len(self._counts) - 1)] += 1
        self._total += 1
        if self._total >= MEMORY:
            self._counts /= 2
            self._total /= 2
        self._known.clear()

    def quantile(self, q: float, otherwise: float) -> float:
        """Seconds that a share `q` of the pauses did not exceed, rounded up to a bin; `otherwise` of too few. O(bins)
        after each new pause."""
        if self._total < FEW:
            return otherwise
        if q not in self._known:
            at = int(np.searchsorted(np.cumsum(self._counts), q * self._total * (1 - 1e-12)))
            self._known[q] = SHORTEST * 2.0 ** ((at + 1) / BINS_AN_OCTAVE)
        return self._known[q]


class Pressure:
    """Whether recomputing what was evicted from active sessions keeps the server busy. Recent samples count more."""

    LOST = 0.2
    """Share of the computed prompt tokens that had been cached."""
    BUSY = 0.8
    """Share of the arrivals that find others waiting or in their prompts."""

    def __init__(self) -> None:
        self._samples = 0
        self._computed = self._lost = 0.0
        self._arrivals = self._busy = 0.0

    def computed(self, tokens: int, lost: int) -> None:
        """A request of an active session computes so many prompt tokens, of which `lost` were evicted ones. O(1)."""
        self._samples += 1
        self._computed = FADE * self._computed + tokens
        self._lost = FADE * self._lost + lost

    def arrived(self, busy: bool) -> None:
        """A request came, and the server was busy or not. O(1)."""
        self._arrivals = FADE * self._arrivals + 1
        self._busy = FADE * self._busy + busy

    @property
    def high(self) -> bool:
        """Whether holding sessions back would help."""
        return (self._samples >= SAMPLES and self._lost >= self.LOST * max(1.0, self._computed)
                and self._busy >= self.BUSY * self._arrivals)
