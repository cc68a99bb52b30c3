"""Failed steps, beyond the listed cases: a decode row launched after a failed prefill of its lane may have written
wherever the device stood, on pages that have become the tree's meanwhile."""

from __future__ import annotations

import pytest

from k3mem.executors.mock import Fault, Faults
from k3mem.policy import Policy
from k3mem.sched import failure
from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, what_is_wrong


def behind_a_failed_prefill(seed: int) -> None:
    """R2 computes pages that the tree has already, so its list names the tree's from its next step on; then its
    prefill fails with a decode row in flight."""
    faults = Faults()
    scene = Scene(seed=seed, faults=faults, policy=Policy(max_running=4))
    scene.serve("R1", cached(129), 1)
    scene.tombstone(cached(129), *[depth for depth in scene.checkpoints(cached(129)) if depth <= 64])
    scene.tombstone(cached(129), 128)
    faults.script[scene.core.step + 1] = Fault(scene.core.step + 1)
    scene.submit("R2", diverge(cached(128), "R2", 40), 8)
    scene.step(2)
    assert scene.core.metrics.failures == 1 and scene.core.metrics.duplicates == 0
    scene.verify()
    scene.run()
    scene.settle()


def scenario() -> None:
    for seed in range(12):
        behind_a_failed_prefill(seed)


@pytest.mark.parametrize("seed", range(12))
def test_what_a_lost_decode_row_may_have_written_goes(seed: int) -> None:
    behind_a_failed_prefill(seed)


def test_trusting_the_planned_position_fails() -> None:
    def planned(old: object) -> object:
        return lambda core, seat, low, end, rows: old(core, seat, end - 1, end, rows)  # type: ignore[operator]

    with plant.patched(failure, "_damage_decode", planned):
        assert what_is_wrong(scenario)
