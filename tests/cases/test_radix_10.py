"""RADIX-10: each prompt of a packed prefill has its own chunk grid: states are those of the prompt alone."""

from __future__ import annotations

from k3mem.plan import Row
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, rows_of, text, what_is_wrong

R1, R2 = text("R1", 100), text("R2", 200)
POLICY = Policy(max_running=8, interval=64)


def contents(scene: Scene) -> list[object]:
    """What the device holds at R2's grid depths."""
    scene.executor.audit([])
    memory, places = scene.executor.device.memory, scene.executor.device.tables.places[1]
    nodes = scene.nodes(R2)
    found = [places[scene.tree.info(nodes[depth]).state] for depth in (64, 128, 192)]
    return [(memory.matrix[place], memory.window[place]) for place in found]


def scenario(capture: str = "any") -> None:
    packed = Scene(policy=POLICY, capture=capture)
    packed.submit("R1", R1, 1)
    packed.submit("R2", R2, 1)
    packed.run()
    assert [(start, length) for _, start, length in rows_of(packed.plans[0], Row.PREFILL)] == [(0, 100), (0, 200)]
    assert packed.plans[0].snapshots[:, 1].tolist() == [64, 64, 128, 192]
    packed.settle()
    alone = Scene(policy=POLICY, capture=capture)
    alone.serve("R2", R2, 1)
    assert contents(packed) == contents(alone)
    for scene in (packed, alone):
        assert scene.serve("R3", [*R2[:150], *text("X", 9)]) == 128
        scene.settle()


def test_packed_and_alone_leave_the_same_checkpoints() -> None:
    for capture in ("any", "grid"):
        scenario(capture)


def test_an_executor_without_interior_depths_gets_cut_rows() -> None:
    scene = Scene(policy=POLICY, capture="final")
    scene.submit("R1", R1, 1)
    scene.submit("R2", R2, 1)
    scene.run()
    assert [length for plan in scene.plans for _, _, length in rows_of(plan, Row.PREFILL)] == [64, 64, 36, 64, 64, 8]
    assert set(scene.checkpoints(R2)) >= {64, 128, 192}
    scene.settle()


def test_one_grid_over_the_packed_batch_fails() -> None:
    with plant.packed_grid():
        assert what_is_wrong(scenario)


def test_one_grid_over_the_packed_batch_shows_in_the_audit() -> None:
    scene = Scene(policy=POLICY)
    with plant.packed_grid():
        scene.submit("R1", R1, 1)
        scene.submit("R2", R2, 1)
        scene.run()
    assert any("state id" in difference for difference in scene.differences())
