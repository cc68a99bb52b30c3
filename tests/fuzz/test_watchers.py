"""What watches a world beside the oracle: each watcher sees the fault that it is for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from k3mem.fuzz import alone
from k3mem.fuzz import script as do
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.oracle import Found
from k3mem.fuzz.order import Tape, explain, first_race
from k3mem.fuzz.runner import replay, run_seed
from k3mem.fuzz.script import Config, Script
from k3mem.fuzz.world import World

TIGHT = Config(states=3, pages=24, alone=0)


def busy(config: Config, requests: int = 12) -> Script:
    """Prompts of their own, one after another, each continued once."""
    actions: list[do.Action] = []
    for n in range(1, requests + 1):
        actions += [do.Submit(n, text=n, count=20 + n, new=4), do.Step(4),
                    do.Submit(100 + n, n, 24 + n, n + 50, 5, 3), do.Step(4)]
    return Script(config, actions)


def found_under(mutant: str, script: Script) -> Found | None:
    with BY_NAME[mutant].plant():
        return replay(script).found


def test_right_code_passes_all_watchers() -> None:
    assert replay(busy(TIGHT)).found is None


def test_a_victim_used_after_another_is_a_fault() -> None:
    world = World(TIGHT)
    tree = world.core.cache.tree
    evict: Callable[..., Any] = world.recency._evict

    def newest(protect: int = -1) -> Any:
        walk = tree.walk()
        for node in walk.node[walk.state >= 0].tolist():
            if not tree.info(node).lock and world.recency.used.get(tree.info(node).state, 0) < world.recency.clock:
                tree.touch(node)  # the tree takes it for used; the world knows that it was not
                break
        return evict(protect)

    world.recency._evict = newest
    with pytest.raises(Found, match="was evicted"):
        for action in busy(TIGHT).actions:
            world.do(action)


@pytest.mark.parametrize("mutant", ["events_before_their_step", "events_come_backwards"])
def test_an_event_that_is_not_true_is_a_fault(mutant: str) -> None:
    found = found_under(mutant, busy(TIGHT))
    assert found is not None and "event" in found.what


@pytest.mark.parametrize(("mutant", "said"), [
    ("decodes_wait_for_prompts", "decodes nothing"),
    ("chunks_stop_short", "the budget reaches"),
    ("output_is_reserved", "pages, not"),
    ("latch_is_forgotten", "goes on"),
])
def test_plans_without_manners_are_faults(mutant: str, said: str) -> None:
    crowd = [do.Submit(n, text=n, count=70, new=30) for n in range(1, 9)]
    found = found_under(mutant, Script(Config(states=20, pages=200), [*crowd, do.Step(30)]))
    assert found is not None and said in found.what


def test_one_plan_may_stand_for_many_steps() -> None:
    script = Script(Config(fast_forward=True, in_flight=0), [do.Submit(1, text=1, count=20, new=40), do.Step(6)])
    world = World(script.config)
    for action in script.actions:
        world.do(action)
    world.settle()
    assert world.core.metrics.steps > world.steps


# -- the core alone


@pytest.mark.parametrize("seed", range(12))
def test_the_core_alone_agrees_with_its_models(seed: int) -> None:
    alone.run(seed, 60)


@pytest.mark.parametrize("mutant", ["pages_grow_down", "compaction_is_silent", "a_lease_stops_all_moves"])
def test_the_core_alone_shows_what_no_engine_asks_for(mutant: str) -> None:
    with BY_NAME[mutant].plant(), pytest.raises(Found, match="alone"):
        for seed in range(40):
            alone.run(seed, 100)


# -- order


def test_a_race_ends_a_world_that_is_judged() -> None:
    with BY_NAME["half_translated"].plant():
        founds = (run_seed(seed, length=120, race=True, alone=0).found for seed in range(60))
        assert any(found is not None and found.by == "race" for found in founds)


def test_a_recorded_world_without_a_fault_has_no_race() -> None:
    tape = Tape()
    assert replay(run_seed(3, length=100).script, tape).found is None
    assert len(tape) > 20 and first_race(list(tape)) == ""


def test_a_fault_that_order_alone_makes_has_a_race() -> None:
    """Every fault of these worlds that vanishes in program order is explained by a race."""
    judged = 0
    with BY_NAME["rows_share_a_page"].plant():
        for seed in range(10):
            outcome = run_seed(seed, alone=0, race=False)
            if outcome.found is not None:
                said = explain(outcome)
                assert said.race or said.in_order == "fails", outcome.found
                judged += bool(said.race)
    assert judged
