"""How a root cause is put back: by replacing one of our own functions for a while, or by a build with planted bugs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

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


MUTANT = """
import importlib, sys
from k3mem.native import lib
from tests.cases.helpers import what_is_wrong
module, name = sys.argv[2].split(":")
scenario = getattr(importlib.import_module(module), name)
lib.k3_mutant = int(sys.argv[1])
print(what_is_wrong(scenario))
"""

needs_mutants = pytest.mark.skipif(
    importlib.util.find_spec("k3mem.native._core_mutants") is None,
    reason="k3mem.native._core_mutants is not built (K3MEM_MUTANTS=1)",
)


def with_mutant(mutant: int, scenario: str) -> str:
    """What `module:function` finds wrong in a process whose C core has this planted bug; 0: none planted."""
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "K3MEM_NATIVE": "mutants", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, "-c", MUTANT, str(mutant), scenario]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


EVICT_LOCKED, LIMIT, STAMP, MOVES_LEASED = 2, 3, 4, 102

