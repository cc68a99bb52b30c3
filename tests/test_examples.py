"""The examples run, say what the README says they say, and the toy executor computes what its model defines."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import k3mem
from k3mem.replay.trace import BadTrace, load

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()


@cache
def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(name: str, *args: object) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_embedding_example_is_the_readme_s_and_prints_what_it_says() -> None:
    code = (EXAMPLES / "embed.py").read_text().split('"""', 2)[2].strip()
    assert code in README
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    lines = run("embed").splitlines()
    assert lines[0] == "step 1: 1 rows, 0 restored, 1 captured" and "\n".join(lines[8:10]) in README
    assert "hit=1007" in lines[8] and lines[9].endswith("1 restored, 0 captured")


@pytest.mark.parametrize("where", ["nowhere", "launch", "collect"])
@pytest.mark.parametrize("effect", list(k3mem.Effect))
def test_an_own_loop_gives_the_model_s_tokens_whatever_fails(where: str, effect: k3mem.Effect) -> None:
    executor, calls = toy(), {"launch": 0, "collect": 0}

    def failing(name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def wrapped(argument: Any) -> Any:
            calls[name] += 1
            if name == where and calls[name] in (3, 9, 10):
                raise k3mem.StepFailed(f"{name} {calls[name]}", effect)
            return call(argument)

        return wrapped

    executor.launch = failing("launch", executor.launch)  # type: ignore[method-assign]
    executor.collect = failing("collect", executor.collect)  # type: ignore[method-assign]
    engine = k3mem.Engine(toy_shape(), executor, 1 << 20, k3mem.Policy(token_budget=64))
    requests = [k3mem.Request(f"q{i}", [*range(90), i], max_new_tokens=20) for i in range(5)]
    outputs = example("own_loop").serve(engine, requests, abort={})
    assert outputs == {f"q{i}": reference([*range(90), i], 20) for i in range(5)}
    assert engine.stats()["failures"] == (0 if where == "nowhere" else 3)


def test_an_own_loop_aborts_and_shares_a_prefill() -> None:
    said = run("own_loop")
    assert "q3: 1 tokens, abort" in said and "3 waited for another's prefill" in said


def test_an_own_format_replays_and_names_what_is_wrong(tmp_path: Path) -> None:
    good = tmp_path / "trace.txt"
    good.write_text("a 40 8 1 2 3\nb 36 8 1 2 4\na 60 8 1 2 3 5\n")
    assert "3 requests, hit rate 0.0%" in run("own_format", good)  # the grid is 64 tokens: too short to be kept
    long = tmp_path / "long.txt"
    long.write_text("".join(f"a {n * 80} 8 {' '.join(map(str, range(n * 5)))}\n" for n in range(1, 6)))
    assert "5 requests, hit rate 5" in run("own_format", long)
    bad = tmp_path / "bad.txt"
    bad.write_text("a 40 8 1 2 3\na forty 8 1 2 3\n")
    with pytest.raises(BadTrace, match="bad.txt.*2.*forty"):
        example("own_format").load(bad)
    assert example("own_format").load(bad, skip_bad=True).skipped == 1


def test_an_own_format_says_what_it_wants_and_what_is_wrong(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("a forty 8 1 2 3\n")
    for args, said in (([], "usage: python"), ([str(bad)], f"{bad}:1: "), ([str(tmp_path / "none")], "No such file")):
        command = [sys.executable, str(EXAMPLES / "own_format.py"), *args]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "") and said in done.stderr
        assert "Traceback" not in done.stderr


def test_the_example_of_docs_formats_is_a_trace(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "formats.md").read_text().split("```")[1].strip()
    (tmp_path / "t.jsonl").write_text(text)
    trace = load(tmp_path / "t.jsonl")
    assert trace.format == "arrivals" and [turn.input for turn in trace.turns] == [210, 400]
    assert (trace.turns[0].prompt()[:192] == trace.turns[1].prompt()[:192]).all()


def test_links_between_the_documents_lead_somewhere() -> None:
    for path in (ROOT / "README.md", ROOT / "docs" / "design.md", ROOT / "docs" / "formats.md"):
        for target in re.findall(r"\]\((?!https:)([^)]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            there = path.parent / file if file else path
            assert there.exists(), f"{path.name}: {target}"
            titles = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            slugs = {re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not anchor or anchor in slugs, f"{path.name}: {target}"


# -- the toy executor


def toy_shape(page_tokens: int = 16) -> k3mem.Shape:
    return k3mem.Shape("toy", state_bytes=2048, token_bytes=16, page_tokens=page_tokens, state_chunk=16,
                       vocab_size=97, align=16)


def toy() -> k3mem.Executor:
    executor: k3mem.Executor = example("toy_executor").ToyExecutor()
    return executor


def reference(prompt: list[int], count: int, stops: tuple[int, ...] = ()) -> list[int]:
    """The toy model by its definition, without memory management."""
    out: list[int] = []
    while len(out) < count and not (out and out[-1] in stops):
        x = 0
        for token in prompt + out:
            x = (31 * x + token + 1) % 2**31
        out.append((x + sum(prompt + out)) % 97)
    return out


def conversations(seed: int, count: int) -> list[list[int]]:
    """Prompts that share, fork, repeat, and go on after the model's answer."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 97, 40).tolist()]
    while len(prompts) < count:
        base = prompts[int(rng.integers(len(prompts)))]
        turn = rng.integers(0, 97, rng.integers(1, 30)).tolist()
        goes_on = len(base) < 150 and rng.random() < 0.5
        prompts.append((base + reference(base, 12) if goes_on else base[: int(rng.integers(1, len(base) + 1))]) + turn)
    return prompts


@pytest.mark.parametrize("page_tokens", [1, 16])
@pytest.mark.parametrize("in_flight", [0, 1, 3])
@pytest.mark.parametrize("eager", [False, True])
def test_the_toy_executor_gives_the_model_s_tokens_whatever_memory_does(
        page_tokens: int, in_flight: int, eager: bool) -> None:
    policy = k3mem.Policy(token_budget=48, max_running=4, steps_in_flight=in_flight, eager=eager, interval=32)
    engine = k3mem.Engine(toy_shape(page_tokens), toy(), 24 << 10, policy)
    prompts = conversations(seed=page_tokens, count=60)
    outputs: dict[int, list[int]] = {i: [] for i in range(len(prompts))}
    reasons: dict[int, str | None] = {}
    for i, prompt in enumerate(prompts):
        engine.submit(k3mem.Request(i, prompt, max_new_tokens=12, sampling=k3mem.Sampling(stop_ids=(3, 4))))
        for out in engine.step():
            outputs[out.id] += out.tokens
            reasons[out.id] = out.reason
    for out in engine.run():
        outputs[out.id] += out.tokens
        reasons[out.id] = out.reason
    for i, prompt in enumerate(prompts):
        assert outputs[i] == reference(prompt, 12, (3, 4)), i
        assert reasons[i] == ("stop" if outputs[i][-1] in (3, 4) else "length")
    stats = engine.stats()
    assert stats["hit_tokens"] > 0 and stats["evicted"] > 0 and stats["move_count"] > 0
    engine.check()


@pytest.mark.parametrize("phase", ["moves", "zero_states", "page_copies", "restores", "snapshots", "page_table"])
def test_the_toy_executor_needs_every_phase(phase: str) -> None:
    executor = toy()
    launch = executor.launch

    def forgetful(plan: k3mem.Plan) -> Any:
        phases = {name: getattr(plan, name) for name in (phase, "snapshots")}
        result = launch(replace(plan, **{phase: phases[phase][:0]}))
        return replace(result, written=np.ones(len(phases["snapshots"]), np.bool_))

    executor.launch = forgetful  # type: ignore[method-assign]
    engine = k3mem.Engine(toy_shape(), executor, 24 << 10, k3mem.Policy(token_budget=48, max_running=4))
    outputs: dict[int, list[int]] = {}
    prompts = conversations(seed=5, count=60)
    for i, prompt in enumerate(prompts):
        engine.submit(k3mem.Request(i, prompt, max_new_tokens=12))
        for out in engine.run():
            outputs.setdefault(out.id, []).extend(out.tokens)
    assert any(outputs[i] != reference(prompt, 12) for i, prompt in enumerate(prompts))
