"""Worlds: right code survives, a run replays exactly, and the oracle says what it is for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from k3mem.errors import Effect
from k3mem.fuzz import script as do
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.oracle import Found
from k3mem.fuzz.runner import replay, run_seed
from k3mem.fuzz.script import Config, Script, dump, load
from k3mem.fuzz.world import World

CORPUS = sorted((Path(__file__).resolve().parents[2] / "fuzz" / "corpus").glob("*.json"))


@pytest.mark.parametrize("seed", range(24))
def test_a_world_without_a_planted_bug_survives(seed: int) -> None:
    outcome = run_seed(seed, length=120)
    assert outcome.found is None
    assert outcome.total > 20


def test_a_recorded_run_replays_exactly(tmp_path: Path) -> None:
    first = run_seed(7, length=150)
    path = tmp_path / "script.json"
    path.write_text(dump(first.script))
    again = replay(load(path))
    assert (again.steps, again.events) == (first.steps, first.events)
    assert load(path) == first.script


def test_any_part_of_a_script_is_a_script() -> None:
    script = run_seed(11, length=150).script
    for cut in (slice(0, None, 2), slice(1, None, 3), slice(40, 90)):
        assert replay(Script(script.config, script.actions[cut])).found is None


@pytest.mark.parametrize("text", ["", "{}", '{"config": {}, "actions": [{"type": "Jump"}]}'])
def test_a_file_that_is_no_script_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="bad.json"):
        load(path)


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("at", ["launch", "collect"])
def test_a_failed_step_costs_time_and_no_token(at: str, effect: Effect) -> None:
    actions: list[do.Action] = [do.Submit(1, text=1, count=40, new=30), do.Step(2), do.Submit(2, 1, 46, 2, 9, 30)]
    for _ in range(3):
        actions += [do.Fail(at, effect), do.Step(3)]  # type: ignore[arg-type]
    world = World(Config(states=4, pages=16))
    for action in actions:
        world.do(action)
    world.settle()
    assert world.failed == 3
    assert all(line.reason == "length" for line in world.oracle.lines.values())


@pytest.mark.parametrize("window", ["plan", "launch", "collect"])
def test_an_abort_in_each_window_of_a_step_leaves_nothing(window: str) -> None:
    halves: list[do.Action] = [do.Plan(), do.Launch(), do.Collect(), do.Commit()]
    halves.insert({"plan": 1, "launch": 2, "collect": 3}[window], do.Abort(1))
    world = World(Config())
    for action in [do.Submit(1, text=1, count=40, new=6), do.Step(), *halves]:
        world.do(action)
    world.settle()
    assert world.oracle.lines[1].reason == "abort"


@pytest.mark.parametrize("lie", ["token", "end"])
def test_the_oracle_sees_a_wrong_output(lie: str) -> None:
    world = World(Config(in_flight=0))
    commit = world.engine.commit

    def lying(flight: object, result: object) -> object:
        outs = commit(flight, result)  # type: ignore[arg-type]
        if lie == "token":
            return [msgspec.structs.replace(out, tokens=[(t + 1) % 97 for t in out.tokens]) for out in outs]
        return [msgspec.structs.replace(out, finished=True, reason="length") for out in outs]

    world.engine.commit = lying  # type: ignore[assignment, method-assign]
    world.do(do.Submit(1, text=1, count=4, new=3))
    with pytest.raises(Found, match="oracle"):
        for _ in range(5):
            world.do(do.Step())


def test_lost_reuse_is_a_fault_where_memory_is_plenty() -> None:
    script = Script(Config(states=100, pages=400), [
        do.Submit(1, text=1, count=40, new=6), do.Step(12), do.Submit(2, 1, 46, 2, 9, 4), do.Step(8)])
    assert replay(script).found is None
    for mutant in ("nothing_is_reused", "answers_are_not_kept"):
        with BY_NAME[mutant].plant():
            found = replay(script).found
        assert found is not None and found.by == "floor"


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus(path: Path) -> None:
    """Scripts that showed a fault once: under its mutant they still do, and now it is gone."""
    script = load(path)
    assert script.note and script.mutant
    assert replay(script).found is None
    with BY_NAME[script.mutant].plant():
        assert replay(script).found is not None


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) >= 6
