"""SPEC-6: a window covers its drafts and the current token; commit keeps rows 0 .. accepted of the rows present."""

from __future__ import annotations

import pytest

from k3mem.plan import Row
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, Script, rows_of, text, what_is_wrong

DRAFTS = (1, 3, 4, 7, 11)


def windows(drafts: int) -> None:
    script = Script({"R1": [(drafts, n) for n in range(drafts + 1)]}, rest=drafts)
    scene = Scene(policy=Policy(max_running=2, interval=64), drafter=script, window=drafts + 1, pages=200)
    new = 3 * (drafts + 1) ** 2
    scene.submit("R1", text("R1", 20), new)
    while scene.engine.has_work:
        scene.step()
        scene.verify()
    lengths = [length for plan in scene.plans for _, _, length in rows_of(plan, Row.VERIFY)]
    assert lengths[: drafts + 1] == [drafts + 1] * (drafts + 1)
    scene.settle()


def scenario() -> None:
    for drafts in DRAFTS:
        windows(drafts)


@pytest.mark.parametrize("drafts", DRAFTS)
def test_a_window_has_a_row_more_than_drafts(drafts: int) -> None:
    windows(drafts)


def test_a_window_cut_short_rejects_only_rows_that_it_has() -> None:
    scene = Scene(policy=Policy(max_running=2), drafter=Script({"R1": [(7, 0)] * 9}), window=8)
    scene.submit("R1", text("R1", 20), 7)
    while scene.engine.has_work:
        scene.step()
        scene.verify()
    lengths = [length for plan in scene.plans for _, _, length in rows_of(plan, Row.VERIFY)]
    assert lengths == [6, 5, 4, 3, 2], "the request's limit cuts windows of 8"
    scene.settle()


def test_windows_that_nothing_is_sized_for_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="max_window 16"):
        Scene(drafter=Script(), window=17)
    with pytest.raises(ValueError, match="grid"):
        Scene(drafter=Script(), window=17, state_chunk=16)


def test_a_window_without_the_current_token_fails() -> None:
    with plant.window_is_drafts():
        assert what_is_wrong(scenario)
