"""ABORT-3: a retracted request comes back with KV, matrix and convolution window of its own depth, or computes them
again from the nearest checkpoint. (Saving to a host tier waits for that tier.)"""

from __future__ import annotations

from k3mem.policy import Policy
from k3mem.sched import close
from tests.cases import plant
from tests.cases.helpers import HUGE, Scene, text, what_is_wrong

PROMPT = text("R1", 90)


def retracted_at_100(states: int) -> Scene:
    """R1 has absorbed 100 tokens when it is retracted; R2 of higher rank gets a state and writes it."""
    policy = Policy(token_budget=256, max_running=2, steps_in_flight=0)
    scene = Scene(states=states, pages=40, state_bytes=HUGE, policy=policy)
    scene.submit("R1", PROMPT, 30)
    scene.until(lambda: scene.core.lanes.launched[0] == 100)
    close.retract(scene.core, scene.seat("R1"))
    scene.verify()
    assert scene.core.lanes.running == 0 and scene.jobs["R1"] in scene.core.queue
    scene.submit("R2", text("R2", 100), 30, priority=1)
    scene.step()
    scene.verify()
    return scene


def scenario() -> None:
    scene = retracted_at_100(states=12)
    seats = [seat for plan in scene.plans for seat in plan.seats if seat.prompt == 90]
    assert [seat.depth for seat in seats] == [0, 100]
    scene.run()
    scene.settle()


def squeezed() -> None:
    """One state in all: what was saved is evicted again."""
    scene = retracted_at_100(states=1)
    scene.run()
    seats = [seat.depth for plan in scene.plans for seat in plan.seats if seat.prompt == 90]
    assert seats == [0, 0]
    assert scene.core.metrics.resumed_tokens == 101
    scene.settle()


def test_a_retracted_request_resumes_where_it_was() -> None:
    scenario()


def test_or_computes_again_what_is_lost() -> None:
    squeezed()


def test_a_saved_state_that_others_get_fails() -> None:
    with plant.donated_and_freed():
        assert what_is_wrong(scenario)


def test_a_saved_state_that_others_get_gives_wrong_tokens() -> None:
    scene = Scene(policy=Policy(token_budget=256, max_running=2, steps_in_flight=0))
    scene.submit("R1", PROMPT, 30)
    scene.until(lambda: scene.core.lanes.launched[0] == 100)
    with plant.donated_and_freed():
        close.retract(scene.core, scene.seat("R1"))
    scene.submit("R2", text("R2", 100), 30, priority=1)
    scene.run()
    assert scene.got["R1"] != scene.expected["R1"] and scene.differences()
