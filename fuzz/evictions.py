"""Which eviction policy a world has, and what its clients say of their sessions' next uses."""

from __future__ import annotations

import random
from typing import Literal

from k3mem.radix import Auto, Cost, Custom, EvictionPolicy, Learned, Lru, Note, due

Name = Literal["lru", "custom", "cost", "learned", "auto"]
BY_USE = frozenset({"lru", "custom"})
"""Those that evict the least recently used."""
STOPS: dict[str, tuple[str | None, Note]] = {
    "": (None, Note.UNKNOWN), "tool": ("tool", Note.TOOL), "end": ("end", Note.END)}
"""What is said of an answer's end: the word, and the note that it becomes."""


def policy(name: Name) -> EvictionPolicy:
    """The policy of that name, which looks and chooses often enough for a short world."""
    known: dict[Name, EvictionPolicy] = {
        "lru": Lru(), "custom": Custom(lambda info, use, prices: use), "cost": Cost(), "learned": Learned(period=2),
        "auto": Auto(period=2, margin=0.0, decay=0.9)}
    return known[name]


def draw(rng: random.Random) -> tuple[Name, bool]:
    """A world's policy, mostly plain recency, and whether its clients say anything."""
    name: Name = rng.choice(("custom", "cost", "learned", "auto")) if rng.random() < 0.25 else "lru"
    return name, rng.random() < (0.15 if name == "lru" else 0.6)


def note(stop: str, returns_in: float, over: bool) -> int:
    """What a hint becomes in the tree."""
    return Note.OVER if over else due(returns_in) if returns_in >= 0 else STOPS[stop][1]
