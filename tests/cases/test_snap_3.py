"""SNAP-3: publish after write. A chunk that was planned and cancelled leaves nothing to match; one that was launched
may be read by every later plan, since both stand on one stream."""

from __future__ import annotations

from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, cached, text, what_is_wrong

PROMPT = [*cached(256), *text("end", 4)]


def retry(chunks: int, abort_while_open: bool = False) -> int:
    """R1 has launched this many chunks and one more is planned, then cancelled, and R1 aborted; R2 tries again.
    Its resume depth."""
    scene = Scene(policy=Policy(token_budget=64, max_running=4))
    scene.submit("R1", PROMPT)
    scene.step(chunks)
    free = scene.free_states()
    plan = scene.engine.plan()
    assert plan is not None and plan.length.tolist() == [64]
    assert scene.free_states() < free, "the chunk has a target"
    if abort_while_open:
        scene.engine.abort("R1")
    scene.engine.cancel(plan)
    assert scene.free_states() == free, "the target is free again"
    if not abort_while_open:
        scene.engine.abort("R1")
    assert scene.match(PROMPT).depth == 64 * chunks
    scene.drain()
    scene.verify()
    scene.serve("R2", PROMPT)
    scene.settle()
    return scene.hit("R2")


def scenario() -> None:
    assert retry(1) == 64
    assert retry(0) == 0


def test_a_cancelled_chunk_is_not_matchable() -> None:
    scenario()


def test_nor_when_the_abort_comes_between_plan_and_cancel() -> None:
    assert [retry(n, abort_while_open=True) for n in (0, 1, 2)] == [0, 64, 128]


def test_an_abort_between_plan_and_launch_ends_at_the_next_plan() -> None:
    scene = Scene(policy=Policy(token_budget=512, max_running=4))
    scene.submit("R1", PROMPT, 40)
    plan = scene.engine.plan()
    assert plan is not None and plan.sample.tolist() == [True]
    scene.engine.abort("R1")
    scene.engine.launch(plan)
    assert scene.engine.plan() is None, "no row after the abort"
    scene.drain()
    scene.take(scene.engine.take_outputs())
    assert (scene.reasons["R1"], scene.got["R1"]) == ("abort", [])
    scene.settle()


def test_a_launched_chunk_is_matchable_before_it_commits() -> None:
    scene = Scene(policy=Policy(token_budget=64, max_running=4, follow=False))
    scene.submit("R1", PROMPT)
    scene.step(2)
    assert len(scene.core.flights) == 1
    scene.engine.abort("R1")
    scene.submit("R2", PROMPT)
    scene.run()
    assert scene.hit("R2") == 128
    scene.settle()


def test_a_chunk_is_invisible_to_its_own_plan() -> None:
    scene = Scene(policy=Policy(token_budget=512, max_running=4, follow=False))
    scene.submit("R1", PROMPT)
    scene.submit("R2", PROMPT)
    scene.run()
    assert (scene.hit("R1"), scene.hit("R2")) == (0, 0)
    scene.settle()


def test_publishing_at_plan_time_fails() -> None:
    with plant.published_when_planned():
        assert what_is_wrong(scenario)
