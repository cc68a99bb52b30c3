"""What the pool holds over a timed run: a bounded number of samples, however long the run."""

from __future__ import annotations

from typing import Any

from k3mem.radix import Kind
from k3mem.sched.core import Core

FIRST_INTERVAL = 1.0 / 64
"""Seconds between samples, to begin with."""

Sample = dict[str, int]
"""Bytes by what they are; they add up to the pool. `state: KIND` are checkpoints."""


class Series:
    """At most `most` samples, one an interval. When there are so many, the interval doubles until half of them go: a
    run of T seconds takes O(most x log T) samples, and asking whether one is `due` is one comparison a plan."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.interval = FIRST_INTERVAL
        self.due = 0.0
        """Seconds: a sample is wanted at this moment or the first one after it."""
        self._times: list[float] = []
        self._samples: list[Sample] = []

    def add(self, now: float, sample: Sample) -> None:
        """What the pool holds from `now` on. O(1) amortised."""
        if len(self._times) >= self.most:
            self._thin()
        self._times.append(now)
        self._samples.append(sample)
        self.due = (now // self.interval + 1) * self.interval

    def _thin(self) -> None:
        """Keep the first sample of each interval, of intervals so long that at most half of all stay."""
        while len(self._times) > self.most // 2:
            self.interval *= 2
            slots = [t // self.interval for t in self._times]
            first = [i for i, slot in enumerate(slots) if i == 0 or slot != slots[i - 1]]
            self._times = [self._times[i] for i in first]
            self._samples = [self._samples[i] for i in first]

    def stats(self) -> dict[str, Any]:
        """Under `t` the seconds, under `bytes` by name as many bytes each; names that are 0 throughout are left out."""
        names = dict.fromkeys(name for sample in self._samples for name, size in sample.items() if size)
        return {"interval": self.interval, "t": list(self._times),
                "bytes": {name: [sample.get(name, 0) for sample in self._samples] for name in names}}


def composition(core: Core) -> Sample:
    """What the arena's bytes are right now. Sinks, scratch and padding count as `fixed`; `targets` are states taken
    for snapshots that are not in the tree yet. O(nodes), in C."""
    arena, tree = core.cache.arena, core.cache.tree
    usage, kinds = arena.usage(), tree.kinds()
    working = min(core.lanes.running, usage.live_states - sum(kinds))
    states = {f"state: {Kind(kind).name.lower()}": count * arena.state_bytes for kind, count in enumerate(kinds)}
    targets = usage.live_states - sum(kinds) - working
    return {"kv pages": usage.live_pages * arena.page_bytes, **states, "working states": working * arena.state_bytes,
            "targets": targets * arena.state_bytes, "holes": usage.holes + usage.pending, "free": usage.gap,
            "fixed": usage.fixed + usage.pad}
