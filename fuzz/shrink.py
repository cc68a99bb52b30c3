"""Shrinking: a failing script becomes a short one that fails in the same way.

Passes are tiny classes that propose smaller scripts; whatever still fails is kept, until no pass makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from k3mem.fuzz import script as do
from k3mem.fuzz.script import Action, Config, Script

Fails = Callable[[Script], bool]


class Pass(Protocol):
    """Proposes smaller scripts. It is told which proposal was taken by seeing the result in its next call."""

    def propose(self, script: Script) -> Iterator[Script]:
        """Candidates, the boldest first."""
        ...


def with_actions(script: Script, actions: list[Action]) -> Script:
    return msgspec.structs.replace(script, actions=actions)


class CutEnd:
    """Everything after the failure."""

    def propose(self, script: Script) -> Iterator[Script]:
        n = len(script.actions)
        for keep in (n // 4, n // 2, 3 * n // 4, 7 * n // 8, n - 1):
            if keep < n:
                yield with_actions(script, script.actions[:keep])


class DropChunks:
    """Runs of actions, long ones first, from the end backwards."""

    def propose(self, script: Script) -> Iterator[Script]:
        n = len(script.actions)
        size = n // 2
        while size >= 1:
            for at in range(n - size, -1, -size):
                yield with_actions(script, script.actions[:at] + script.actions[at + size :])
            size //= 2


class DropPairs:
    """Two single actions that need each other."""

    MOST = 40

    def propose(self, script: Script) -> Iterator[Script]:
        n = len(script.actions)
        if n > self.MOST:
            return
        for j in range(n - 1, 0, -1):
            for i in range(j - 1, -1, -1):
                yield with_actions(script, script.actions[:i] + script.actions[i + 1 : j] + script.actions[j + 1 :])


class Simplify:
    """Fields of single actions: to their default, or to half."""

    def propose(self, script: Script) -> Iterator[Script]:
        for i, action in enumerate(script.actions):
            for smaller in self._smaller(action):
                yield with_actions(script, [*script.actions[:i], smaller, *script.actions[i + 1 :]])

    def _smaller(self, action: Action) -> Iterator[Action]:
        for field in msgspec.structs.fields(type(action)):
            value = getattr(action, field.name)
            if field.name == "id" or isinstance(action, do.Fail):
                continue
            for other in _smaller(value, field.default):
                yield msgspec.structs.replace(action, **{field.name: other})


def _smaller(value: Any, default: Any) -> Iterator[Any]:
    if default is not msgspec.NODEFAULT and value != default:
        yield default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 1:
        return
    for other in (1, value // 2, value - value // 4, value - 1):
        if other < value and other != default:
            yield other


class SimplifyConfig:
    """Fields of the header: to their default, or smaller."""

    def propose(self, script: Script) -> Iterator[Script]:
        for field in msgspec.structs.fields(Config):
            value = getattr(script.config, field.name)
            if field.name in ("running", "budget", "states", "pages"):  # only ever downwards, so that it ends
                smaller = [size for size in (1, value // 2, value - value // 4, value - 1) if 1 <= size < value]
            else:
                smaller = [field.default] if value != field.default else []
            for other in smaller:
                config = msgspec.structs.replace(script.config, **{field.name: other})
                yield msgspec.structs.replace(script, config=config)


PASSES: tuple[Pass, ...] = (CutEnd(), DropChunks(), SimplifyConfig(), Simplify(), DropPairs())


def shrink(script: Script, fails: Fails, seconds: float = 60.0,
           progress: Callable[[Script], None] = lambda script: None) -> Script:
    """The smallest script found within `seconds` for which `fails` holds; it must hold for `script`."""
    end = time.perf_counter() + seconds
    changed = True
    while changed:
        changed = False
        for one in PASSES:
            tried = True
            while tried and time.perf_counter() < end:
                tried = False
                for candidate in one.propose(script):
                    if time.perf_counter() > end:
                        return script
                    if fails(candidate):
                        script, tried, changed = candidate, True, True
                        progress(script)
                        break
        if time.perf_counter() > end:
            return script
    return script
