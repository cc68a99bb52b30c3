"""What an operator may choose. Policy is an object passed in; the core compares no strings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from k3mem.radix.auto import Auto
from k3mem.radix.policy import EvictionPolicy

DEFAULT_INTERVAL = 8192
_OPTIONAL = dict.fromkeys(("interval", "fork_depths", "path_cap", "ghost_tokens"), " or None")


@dataclass(frozen=True, slots=True)
class SessionAdmission:
    """Hold back requests of new sessions while the working sets of the active ones fill the arena (see
    `k3mem.sched.sessions`). Times in seconds on the engine's clock; raises ValueError."""

    share: float = 0.9
    """Of the arena, for the working sets of active sessions."""
    bound: float = 1800.0
    """No request is held longer; it is let in at the first plan after so long."""
    idle_quantile: float = 0.9
    """A session counts as active for as long a pause as this share of the pauses seen so far did not exceed ..."""
    idle: float = 120.0
    """... and for this long while too few pauses were seen to tell."""
    auto: bool = False
    """Hold only after recomputation of what was evicted from active sessions has been found to keep the server busy,
    and until nobody is held any more."""

    def __post_init__(self) -> None:
        for name in ("share", "bound", "idle_quantile", "idle"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
                raise ValueError(f"session admission: {name} must be a number, got {value!r}")
        for name in ("share", "idle_quantile"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"session admission: {name} must lie above 0 and up to 1, got {getattr(self, name)}")
        for name in ("bound", "idle"):
            if getattr(self, name) < 0:
                raise ValueError(f"session admission: {name} must be >= 0 seconds, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices of the scheduler and the cache. Sizes in tokens unless said otherwise; raises ValueError."""

    token_budget: int = 8192
    """Tokens a step computes over all rows, decode and verify rows first."""
    max_running: int = 256
    steps_in_flight: int = 1
    """D: steps launched and not yet committed when the next one is planned."""
    caching: bool = True
    """False: no match, no checkpoint, nothing is published."""
    eviction: EvictionPolicy = field(default_factory=Auto)
    """Whom the cache lets go: `k3mem.radix.Auto` (the default), `Lru`, `Learned`, `Cost`, `Custom`, or one of yours."""
    split: float | None = None
    """None: one arena. Else two fixed pools, this share of the bytes for states."""
    eager: bool = False
    """Close holes as soon as they appear, not when the other kind needs the bytes."""
    move_budget: int = 4 << 30
    """Bytes that one step may move."""
    chunk_ends: bool = True
    """Checkpoint where a prefill chunk ends (superseded by the next one: first to be evicted)."""
    prompt_ends: bool = True
    branches: bool = True
    answer_ends: bool = True
    interval: int | None = None
    """Also checkpoint every so many tokens, rounded up to the grid, in prefill and in decode. Off by default;
    `DEFAULT_INTERVAL` is a good value where prompts fork at unknown places."""
    fork_depths: int | None = None
    """Also checkpoint, in prefill, where earlier prompts left the path that this one follows, at so many depths at
    most: those that would leave least to compute if they came again (`k3mem.radix.depths`). Along a known path they
    stand in place of `interval`. Off by default; for long documents that many prompts share to different depths."""
    path_cap: int | None = None
    """At most so many checkpoints on one path beside forks, tails and locked ones."""
    ghost_tokens: int | None = 1 << 28
    """Tokens of evicted paths to remember; None for no limit."""
    deterministic: bool = False
    """Grid depths only: at a request's end the last snapshot on the grid is donated, not the working state; and none
    at all that decode made, where the executor's prefill and decode differ in bits (`Capabilities.same_bits`)."""
    event_log: int = 1024
    """Events that `engine.events` keeps."""
    follow: bool = True
    """One prefill for many: a request waits for a running one that computes its prefix anyway."""
    admission: SessionAdmission | None = None
    """Holds back requests of new sessions while active ones fill the arena; None: nobody is held."""
    pin_share: float = 0.5
    """Of the arena: pins that together keep more give way to requests that need the room, the oldest first."""

    def __post_init__(self) -> None:
        if not isinstance(self.eviction, EvictionPolicy) or isinstance(self.eviction, type):
            raise ValueError(f"policy: eviction must be an object such as k3mem.radix.Lru(), got {self.eviction!r}")
        if self.admission is not None and not isinstance(self.admission, SessionAdmission):
            raise ValueError(f"policy: admission must be a k3mem.SessionAdmission or None, got {self.admission!r}")
        if not isinstance(self.pin_share, (int, float)) or not 0.0 <= self.pin_share <= 1.0:
            raise ValueError(f"policy: pin_share must be a number from 0 to 1, got {self.pin_share!r}")
        for name in ("token_budget", "max_running", "steps_in_flight", "move_budget", "interval", "fork_depths",
                     "path_cap", "ghost_tokens", "event_log"):
            value = getattr(self, name)
            if not hasattr(value, "__index__") and (value is not None or name not in _OPTIONAL):
                raise ValueError(f"policy: {name} must be an integer{_OPTIONAL.get(name, '')}, got {value!r}")
        if self.split is not None and not isinstance(self.split, (int, float)):
            raise ValueError(f"policy: split must be a number between 0 and 1 or None, got {self.split!r}")
        for name in ("token_budget", "max_running", "move_budget"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy: {name} must be >= 1, got {getattr(self, name)}")
        if self.steps_in_flight < 0:
            raise ValueError(f"policy: steps_in_flight must be >= 0, got {self.steps_in_flight}")
        if self.split is not None and not 0.0 < self.split < 1.0:
            raise ValueError(f"policy: split must lie between 0 and 1, got {self.split}")
        for name in ("interval", "fork_depths", "path_cap", "ghost_tokens"):
            value = getattr(self, name)
            if value is not None and value < (1 if name == "interval" else 0):
                raise ValueError(f"policy: {name} is too small: {value}")
