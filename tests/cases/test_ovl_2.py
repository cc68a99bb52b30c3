"""OVL-2: what a step committed is found by (lane, generation) in that step's own plan, whatever has been planned since;
a step's arrays are not touched before its commit."""

from __future__ import annotations

from k3mem.plan import Plan, Row, Sampling, to_bytes
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, Script, text, what_is_wrong

FOUR = 4


def verified() -> None:
    """Rows [R1, R2, R3] with accepts [1, 4, 1]; R1 ends with that step, and R3 goes on beside R2."""
    script = Script({"R2": [(3, 3)] * 9, "R1": [(3, 0)] * 9, "R3": [(3, 0)] * 9})
    scene = Scene(policy=Policy(max_running=4), drafter=script, window=FOUR)
    for id, new in (("R1", 2), ("R2", 30), ("R3", 30)):
        scene.submit(id, text(id, 20), new)
    scene.until(lambda: any(Row.VERIFY in plan.kind and plan.rows == 3 for plan in scene.plans))
    before = {id: len(got) for id, got in scene.got.items()}
    scene.drain()
    assert {id: len(scene.got[id]) - before[id] for id in before} == {"R1": 1, "R2": 4, "R3": 1}
    assert scene.reasons["R1"] == "length"
    scene.step()
    assert len(scene.plans[-1].lane) == 2
    scene.verify()
    scene.run()
    scene.settle()


def overlapped() -> None:
    """Plain decode: step k + 1 is planned before the host knows that R1 has stopped in step k."""
    scene = Scene(policy=Policy(max_running=4, steps_in_flight=2))
    scene.submit("probe", text("R1", 20), 6)
    scene.submit("R1", text("R1", 20), 40, sampling=Sampling(stop_ids=(scene.expected["probe"][3],)))
    for id in ("R2", "R3"):
        scene.submit(id, text(id, 30), 12)
    pictures: list[tuple[Plan, bytes]] = []
    while scene.engine.has_work:
        scene.step()
        pictures += [(plan, to_bytes(plan)) for plan in scene.plans[len(pictures) :]]
        assert all(to_bytes(plan) == picture for plan, picture in pictures[-4:]), "a plan in flight was overwritten"
    assert scene.reasons["R1"] == "stop"
    assert scene.engine.stats()["overruns"], "rows were launched before the stop was seen"
    scene.settle()


def reseated() -> None:
    """A lane changes hands while results are late: generations keep its tenants apart."""
    scene = Scene(policy=Policy(max_running=2, steps_in_flight=2))
    for i in range(8):
        scene.submit(i, text(f"P{i}", 10 + i), 1 + i % 4)
    scene.run()
    lanes = [(seat.lane, seat.generation) for plan in scene.plans for seat in plan.seats]
    assert len(set(lanes)) == 8 and {lane for lane, _ in lanes} == {0, 1}
    scene.settle()


def test_accepted_counts_go_to_their_lanes() -> None:
    verified()


def test_late_results_do_not_mix() -> None:
    overlapped()
    reseated()


def test_counts_by_row_fail() -> None:
    with plant.counts_by_row():
        assert what_is_wrong(verified)
        assert what_is_wrong(overlapped)


def test_plans_in_shared_buffers_fail() -> None:
    with plant.shared_plan_buffers():
        assert what_is_wrong(overlapped)
