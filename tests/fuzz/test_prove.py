"""The proof: mutants that are cheap to kill are killed here; `k3mem fuzz prove` runs all of them at length."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from k3mem.fuzz import mutants_native, prove
from k3mem.fuzz.mutants import BY_NAME, MUTANTS
from k3mem.fuzz.patch import PatchError, prove_patch
from k3mem.fuzz.rules import RULES, WANTED

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


def test_every_rule_has_a_mutant_and_every_mutant_a_rule() -> None:
    everything = [*MUTANTS, *mutants_native.MUTANTS]
    assert all(mutant.where for mutant in everything)
    assert {mutant.breaks for mutant in everything} == set(RULES)
    assert len({mutant.name for mutant in everything}) == len(everything)


def test_the_faults_that_everybody_knows_are_planted() -> None:
    assert set(WANTED.values()) <= {mutant.name for mutant in (*MUTANTS, *mutants_native.MUTANTS)}


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_killed_and_its_absence_survives(name: str) -> None:
    verdict = prove.prove_one(BY_NAME[name], 40.0)
    assert verdict.killed and verdict.clean, verdict
    assert verdict.by in ("oracle", "race", "check", "liveness", "floor")
    assert verdict.race or verdict.in_order == "fails", verdict


needs_mutants = pytest.mark.skipif(not prove.native_mutants(), reason="the C core with planted bugs is not built")


@needs_mutants
def test_mutants_of_both_sides_are_hunted_in_processes_of_their_own() -> None:
    told: list[str] = []
    names = ["scope_is_left_out", "tree.tombstone"]
    verdicts = prove.prove(names, 30.0, lambda verdict: told.append(verdict.name), jobs=2)
    assert [verdict.name for verdict in verdicts] == names and sorted(told) == sorted(names)
    assert all(verdict.killed and verdict.clean for verdict in verdicts), verdicts


def test_a_process_that_dies_is_a_kill_in_the_world_it_died_in() -> None:
    lines = [{"seed": 7}, {"seed": 8}]
    worlds, dead = prove.read_lines("x", -11, lines, "Segmentation fault")
    assert (worlds, dead.seeds, dead.by) == (2, [8], "check") and "-11" in dead.what
    _, hung = prove.read_lines("x", -26, lines, "")
    assert hung.by == "liveness"


def test_a_process_that_dies_without_the_bug_is_no_proof() -> None:
    done = {"seeds": 1, "by": "oracle", "what": "w", "seconds": 1.0, "race": "", "in_order": "fails", "wrong": ""}
    _, out = prove.read_lines("x", -11, [{"seed": 7}, done, {"seed": 7}], "")
    assert out.by == "oracle" and out.wrong


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
