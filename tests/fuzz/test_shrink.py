"""Shrinking keeps the fault and drops the rest."""

from __future__ import annotations

import pytest

from k3mem.fuzz import script as do
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.prove import seeds_of
from k3mem.fuzz.runner import replay, run_seed
from k3mem.fuzz.script import Config, Script
from k3mem.fuzz.shrink import PASSES, shrink


def test_only_what_is_needed_stays() -> None:
    actions: list[do.Action] = [do.Step(3), do.Abort(4), do.Pin(1, 2.0), do.Step(), do.Flush(), do.Step(7)] * 6
    small = shrink(Script(Config(states=9, budget=100), actions),
                   lambda s: sum(isinstance(a, do.Flush) for a in s.actions) >= 2, 20.0)
    assert small.actions == [do.Flush(), do.Flush()]
    assert (small.config.states, small.config.budget) == (1, 1)


@pytest.mark.parametrize("name", ["states_are_not_zeroed", "donated_and_freed"])
def test_a_failing_world_becomes_a_short_script_that_fails_alike(name: str) -> None:
    plant = BY_NAME[name].plant
    with plant():
        first = run_seed(next(seeds_of(name)))
        assert first.found is not None
        by = first.found.by

        def fails(script: Script) -> bool:
            found = replay(script).found
            return found is not None and found.by == by

        small = shrink(first.script, fails, 20.0)
        assert fails(small)
    assert len(small.actions) <= min(6, len(first.script.actions))
    assert replay(small).found is None


@pytest.mark.parametrize("one", PASSES, ids=lambda one: type(one).__name__)
def test_a_pass_proposes_scripts_that_differ(one: object) -> None:
    script = run_seed(3, length=12).script
    for candidate in one.propose(script):  # type: ignore[attr-defined]
        assert candidate != script
