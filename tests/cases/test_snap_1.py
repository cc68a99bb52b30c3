"""SNAP-1: a published checkpoint has no writer: going on in the running state changes none of them."""

from __future__ import annotations

from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, cached, text, what_is_wrong


def content(scene: Scene, prompt: list[int]) -> dict[int, object]:
    """Depth -> what the device holds of each checkpoint on this path."""
    scene.executor.audit([])  # lets the streams run dry
    memory, places = scene.executor.device.memory, scene.executor.device.tables.places[1]
    out: dict[int, object] = {}
    for depth in scene.checkpoints(prompt):
        place = places[scene.tree.info(scene.nodes(prompt)[depth]).state]
        out[depth] = (memory.matrix[place], memory.window[place])
    return out


def scenario(steps_in_flight: int = 1) -> None:
    scene = Scene(policy=Policy(token_budget=64, max_running=4, steps_in_flight=steps_in_flight, interval=64))
    first = cached(128)
    scene.submit("R1", first, 6)
    scene.until(lambda: len(scene.got["R1"]) >= 1)
    scene.drain()
    assert scene.checkpoints(first)[0] == 64
    before = content(scene, first)
    scene.verify()
    scene.run()
    after = content(scene, scene.line("R1"))
    assert {depth: after[depth] for depth in before} == before, "a checkpoint changed after it was taken"
    donated = scene.checkpoints(scene.line("R1"))
    assert donated == [64, 128 + 5], "128 is the prompt's end: its last token is computed, decode starts beyond it"
    scene.settle()
    assert scene.serve("R2", [*first[:64], *text("B", 10)]) == 64
    assert content(scene, scene.line("R1")) == after, "a donated state was written again"
    scene.settle()


def test_checkpoints_stay_while_their_request_goes_on() -> None:
    for steps in (0, 1, 2):
        scenario(steps)


def test_a_prompt_that_ends_on_the_grid_leaves_its_end_too() -> None:
    scene = Scene(policy=Policy(token_budget=64, max_running=4))
    scene.serve("R1", cached(128), 1)
    assert scene.checkpoints(cached(128)) == [64, 128]
    scene.serve("R2", cached(64) + text("B", 10))
    assert scene.hit("R2") == 64
    scene.settle()


def test_a_snapshot_by_reference_fails() -> None:
    with plant.snapshot_is_a_reference():
        assert what_is_wrong(scenario)


def test_a_donated_state_that_is_freed_fails() -> None:
    with plant.donated_and_freed():
        assert what_is_wrong(scenario)
