"""The command line: arguments, sizes, where output goes, exit codes. Drivers and traces are stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from k3mem.cli import app
from k3mem.errors import Corrupted, K3MemError
from k3mem.executors.cost import NOMINAL, nominal
from k3mem.replay.options import BadOption, ReplayOptions

STATS = {"requests": 2, "input_tokens": 100, "hit_tokens": 64}


class Bad(K3MemError, ValueError):
    pass


class World:
    """Stand-ins for the trace loader and the drivers; keeps what they were called with."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.ran: tuple[Any, ...] = ()
        self.driver = ""
        self.fail: Exception | None = None
        self.trace = SimpleNamespace(name="t", turns=[1, 2], block=32, skipped=0, problems=[])

    def load(self, paths: list[Path], **options: Any) -> Any:
        options["progress"](1)
        self.loaded = {"paths": paths, **options}
        if self.fail:
            raise self.fail
        return self.trace

    def run(self, name: str) -> Callable[..., dict[str, Any]]:
        def driver(*args: Any) -> dict[str, Any]:
            self.driver, self.ran = name, args
            args[3](1, 2)
            return STATS

        return driver

    @property
    def options(self) -> ReplayOptions:
        options = self.ran[2]
        assert isinstance(options, ReplayOptions)
        return options


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    for name, module in {
        "trace": SimpleNamespace(load=world.load),
        "arrival": SimpleNamespace(run_arrival=world.run("arrival")),
        "timed": SimpleNamespace(run_timed=world.run("timed")),
    }.items():
        monkeypatch.setitem(sys.modules, f"k3mem.replay.{name}", module)
    return world


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_replay_defaults(world: World) -> None:
    got = call("replay", "a.jsonl", "b.jsonl")
    assert got.exit_code == 0, got.output
    assert world.driver == "arrival"
    assert world.options == ReplayOptions()
    assert world.ran[1].name == "kimi-k3-tp8"
    assert world.loaded["paths"] == [Path("a.jsonl"), Path("b.jsonl")]
    assert (world.loaded["skip_bad"], world.loaded["limit"]) == (False, None)
    assert "64 (64.00%)" in got.stdout


def test_replay_passes_every_option(world: World, tmp_path: Path) -> None:
    cost = tmp_path / "c.toml"
    cost.write_text(NOMINAL.read_text().replace("14.0", "15.0"))
    got = call("replay", "t", "--mode", "timed", "--loop", "closed", "--concurrency", "4", "--gap-cap", "30",
               "--pool", "40GiB", "--split", "0.25", "--page", "16", "--policy", "density", "--shape",
               "kimi-linear-48b", "--tp", "2", "--cost", str(cost), "--skip-bad", "--limit", "7", "--seed", "3",
               "--admission", "auto", "--admission-bound", "60", "--no-fast-forward", "--tokenizer", "tok.json",
               "--block", "32")
    assert got.exit_code == 0, got.output
    assert world.driver == "timed"
    o = world.options
    assert (o.mode, o.loop, o.concurrency, o.gap_cap) == ("timed", "closed", 4, 30.0)
    assert (o.pool_bytes, o.split) == (40 << 30, 0.25)
    assert (o.page_tokens, o.policy, o.limit, o.seed, o.fast_forward) == (16, "density", 7, 3, False)
    assert (o.admission, o.admission_bound) == ("auto", 60.0)
    assert o.cost is not None and o.cost.row == 15.0
    assert (world.ran[1].name, world.ran[1].page_tokens) == ("kimi-linear-48b-tp2", 16)
    assert (world.loaded["skip_bad"], world.loaded["limit"], world.loaded["block"]) == (True, 7, 32)
    assert world.loaded["tokenizer"] == Path("tok.json")


def test_json_dash_leaves_nothing_else_on_stdout(world: World) -> None:
    world.trace.skipped, world.trace.problems = 1, [Bad("t:3: no")]
    got = call("replay", "t", "--mode", "timed", "--json", "-")
    assert got.exit_code == 0
    data = json.loads(got.stdout)
    assert (data["hit_rate"], data["trace"], data["mode"], data["pool_bytes"]) == (0.64, "t", "timed", 80 * 10**9)
    assert data["cost"] == {"name": "k3-tp8-nominal", "hash": nominal().hash}
    assert data["wall_seconds"] >= 0
    assert "hit tokens" in got.stderr
    assert "skipped 1 bad line: t:3: no\n" in got.stderr


def test_json_file_holds_the_report_and_stdout_the_tables(world: World, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    got = call("replay", "t", "--json", str(path))
    assert json.loads(path.read_text())["hit_tokens"] == 64
    assert "hit tokens" in got.stdout


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--pool", "80"], "'80' has no unit"),
        (["--pool", "much"], "'much' is not a size"),
        (["--mode", "slow"], "slow"),
        (["--loop", "open"], "needs --mode timed"),
        (["--cost", "x.toml"], "needs --mode timed"),
        (["--gap-cap", "1"], "needs --mode timed"),
        (["--admission", "on"], "needs --mode timed"),
        (["--mode", "timed", "--admission-bound", "5"], "needs --admission on or auto"),
        (["--mode", "timed", "--admission", "on", "--admission-bound", "-1"], "admission bound must be >= 0 seconds"),
        (["--mode", "timed", "--loop", "open", "--concurrency", "3"], "needs --loop closed"),
        (["--shape", "kimi-k9"], "unknown shape 'kimi-k9'"),
        (["--shape", "kimi-k3", "--config", "c.json"], "not both"),
        (["--config", "absent.json"], "absent.json: No such file"),
        (["--tp", "7"], "tp=7 does not divide 96 state heads"),
        (["--page", "0"], "page_tokens must be 1..512"),
        (["--split", "1.5"], "split must be between 0 and 1"),
        (["--limit", "0"], "limit must be >= 1"),
        (["--pool", "1MB"], "--pool 1 MB is too small for kimi-k3-tp8: give at least 57940992B"),
        (["--split", "0.0001"], "--split 0.0001 leaves 0 bytes for states, one needs 56171520: choose another split"),
        (["--split", "0.999", "--pool", "2GB"], "leaves 288469 bytes for pages, one needs 1769472"),
        (["--mode", "timed", "--cost", "absent.toml"], "absent.toml: No such file"),
        (["--block", "64"], "t states blocks of 32 tokens; leave this option out"),
        (["--block", "0"], "--block"),
        (["--nonsense"], "No such option"),
        (["--json", "absent/r.json"], "absent/r.json: No such file"),
    ],
)
def test_bad_arguments_exit_2_and_say_why(world: World, args: list[str], reason: str) -> None:
    got = call("replay", "t", *args)
    assert got.exit_code == 2
    assert reason in got.stderr
    assert got.stdout == ""


def test_bad_trace_exits_2_with_file_and_line(world: World) -> None:
    world.fail = Bad("t.jsonl:12: input_length is negative")
    got = call("replay", "t.jsonl", "--json", "-")
    assert (got.exit_code, got.stdout, got.stderr) == (2, "", "t.jsonl:12: input_length is negative\n")
    world.fail = FileNotFoundError(2, "No such file or directory", "t.jsonl")
    got = call("replay", "t.jsonl")
    assert (got.exit_code, got.stderr) == (2, "t.jsonl: No such file or directory\n")


@pytest.mark.parametrize(("error", "code"), [(BadOption("no policy 'x'; known: lru"), 2), (Corrupted("broken"), 1)])
def test_a_driver_that_fails(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int) -> None:
    def run(*_: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setitem(sys.modules, "k3mem.replay.arrival", SimpleNamespace(run_arrival=run))
    got = call("replay", "t")
    assert (got.exit_code, got.stderr) == (code, f"{error}\n")


def test_convert(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[Any] = []

    def convert(trace: Any, out: Path, format: str, *, block: int | None) -> None:
        if format == "arrivals":
            raise ValueError("no blocks to write")
        written.extend((trace, out, format, block))

    monkeypatch.setitem(sys.modules, "k3mem.replay.convert", SimpleNamespace(convert=convert))
    got = call("trace", "convert", "in", "out.gz", "--format", "mooncake", "--block", "16")
    assert got.exit_code == 0, got.output
    assert written == [world.trace, Path("out.gz"), "mooncake", 16]
    assert got.stderr == "out.gz: 2 requests\n"
    got = call("trace", "convert", "in", "out", "--format", "arrivals")
    assert (got.exit_code, got.stderr) == (2, "no blocks to write\n")
    assert call("trace", "convert", "in", "out").exit_code == 2
    assert call("trace", "convert", "in", "out", "--format", "csv").exit_code == 2


def test_convert_refuses_its_own_input(tmp_path: Path) -> None:
    trace, link = tmp_path / "t.jsonl", tmp_path / "link.jsonl"
    assert call("trace", "synth", str(trace), "--sessions", "1", "--scale", "0.01").exit_code == 0
    link.symlink_to(trace)
    before = trace.read_bytes()
    for target in (trace, link):
        got = call("trace", "convert", str(trace), str(target), "--format", "tokens")
        assert got.exit_code == 2 and "is the file to convert" in got.stderr
    assert trace.read_bytes() == before


def test_a_block_that_the_trace_overrules_is_refused(tmp_path: Path) -> None:
    trace, ids, out = (str(tmp_path / name) for name in ("t.jsonl", "ids.jsonl", "out.jsonl"))
    assert call("trace", "synth", trace, "--sessions", "1", "--scale", "0.01").exit_code == 0
    assert call("trace", "convert", trace, ids, "--format", "tokens", "--block", "64").exit_code == 0
    got = call("trace", "convert", trace, out, "--format", "arrivals", "--block", "32")
    assert got.exit_code == 2 and "t.jsonl states blocks of 64 tokens" in got.stderr
    got = call("replay", ids, "--block", "64")
    assert got.exit_code == 2 and "ids.jsonl gives token ids" in got.stderr
    assert not Path(out).exists()
    assert call("trace", "convert", trace, out, "--format", "mooncake", "--block", "128").exit_code == 0
    assert call("replay", out, "--block", "128", "--pool", "0").exit_code == 0


def test_requests_that_can_never_fit_are_warned_of(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps({"prompt": list(range(n)), "output_len": 4}) + "\n" for n in (100, 9000, 9001)))
    got = call("replay", str(trace), "--mode", "timed", "--pool", "100MB", "--json", "-")
    assert got.exit_code == 0 and json.loads(got.stdout)["rejected"] == 2
    assert "warning: 2 of 3 requests can never fit this pool and were rejected\n" in got.stderr
    assert "trace t.jsonl | shape kimi-k3-tp8 | mode timed, closed loop | pool 100 MB | split none" in got.stderr
    got = call("replay", str(trace), "--mode", "timed")
    assert got.exit_code == 0 and "warning" not in got.stderr


def test_synth(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def write_synth(path: Path, seed: int, sessions: int, *, scale: float, mix: str) -> Any:
        made.append((path, seed, sessions, scale, mix))
        return SimpleNamespace(turns=[1])

    monkeypatch.setitem(sys.modules, "k3mem.replay.synth", SimpleNamespace(write_synth=write_synth))
    assert call("trace", "synth", "o", "--sessions", "5", "--seed", "9", "--scale", "0.1", "--flip").exit_code == 0
    assert call("trace", "synth", "o").exit_code == 0
    assert made == [(Path("o"), 9, 5, 0.1, "flip"), (Path("o"), 0, 100, 1.0, "agent")]
    assert call("trace", "synth", "o", "--sessions", "0").exit_code == 2


def test_shape() -> None:
    got = call("shape", "kimi-k3", "--tp", "8")
    assert "56,171,520" in got.stdout and "27,648" in got.stdout
    data = json.loads(call("shape", "--tp", "8", "--page", "16", "--json", "-").stdout)
    assert (data["state_bytes"], data["page_bytes"], data["tokens_a_state"]) == (56_171_520, 16 * 27_648, 2031.67)
    got = call("shape", "kimi-k3", "--tp", "5")
    assert got.exit_code == 2
    assert "use a tp that does" in got.stderr


def test_version() -> None:
    got = call("version")
    assert got.exit_code == 0
    assert got.stdout.strip().count(".") == 2
    assert call("--version").stdout == got.stdout


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "k3mem", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, call("version").stdout)


def test_import_is_lazy() -> None:
    code = ("import sys, k3mem.cli; late = ['k3mem.replay.report', 'k3mem.replay.trace', 'k3mem.executors.cost', "
            "'k3mem.replay.timed', 'rich.progress']; sys.exit(' '.join(m for m in late if m in sys.modules) or 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_that_reports_writes_json(tmp_path: Path) -> None:
    trace, report = tmp_path / "t.jsonl", tmp_path / "r.json"
    made = call("trace", "synth", str(trace), "--sessions", "2", "--scale", "0.01", "--json", "-")
    summary = json.loads(made.stdout)
    assert call("trace", "convert", str(trace), str(tmp_path / "u.jsonl"), "--format", "tokens", "--json",
                str(report)).exit_code == 0
    assert json.loads(report.read_text())["input_tokens"] == summary["input_tokens"] > 0
