"""Seeds over several processes, and the whole of the fuzzer in shares."""

from __future__ import annotations

import subprocess
import time
from collections import Counter

import pytest

from k3mem.fuzz import campaign, prove, seek, whole
from k3mem.fuzz.campaign import Bounds
from k3mem.fuzz.marks import MARKS, missed
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.oracle import Found
from k3mem.fuzz.runner import run_seed


def test_processes_together_run_the_seeds_that_one_would() -> None:
    alone, together = (campaign.run(40, Bounds(worlds=6), jobs) for jobs in (1, 2))
    assert alone.worlds == 6 and together.worlds >= 6
    want = sum((run_seed(40 + i).events for i in range(together.worlds)), Counter[str]())
    assert together.events == want
    assert sum(together.marks.values()) > sum(alone.marks.values()) * 0.99
    assert len(together.marks) == len(MARKS) == len(alone.marks)


def test_both_goals_are_reached_and_time_ends_all() -> None:
    out = campaign.run(3, Bounds(events=1, worlds=3))
    assert out.worlds == 3
    assert campaign.run(3, Bounds(events=10**9, clock=time.monotonic())).worlds == 0
    assert campaign.run(3, Bounds(seconds=0.0, events=10**9)).worlds == 0


def test_a_fault_ends_the_campaign_and_names_its_seed() -> None:
    with BY_NAME["donated_and_freed"].plant():
        out = campaign.run(0, Bounds(worlds=500))
        assert out.found is not None and out.worlds < 500
        found = run_seed(out.found["seed"]).found
    assert isinstance(found, Found) and found.what == out.found["what"]


def test_of_two_failed_seeds_the_lower_one_is_told() -> None:
    out = campaign.Campaign(0)
    for seed in (5, 2, 9):
        out.add(campaign.World(seed, 0, Counter(), Counter(), 0.0, ("check", f"fault {seed}")))
    assert out.found == {"seed": 2, "by": "check", "what": "fault 2"}


def test_missed_marks_are_told() -> None:
    assert missed(Counter({"hit": 3, "lease": 0})) == ["lease"]


def test_shares_are_all_of_it_and_share_nothing() -> None:
    things = list(range(29))
    picked = [whole.Share(i, 4).pick(things) for i in range(4)]
    assert sorted(sum(picked, [])) == things
    assert whole.Share(0, 1).pick(things) == things
    assert whole.Share.parse("3/8") == whole.Share(3, 8)


@pytest.mark.parametrize("text", ["", "8/8", "-1/8", "1", "a/b", "1/0"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="share"):
        whole.Share.parse(text)


def test_the_corpus_is_seen_and_a_blind_one_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (stage,) = whole.everything(whole.Job(), ["corpus"])
    assert not stage.wrong and stage.result["scripts"] >= 6
    monkeypatch.setattr(whole, "replay", lambda script: run_seed(3, length=1))
    (stage,) = whole.everything(whole.Job(), ["corpus"])
    assert len(stage.wrong) == stage.result["scripts"]


def test_mutants_that_live_are_wrong_and_those_out_of_time_are_not() -> None:
    stage = whole.Stage("prove")
    job = whole.Job(jobs=2, mutant_seconds=0.01)

    def hunt(mutant: prove.AnyMutant, seconds: float, most: float | None) -> dict[str, object]:
        return prove.prove_apart(mutant, seconds, most).as_dict()

    whole._mutants(job, stage, None, ["canary", "donated_and_freed"], hunt)
    assert stage.wrong == ["canary lives"] and not stage.unreached
    late = whole.Stage("prove")
    whole._mutants(job, late, time.monotonic(), ["canary"], hunt)
    assert late.unreached == ["canary"] and not late.wrong


def test_a_hunt_that_the_clock_ends_is_no_verdict_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that is ended is the one that hunts, not one that waits for it."""
    begun: list[list[str]] = []
    run = subprocess.run

    def watched(command: list[str], **more: object) -> object:
        begun.append(command)
        return run(command, **more)

    monkeypatch.setattr(prove.subprocess, "run", watched)
    canary = BY_NAME["canary"]
    with pytest.raises(prove.OutOfTime):
        prove.prove_apart(canary, 30.0, 0.5)
    with pytest.raises(prove.OutOfTime):
        seek.seek_apart(canary, 30.0, 0.5)
    assert [command[2] for command in begun] == ["k3mem.fuzz.hunt", "k3mem.fuzz.seek"]


def test_a_mutant_whose_process_says_nothing_lives() -> None:
    stage = whole.Stage("prove")
    worlds, hunted = prove.read_lines("canary", 1, [], "gone")
    dead = prove.verdict(BY_NAME["canary"], hunted, worlds).as_dict()
    whole._mutants(whole.Job(), stage, None, ["canary"], lambda *a: dead)
    assert worlds == 0 and stage.wrong == ["canary lives: no world began: exit code 1: gone"]


def test_what_exploration_must_find_are_planted_bugs() -> None:
    assert len(whole.EXPLORED) >= 15 and len(set(whole.EXPLORED)) == len(whole.EXPLORED)
