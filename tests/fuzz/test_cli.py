"""The command line: results, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from k3mem.cli import app as main_app
from k3mem.fuzz.cli import app
from k3mem.fuzz.runner import run_seed
from k3mem.fuzz.script import dump

runner = CliRunner()


def result(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_run_counts_events_by_kind(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = runner.invoke(app, ["run", "--seed", "3", "--events", "300", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "marks reached" in done.output
    told = result(out)
    assert told["found"] is None and told["events"] >= 300 and sum(told["by_kind"].values()) == told["events"]
    assert len(told["marks"]) >= 60


def test_json_on_stdout_stands_alone() -> None:
    done = runner.invoke(app, ["run", "--events", "10", "--json", "-"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["worlds"] == 1


def test_replay_repeats_a_script(tmp_path: Path) -> None:
    path, out = tmp_path / "script.json", tmp_path / "out.json"
    first = run_seed(5, length=60)
    path.write_text(dump(first.script))
    done = runner.invoke(app, ["replay", str(path), "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert result(out)["scripts"][0]["events"] == first.total


def test_a_bad_script_is_wrong_input(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text("{}")
    assert runner.invoke(app, ["replay", str(path)]).exit_code == 2
    assert runner.invoke(app, ["replay", str(tmp_path / "none.json")]).exit_code == 2


def test_a_script_under_its_mutant_fails() -> None:
    corpus = sorted((Path(__file__).resolve().parents[2] / "fuzz" / "corpus").glob("*.json"))
    assert runner.invoke(app, ["replay", str(corpus[0])]).exit_code == 0
    assert runner.invoke(app, ["replay", "--planted", str(corpus[0])]).exit_code == 1


def test_prove_tells_who_killed_a_mutant(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = runner.invoke(app, ["prove", "--only", "donated_and_freed", "--json", str(out)])
    assert done.exit_code == 0, done.output
    verdict = result(out)["mutants"][0]
    assert {"name", "where", "killed", "seed", "seconds", "by"} <= verdict.keys() and verdict["killed"]
    assert runner.invoke(app, ["prove", "--only", "no_such"]).exit_code == 2
    assert runner.invoke(app, ["prove", "--mutant", str(tmp_path / "none.diff")]).exit_code == 2


def test_a_mutant_that_lives_is_a_failure() -> None:
    assert runner.invoke(app, ["prove", "--only", "canary", "--seconds", "0.01"]).exit_code == 1


def test_explore_says_when_it_is_not_complete(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert runner.invoke(app, ["explore", "--seconds", "0", "--json", str(out)]).exit_code == 1
    assert result(out)["complete"] is False


def test_explore_seeks_planted_bugs(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert runner.invoke(app, ["explore", "--only", "half_translated", "--json", str(out)]).exit_code == 0
    sought = result(out)["mutants"][0]
    assert sought["killed"] and sought["order"] and sought["by"] in ("oracle", "check")
    assert runner.invoke(app, ["explore", "--only", "canary", "--seconds", "0"]).exit_code == 1
    assert runner.invoke(app, ["explore", "--only", "no_such"]).exit_code == 2


def test_processes_run_worlds_together(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert runner.invoke(app, ["run", "--worlds", "4", "--jobs", "2", "--json", str(out)]).exit_code == 0
    told = result(out)
    assert told["worlds"] >= 4 and told["marks"]["seated"] > 0 and told["found"] is None


def test_all_runs_stages_and_says_how_to_run_them_again(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["all", "--share", "1/8", "--minutes", "2", "--stage", "corpus", "--stage", "run", "--events", "200",
               "--jobs", "1", "--json", str(out)]
    done = runner.invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "k3mem fuzz all --share 1/8 --minutes 2" in done.output
    told = result(out)
    assert told["wrong"] == [] and told["stages"]["run"]["seed"] == 1_000_000 and told["share"] == "1/8"
    assert told["stages"]["run"]["events"] >= 200 and told["stages"]["corpus"]["scripts"] > 0


@pytest.mark.parametrize("wrong", [["--share", "8/8"], ["--stage", "none"]])
def test_all_refuses_what_is_not_there(wrong: list[str]) -> None:
    assert runner.invoke(app, ["all", *wrong]).exit_code == 2


def test_bench_measures_rates(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert runner.invoke(app, ["bench", "--seconds", "0.2", "--json", str(out)]).exit_code == 0
    assert result(out)["events_per_second"] > 0 and result(out)["by_kind"]["row"] > 0


@pytest.mark.parametrize("command", ["run", "prove", "explore", "all", "replay", "judge", "bench"])
def test_every_command_is_under_the_main_one(command: str) -> None:
    done = runner.invoke(main_app, ["fuzz", command, "--help"])
    assert done.exit_code == 0 and "--json" in done.output
