"""The proof: mutants that are cheap to kill are killed here; `k3mem fuzz prove` runs all of them at length."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from k3mem.fuzz import prove
from k3mem.fuzz.mutants import BY_NAME, MUTANTS
from k3mem.fuzz.patch import PatchError, prove_patch

QUICK = ("donated_and_freed", "states_are_not_zeroed", "snapshot_one_off", "interior_never_filled", "loose_match",
         "half_translated", "resume_deletes_deeper", "salt_is_ignored", "deltas_are_forgotten", "donated_at_the_cut",
         "nothing_is_reused", "refused_keeps_its_lock")
DIFF = """\
--- a/k3mem/sched/close.py
+++ b/k3mem/sched/close.py
@@ -1,2 +1,2 @@
-\"\"\"The end of a tenancy: finished, retracted or aborted. A lane that ends gets no row from then on; what it owns is
+\"\"\"The end of a tenancy. A lane that ends gets no row from then on; what it owns is
 published or given back when its last launched step has committed.\"\"\"
"""


def test_there_are_mutants_with_a_place_and_a_rule_each() -> None:
    assert len(MUTANTS) >= 40
    assert all(mutant.where and mutant.breaks for mutant in MUTANTS)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_killed_and_its_absence_survives(name: str) -> None:
    verdict = prove.prove_one(BY_NAME[name], 40.0)
    assert verdict.killed and verdict.clean, verdict
    assert verdict.by in ("oracle", "check", "liveness", "floor")


def test_seeds_come_from_the_name() -> None:
    one, other = prove.seeds_of("a"), prove.seeds_of("b")
    assert next(one) == next(prove.seeds_of("a")) != next(other)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_plant_leaves_nothing_behind(mutant: object) -> None:
    from k3mem.fuzz.runner import run_seed

    with mutant.plant():  # type: ignore[attr-defined]
        pass
    assert run_seed(3, length=20).found is None


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
def test_a_patch_from_outside_runs_on_a_copy(tmp_path: Path) -> None:
    harmless = tmp_path / "harmless.diff"
    harmless.write_text(DIFF)
    verdict = prove_patch(harmless, 1.0)
    assert verdict.clean and not verdict.killed
    source = Path(__file__).resolve().parents[2] / "k3mem" / "sched" / "close.py"
    lines = source.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if "if core.lanes.inflight[seat.lane] == 0:" in line)
    hunk = "".join([f" {lines[at - 1]}", f"-{lines[at]}", "+    if True:\n", f" {lines[at + 1]}"])
    deadly = tmp_path / "deadly.diff"
    deadly.write_text(f"--- a/k3mem/sched/close.py\n+++ b/k3mem/sched/close.py\n@@ -{at},3 +{at},3 @@\n{hunk}")
    verdict = prove_patch(deadly, 30.0)
    assert verdict.killed and verdict.clean and verdict.where == "k3mem/sched/close.py"


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@pytest.mark.parametrize("text", ["", "--- a/no/such.py\n+++ b/no/such.py\n@@ -1 +1 @@\n-x\n+y\n"])
def test_a_patch_that_does_not_apply_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.diff"
    path.write_text(text)
    with pytest.raises(PatchError, match="bad.diff"):
        prove_patch(path)
