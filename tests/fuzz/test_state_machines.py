"""Hypothesis drives the arena and the tree alone; each rule is followed by `check()` and a comparison."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.fuzz.native_actors import MACHINES

SETTINGS = settings(deadline=None, derandomize=True, max_examples=40, stateful_step_count=40, print_blob=False,
                    database=None, suppress_health_check=list(HealthCheck))
"""The same examples each time; K3MEM_FUZZ_EXAMPLES=N asks for N others."""


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: m.__name__)
def test_machine_finds_nothing(machine: type[RuleBasedStateMachine]) -> None:
    asked = int(os.environ.get("K3MEM_FUZZ_EXAMPLES", 0))
    chosen = settings(SETTINGS, derandomize=False, max_examples=asked) if asked else SETTINGS
    run_state_machine_as_test(machine, settings=chosen)
