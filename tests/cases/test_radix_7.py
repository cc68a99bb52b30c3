"""RADIX-7: release undoes exactly what acquire recorded. A revived tombstone keeps its own locks; a lock for an attempt
leaves those of ancestors as they were; all are 0 when idle. (Revival from a host tier waits for that tier: here a
tombstone is revived by a request that computes its depth again.)"""

from __future__ import annotations

from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import HUGE, Scene, cached, diverge, text, what_is_wrong


def lock_at(scene: Scene, depth: int, prompt: list[int]) -> int:
    return scene.tree.info(scene.nodes(prompt)[depth]).lock


def revived() -> None:
    scene = Scene(policy=Policy(token_budget=96, max_running=8, steps_in_flight=0, chunk_ends=False, follow=False))
    scene.serve("R0", cached(128), 1, hints=(64,))
    scene.submit("R1", diverge(cached(64), "B", 30), 60)
    scene.step()
    assert lock_at(scene, 64, cached(64)) == 1
    scene.tombstone(cached(64), 64)
    scene.submit("R2", diverge(cached(64), "C", 200), 2, hints=(64,), priority=1)
    scene.until(lambda: scene.checkpoints(cached(64)) == [64])
    assert lock_at(scene, 64, cached(64)) == 2, "R1 from before the revival, R2 from its own checkpoint"
    scene.engine.abort("R1")
    scene.step()
    assert lock_at(scene, 64, cached(64)) == 1
    scene.verify()
    scene.run()
    scene.settle()


def attempted() -> None:
    """R4 does not fit and is matched again at every plan, below a node that R3 has locked."""
    scene = Scene(states=3, pages=22, policy=Policy(token_budget=64, max_running=8, steps_in_flight=0, follow=False))
    scene.serve("R0", cached(129), 1, hints=(64,))
    assert scene.checkpoints(cached(129)) == [64, 128, 129]
    scene.submit("R3", diverge(cached(64), "B", 150), 20, priority=1)
    scene.step()
    assert scene.seat("R3").node_depth >= 64
    before = {depth: lock_at(scene, depth, cached(128)) for depth in scene.nodes(cached(128))}
    assert before[64] >= 1
    scene.submit("R4", diverge(cached(64), "D", 150), 2)
    scene.step(3)
    assert scene.jobs["R4"] in scene.core.queue, "R4 waits"
    locks = {seat.node for seat in scene.core.lanes.taken()}
    assert scene.tree.counters().locks == len(locks) == 1
    scene.verify()
    scene.run()
    scene.settle()


def scenario() -> None:
    revived()
    attempted()


def test_a_release_leaves_the_locks_of_a_revived_tombstone() -> None:
    revived()


def test_a_refused_admission_leaves_all_locks_as_they_were() -> None:
    attempted()


def test_unlocking_to_the_root_fails() -> None:
    with plant.unlocks_to_the_root():
        assert what_is_wrong(scenario)


def test_a_lock_of_a_refused_attempt_fails() -> None:
    with plant.refused_keeps_its_lock():
        assert what_is_wrong(scenario)


def under_pressure() -> None:
    """Checkpoints that nobody uses must go, and what running requests stand on must stay, though it is older."""
    scene = Scene(states=8, pages=90, state_bytes=HUGE, policy=Policy(token_budget=96, max_running=3))
    scene.serve("R0", cached(128), 1, hints=(64,))
    scene.submit("long", [*cached(64), *text("long", 20)], 60)
    scene.step(2)
    for i in range(6):
        scene.submit(i, text(f"T{i}", 70 + 10 * i), 6)
    while scene.engine.has_work:
        scene.step()
        scene.verify()
    scene.settle()


@plant.needs_mutants
def test_evicting_what_is_locked_fails() -> None:
    assert plant.with_mutant(plant.EVICT_LOCKED, f"{__name__}:under_pressure")
    assert plant.with_mutant(0, f"{__name__}:under_pressure") == ""
