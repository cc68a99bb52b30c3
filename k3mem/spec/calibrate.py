"""What confidences turn out to be worth: learned from what was accepted, by confidence and position."""

from __future__ import annotations

import numpy as np

from k3mem.types import Float64, Int32, Int64


class Calibration:
    """Shifts confidences by how much acceptance differed from them, per bucket of confidence and position in the
    window. A cell with few trials follows its bucket over all positions, and that one trusts the drafter.

    `positions`: drafts of the largest window. O(confidences) a call.
    """

    BUCKETS = 10
    TRUST = 32.0
    """Trials that a cell's own experience must outweigh."""
    MEMORY = 4096.0
    """Trials after which a cell's past counts half."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._trials = np.zeros((positions, self.BUCKETS))
        self._surplus = np.zeros((positions, self.BUCKETS))
        """Accepted less expected."""
        self._shift = np.zeros((positions, self.BUCKETS))

    def apply(self, confidence: Float64) -> Float64:
        """[rows, <= positions] confidences, corrected, within 0.001 .. 0.999."""
        columns = confidence.shape[1]
        if not self._shift.any():
            return np.clip(confidence, 0.001, 0.999)
        low, share = self._between(confidence)
        position = np.arange(columns)
        shift = (1 - share) * self._shift[position, low] + share * self._shift[position, low + 1]
        return np.clip(confidence + shift, 0.001, 0.999)

    def observe(self, confidence: Float64, kept: Int32, right: Int32) -> None:
        """Rows verified their first kept[i] drafts, of raw confidences confidence[i], and the first right[i] of them
        were right. Rows that a stop or a limit cut short are not to be told."""
        position = np.arange(confidence.shape[1])
        tried = (position < kept[:, None]) & (position <= right[:, None])
        row, column = np.nonzero(tried)
        if not len(row):
            return
        said = confidence[row, column]
        low, share = self._between(said)
        surplus = (column < right[row]) - said
        for bucket, part in ((low, 1 - share), (low + 1, share)):
            np.add.at(self._trials, (column, bucket), part)
            np.add.at(self._surplus, (column, bucket), part * surplus)
        old = self._trials > self.MEMORY
        self._trials[old] /= 2
        self._surplus[old] /= 2
        whole = self._surplus.sum(0) / (self._trials.sum(0) + self.TRUST)
        self._shift = (self._surplus + self.TRUST * whole) / (self._trials + self.TRUST)

    def _between(self, confidence: Float64) -> tuple[Int64, Float64]:
        """(lower of the two buckets between whose middles a confidence lies, the upper one's share of it): near
        confidences are shifted alike."""
        at = np.clip(confidence * self.BUCKETS - 0.5, 0, self.BUCKETS - 1)
        low: Int64 = np.minimum(at.astype(np.int64), self.BUCKETS - 2)
        return low, at - low
