"""SPEC-7: who cannot record and fold is refused at construction; who can leaves the committed state in every group
after every count of accepted drafts."""

from __future__ import annotations

import pytest

from k3mem.executor import Capabilities
from k3mem.executors.mock import MockExecutor
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, Script, text, what_is_wrong


class NoRecords(MockExecutor):
    """Runs no VERIFY rows."""

    def __init__(self) -> None:
        super().__init__(strict_handout=False)
        self._capabilities = Capabilities(verify=False)


def scenario(groups: int = 2) -> None:
    executor = MockExecutor(recurrent_groups=groups, kv_groups=groups, strict_handout=False)
    script = Script({"R1": [(4, n) for n in range(5)]})
    scene = Scene(policy=Policy(max_running=2), drafter=script, window=5, executor=executor)
    scene.submit("R1", text("R1", 20), 25)
    scene.expected["R1"] = executor.fresh_output(
        scene.cache.digest(scene.jobs["R1"].scope), text("R1", 20), scene.requests["R1"].sampling, 25)
    while scene.engine.has_work:
        scene.step()
        scene.verify()
    scene.settle()


def test_an_executor_without_verify_rows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no VERIFY rows.*records.*fold"):
        Scene(drafter=Script(), window=4, executor=NoRecords())
    assert Scene(executor=NoRecords()).serve("R1", text("R1", 20)) == 0


@pytest.mark.parametrize("groups", [2, 3])
def test_every_group_holds_what_was_committed(groups: int) -> None:
    scenario(groups)


def test_verifying_without_a_fold_fails() -> None:
    with plant.no_fold():
        assert what_is_wrong(scenario)


def test_an_unchecked_executor_fails() -> None:
    def unchecked() -> None:
        scene = Scene(drafter=Script(rest=3), window=4, executor=NoRecords())
        scene.serve("R1", text("R1", 20))
        scene.settle()

    with plant.capabilities_unchecked():
        assert "the executor takes 0" in what_is_wrong(unchecked)
