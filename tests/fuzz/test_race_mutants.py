"""Worlds on the engine: right ones are clean, and a plan spoilt by any of the mutants is reported by name."""

from __future__ import annotations

from typing import Any

import pytest

from k3mem.executors.mock import Faults
from k3mem.fuzz import spoils as m
from k3mem.fuzz.race import Judge
from k3mem.fuzz.spoils import Spoil
from k3mem.policy import Policy
from tests.engine.test_bites import trial
from tests.engine.test_matrix import CELLS, world
from tests.fuzz.spoilt_worlds import Mutant, judged, listening
from tests.world import World

MUTANTS: list[tuple[Spoil, set[str]]] = [
    (m.overlapping_moves, {"moves_overlap"}),
    (m.chain_in_one_batch, {"moves_overlap"}),
    (m.source_through_the_new_table, {"moves_overlap"}),
    (m.move_left_out, {"use_before_write"}),
    (m.moved_entry_not_told, {"stale_entry"}),
    (m.restore_of_a_target, {"restored_before_write"}),
    (m.restore_left_out, {"use_before_write", "wrong_prefix"}),
    (m.restore_chain, {"restores_overlap"}),
    (m.restore_from_an_unknown_id, {"stale_entry"}),
    (m.target_is_anothers_state, {"target_in_use"}),
    (m.target_is_its_own_state, {"target_in_use"}),
    (m.two_rows_on_one_page, {"rows_share_page"}),
    (m.two_lanes_on_one_state, {"rows_share_state"}),
    (m.seated_twice, {"lane_seated_twice"}),
    (m.page_in_use_is_zeroed, {"lost_write"}),
    (m.state_in_use_is_zeroed, {"lost_write"}),
    (m.page_not_zeroed, {"use_before_write", "two_writers"}),
    (m.state_not_zeroed, {"use_before_write", "wrong_prefix"}),
    (m.copy_of_a_zeroed_page, {"lost_write"}),
    (m.copy_left_out, {"use_before_write", "wrong_prefix"}),
    (m.copy_and_back, {"copies_overlap"}),
    (m.page_of_two_ids, {"stale_entry"}),
    (m.one_id_at_two_places, {"tables_conflict"}),
    (m.entry_told_otherwise, {"tables_conflict"}),
    (m.folded_twice, {"folded_twice"}),
    (m.generation_ignored, {"stale_lane"}),
    (m.chunk_begins_early, {"wrong_position"}),
    (m.resync_skipped, {"no_resync"}),
]
"""Each mutant, and the kinds of which one at least must be named."""


def tight(seed: int, requests: int = 40) -> World:
    """Few states, so that pages and states take bytes from each other: moves, restores, tails, retractions."""
    return World(seed=seed, requests=requests, states=3, pages=24, check_every=50, audit_every=1000,
                 policy=Policy(token_budget=64, max_running=5, steps_in_flight=seed % 3 % 2 + seed % 2,
                               eager=bool(seed % 2)),
                 window=4 if seed % 3 == 2 else 1, faults=Faults(rate=0.04, seed=seed) if seed % 4 == 3 else None)


@pytest.mark.parametrize(("spoil", "kinds"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_spoilt_plan_is_named(spoil: Spoil, kinds: set[str]) -> None:
    """In each of two worlds in which somebody reads what it spoils."""
    struck, unread = 0, list[int]()
    for seed in range(24):
        mutant = Mutant(spoil, first=4 + seed)
        spoilt, report = judged(lambda seed=seed: tight(seed), mutant)  # type: ignore[misc]
        if not mutant.ran:
            continue
        if not kinds & set(report.kinds):  # allowed only where nobody read what it spoilt: no token is wrong
            wrong = [failure for failure in spoilt.failures if failure.startswith("request")]
            assert not wrong and not report.races, (seed, mutant.struck, dict(report.kinds), wrong[:2])
            unread.append(seed)
            continue
        struck += 1
        assert min(race.step for race in report.races) >= mutant.struck
        if struck == 2:
            break
    assert struck, "no occasion in any world"
    assert len(unread) <= (1 if spoil is m.move_left_out else 0), unread


@pytest.mark.parametrize("seed", range(12))
def test_a_right_world_is_clean(seed: int) -> None:
    done, report = judged(lambda: tight(seed, 60))
    assert not done.failures
    assert not report.races, report.races[0]
    assert report.commands > 4 * report.steps > 0


@pytest.mark.parametrize("cell", CELLS[::4], ids=str)
@pytest.mark.parametrize("faults", [False, True])
def test_the_matrix_is_clean(cell: dict[str, Any], faults: bool) -> None:
    seed = CELLS.index(cell)
    done, report = judged(lambda: world(cell, seed, 25, check_every=100, audit_every=1000,
                                        faults=Faults(rate=0.05, seed=seed) if faults else None))
    assert not done.failures
    assert not report.races, report.races[0]


@pytest.mark.parametrize("seed", range(40))
def test_what_the_mock_sees_in_a_spoilt_plan_the_judge_sees(seed: int) -> None:
    """One entry of one plan is left out. The mock looks at bytes and tokens, the judge at plans and results alone. What
    only the audit shows, which knows the tree, no plan has read yet."""
    judge = Judge()
    with listening(judge):
        one = trial(seed)
    report = judge.finish()
    if any(line.startswith(("step", "request")) for line in one.shown):
        assert report.races, one.shown[:2]
    elif not one.shown:
        assert not report.races, report.races[0]
