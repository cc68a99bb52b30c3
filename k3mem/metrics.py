"""Counters of an engine. Plain numbers; nothing here decides anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CAUSES = ("never_seen", "no_state", "kv_evicted", "off_grid", "other_scope", "last_token")
"""Why an input token was not a hit (see `k3mem.sched.cache.explain`)."""


@dataclass(slots=True)
class Metrics:
    """Counts since the engine was made."""

    requests: int = 0
    input_tokens: int = 0
    hit_tokens: int = 0
    hits: int = 0
    """Requests that resumed from a checkpoint ..."""
    hits_by_kind: Counter[int] = field(default_factory=Counter)
    """... by its `Kind`."""
    causes: Counter[str] = field(default_factory=Counter)
    created: Counter[str] = field(default_factory=Counter)
    """Checkpoints made, by kind."""
    consumed: int = 0
    evicted: int = 0
    evicted_unused: int = 0
    skipped_snapshots: int = 0
    duplicates: int = 0
    """Targets given back because the tree had that checkpoint already."""
    takeovers: int = 0
    move_count: int = 0
    move_bytes: int = 0
    retractions: int = 0
    resumed_tokens: int = 0
    """Tokens recomputed after retractions and failures (not in `causes`)."""
    aborts: int = 0
    rejected: int = 0
    failures: int = 0
    overruns: int = 0
    """Rows launched for a lane that turned out to have ended."""
    steps: int = 0
    overlapped: int = 0
    """Steps launched while an earlier one was uncommitted."""
    followers: int = 0
    """Requests that waited for another one's prefill."""
    peak_running: int = 0
    rows: int = 0
    prefill_tokens: int = 0
    output_tokens: int = 0
    drafts_offered: int = 0
    """Tokens that drafters proposed, within window, limit and budget ..."""
    drafts_verified: int = 0
    """... of those, what VERIFY rows computed ..."""
    drafts_accepted: int = 0
    """... and what turned out right."""
    events: Counter[str] = field(default_factory=Counter)
    """Scheduler events by kind: submit, admit, row, snapshot, restore, donate, victim, move, abort."""

    def mark(self) -> Callable[[], None]:
        """What takes back the counts of a plan that is cancelled; evictions and retractions stay. O(1)."""
        before = self.skipped_snapshots, self.takeovers, self.followers, self.peak_running

        def back() -> None:
            self.skipped_snapshots, self.takeovers, self.followers, self.peak_running = before

        return back

    def as_dict(self) -> dict[str, Any]:
        """All counters, counters by kind as plain dicts."""
        out: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            out[name] = dict(value) if isinstance(value, Counter) else value
        return out
