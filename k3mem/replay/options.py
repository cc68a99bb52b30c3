"""What a replay is asked to do, checked once and passed to the drivers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from k3mem.errors import K3MemError
from k3mem.units import format_size

if TYPE_CHECKING:
    from k3mem.executors.cost import CostModel
    from k3mem.shape import Shape

Progress = Callable[[int, int], None]
"""Called by a driver now and then with (requests done, requests in all)."""


class BadOption(K3MemError, ValueError):
    """An option that cannot be, alone or beside the others. Drivers raise it for what only they can judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of `run_arrival` and `run_timed`. Raises BadOption naming the option."""

    mode: Literal["arrival", "timed"] = "arrival"
    """arrival: requests one after another in file order, no clock. timed: the scheduler on a virtual clock."""
    loop: Literal["open", "closed"] = "closed"
    """timed: open sends at the trace's arrivals; closed keeps `concurrency` streams busy, each turn following the
    answer before it after its think time."""
    concurrency: int = 32
    """timed, closed loop: streams at a time."""
    gap_cap: float | None = None
    """timed: think times longer than this many seconds are cut to it."""
    pool_bytes: int = 80 * 10**9
    """Bytes for pages and states; 0 is unlimited."""
    split: float | None = None
    """Share of the pool kept for states, as two fixed pools; None: one arena for both."""
    page_tokens: int = 64
    policy: str = "auto"
    """Name of the eviction policy; known to the drivers."""
    hints: tuple[str, ...] = ()
    """arrival: what callers tell the cache: `end`, `tool`, `fork`."""
    cost: CostModel | None = None
    """timed: None is the nominal model."""
    limit: int | None = None
    """Replay this many requests at most."""
    seed: int = 0
    admission: Literal["off", "on", "auto"] = "off"
    """timed: hold back new sessions while the active ones fill the pool; auto: only while that helps."""
    admission_bound: float = 1800.0
    """timed: seconds that a request is held at most."""
    fast_forward: bool = True
    """timed: let one plan stand for identical decode steps. Reports do not depend on it, save `series`."""
    explain: int | str | None = None
    """Account for so many requests, those that lost most; or for the one of this key."""
    series: int = 0
    """timed: sample what the pool holds, so many times at most."""
    interval: int | None = None
    """timed: checkpoints every so many tokens (see `Policy.interval`)."""
    fork_depths: int | None = None
    """timed: so many checkpoints a prompt where earlier ones left its path (see `Policy.fork_depths`)."""

    def __post_init__(self) -> None:
        def need(ok: bool, what: str) -> None:
            if not ok:
                raise BadOption(what)

        need(self.mode in ("arrival", "timed"), f"mode must be arrival or timed, got {self.mode!r}")
        need(self.loop in ("open", "closed"), f"loop must be open or closed, got {self.loop!r}")
        need(self.concurrency >= 1, f"concurrency must be >= 1, got {self.concurrency}")
        need(self.gap_cap is None or self.gap_cap >= 0 and math.isfinite(self.gap_cap),
             f"gap cap must be >= 0 seconds, got {self.gap_cap}")
        need(self.pool_bytes >= 0, f"pool must be >= 0 bytes, got {self.pool_bytes}")
        need(self.split is None or 0 < self.split < 1, f"split must be between 0 and 1, got {self.split}")
        need(self.split is None or self.pool_bytes > 0, "split needs a pool of limited size")
        need(1 <= self.page_tokens <= 512, f"page must be 1..512 tokens, got {self.page_tokens}")
        need(self.admission in ("off", "on", "auto"), f"admission must be off, on or auto, got {self.admission!r}")
        need(self.admission_bound >= 0, f"admission bound must be >= 0 seconds, got {self.admission_bound}")
        known = ("end", "tool", "fork")
        wrong = [hint for hint in self.hints if hint not in known]
        need(not wrong, f"unknown hint {wrong[0] if wrong else ''!r}; known: {', '.join(known)}")
        need(not isinstance(self.explain, int) or self.explain >= 1, f"explain must be >= 1, got {self.explain}")
        need(self.series == 0 or self.series >= 2, f"series must be 0 or >= 2 samples, got {self.series}")
        need(self.interval is None or self.interval >= 1, f"interval must be >= 1 token, got {self.interval}")
        need(self.fork_depths is None or self.fork_depths >= 1, f"fork depths must be >= 1, got {self.fork_depths}")
        need(self.limit is None or self.limit >= 1, f"limit must be >= 1, got {self.limit}")

    def check_fit(self, shape: Shape) -> None:
        """Raises BadOption where the pool, or its part for either kind, does not hold one page and one state. The pool
        is net of the sinks."""
        from k3mem.pool.arena import least_capacity

        if not self.pool_bytes:
            return
        sinks = shape.page_bytes + shape.state_bytes
        least = least_capacity(shape.page_bytes, shape.state_bytes, 0, shape.align, None) - sinks
        if self.pool_bytes < least:
            raise BadOption(f"--pool {format_size(self.pool_bytes)} is too small for {shape.name}: give at least "
                            f"{least}B")
        if self.split is None:
            return
        least = least_capacity(shape.page_bytes, shape.state_bytes, 0, shape.align, self.split) - sinks
        if self.pool_bytes < least:
            top = (self.pool_bytes + sinks) // shape.align * shape.align
            states = int(Fraction(str(self.split)) * top)
            left = {"states": (states, shape.state_bytes), "pages": (top - states, shape.page_bytes)}
            # A kind's share holds its sink and one entry.
            what = min(left, key=lambda kind: left[kind][0] / left[kind][1])
            share, one = left[what]
            raise BadOption(f"--split {self.split} leaves {max(0, share - one)} bytes for {what}, one needs {one}: "
                            f"choose another split, or --pool {least}B")
