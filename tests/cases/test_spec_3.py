"""SPEC-3: a lane's new tenant starts with nothing of the old one's windows, cold or resumed from a checkpoint. (Seats
filled from a host tier wait for that tier.)"""

from __future__ import annotations

from k3mem.plan import Row
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, Script, cached, diverge, rows_of, text, what_is_wrong


def follow_up(prefix_hit: bool) -> None:
    """R1 ends on the only lane with drafts left over; R2 verifies from its first step on."""
    script = Script({"R1": [(3, 3), (3, 3), (3, 1)]}, rest=2)
    scene = Scene(policy=Policy(max_running=1), drafter=script, window=4)
    scene.submit("R1", cached(70), 40)
    scene.until(lambda: len(scene.got["R1"]) == 1 + 4 + 4 + 2)
    scene.engine.abort("R1")
    scene.run()
    second = diverge(cached(66), "R2", 20) if prefix_hit else text("cold", 40)
    first = len(scene.plans)
    assert scene.serve("R2", second, 12) == (64 if prefix_hit else 0)
    rows = [row for plan in scene.plans[first:] for row in rows_of(plan, Row.VERIFY)]
    assert rows[0] == (0, len(second), 3)
    scene.settle()


def scenario() -> None:
    follow_up(False)
    follow_up(True)


def test_a_cold_tenant_replays_nothing() -> None:
    follow_up(False)


def test_a_resumed_tenant_replays_nothing() -> None:
    follow_up(True)


def test_records_that_survive_their_tenant_fail() -> None:
    for prefix_hit in (False, True):
        with plant.records_survive_their_tenant():
            assert what_is_wrong(lambda hit=prefix_hit: follow_up(hit))  # type: ignore[misc]
