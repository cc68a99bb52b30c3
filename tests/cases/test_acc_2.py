"""ACC-2: admission and allocation are one function: as many requests run as states fit, the next one waits, and nothing
that it could have used is left over. Scratch of VERIFY windows is budgeted beside the states."""

from __future__ import annotations

import pytest

from k3mem.policy import Policy
from k3mem.sched import spare
from tests.cases import plant
from tests.cases.helpers import HUGE, Scene, Script, cached, diverge, text, what_is_wrong

SLOTS = 12
POLICIES = {
    "cache off": (Policy(caching=False, max_running=32), 1),
    "default": (Policy(max_running=32), 1),
    "snapshots in decode": (Policy(interval=64, max_running=32), 1),
    "grid depths only": (Policy(deterministic=True, max_running=32), 1),
    "window of 4": (Policy(max_running=32), 4),
    "window of 8, snapshots": (Policy(interval=64, max_running=32), 8),
}
CASES = [(name, hits) for name in POLICIES for hits in (False, True)]


def fill(name: str, hits: bool) -> None:
    """Two more requests than states; pages are plenty, but not enough to make up for a state."""
    policy, window = POLICIES[name]
    drafter = Script(rest=2) if window > 1 else None
    scene = Scene(states=SLOTS, pages=98, policy=policy, window=window, drafter=drafter, state_bytes=HUGE)
    assert scene.arena.usage().fixed - HUGE - scene.shape.page_bytes == (32 * window * 4 if drafter else 0)
    if hits:
        scene.serve("base", cached(66), 1, hints=(64,))
    for i in range(SLOTS + 2):
        scene.submit(i, diverge(cached(64), f"P{i}", 10) if hits else text(f"P{i}", 30), 20)
    scene.step(3)
    walk, info = scene.tree.walk().node.tolist(), scene.tree.info
    locked = sum(info(node).lock > 0 and info(node).state >= 0 for node in walk)
    assert locked == (hits and policy.caching), "the checkpoint that all of them started from"
    assert scene.core.lanes.running == SLOTS - locked, "every state is used"
    assert len(scene.core.queue) == 2 + locked, "the others wait"
    assert scene.free_states() == 0
    scene.verify()
    scene.run()
    assert scene.core.metrics.retractions == 0
    if not policy.caching:
        assert not scene.core.metrics.created and not scene.tree.counters().checkpoints
    scene.settle()


def scenario() -> None:
    for case in CASES:
        fill(*case)


@pytest.mark.parametrize(("name", "hits"), CASES)
def test_as_many_run_as_states_fit(name: str, hits: bool) -> None:
    fill(name, hits)


def alone(policy: Policy, window: int) -> None:
    """A request whose limit fills the arena to the last page runs to its end, whatever it has snapshot on the way."""
    drafter = Script({"R": [(window - 1, i % window) for i in range(60)]}) if window > 1 else None
    scene = Scene(states=1, pages=14, policy=policy, drafter=drafter, window=window)
    scene.submit("R", text("R", 130), 14 * 16 - 130)
    while scene.engine.has_work:
        scene.step()
        scene.verify()
    assert scene.core.metrics.retractions == 0
    scene.settle()


ALONE = [
    (Policy(max_running=4, steps_in_flight=steps, interval=interval, deterministic=deterministic), window)
    for steps in (0, 1, 2) for interval, deterministic in ((None, False), (64, False), (None, True))
    for window in (1, 4)
]


@pytest.mark.parametrize(("policy", "window"), ALONE)
def test_what_fits_alone_runs_alone(policy: Policy, window: int) -> None:
    alone(policy, window)


def test_a_request_that_pins_its_own_checkpoint_fails() -> None:
    with plant.patched(spare, "give_one", lambda old: lambda core, seat: False):
        assert what_is_wrong(lambda: alone(*ALONE[0]))


def test_a_clamp_with_another_number_of_states_a_request_fails() -> None:
    with plant.clamp_of_its_own(2):
        assert what_is_wrong(scenario)
