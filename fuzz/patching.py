"""How a root cause is put back: by replacing one of our own functions for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from k3mem.plan import Plan
from k3mem.radix import Match
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.types import Int32, ScopeId

Plant = AbstractContextManager[None]


@contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` becomes make(owner.name)."""
    old = getattr(owner, name)
    setattr(owner, name, make(old))
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextmanager
def all_of(*plants: Plant) -> Iterator[None]:
    """Several at once."""
    if not plants:
        yield
        return
    with plants[0], all_of(*plants[1:]):
        yield


def plans(change: Callable[[Plan], Plan]) -> Plant:
    """Every plan is changed as it is built."""
    return patched(Builder, "finish", lambda old: lambda self, *a: change(old(self, *a)))


def matching(change: Callable[[Cache, ScopeId, Int32, int, Match], Match]) -> Plant:
    """What a match finds is changed: change(cache, scope, tokens, limit, found)."""

    def make(old: Any) -> Any:
        def match(self: Cache, scope: ScopeId, tokens: Int32, limit: int, before_step: int) -> Match:
            return change(self, scope, tokens, limit, old(self, scope, tokens, limit, before_step))
        return match

    return patched(Cache, "match", make)
