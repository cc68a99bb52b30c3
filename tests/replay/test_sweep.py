"""Sweeps: cells are plain replays, failures stay alone, interrupts lose nothing, figures and pages stand alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from k3mem.cli import app
from k3mem.replay.options import BadOption
from k3mem.replay.sweep import workers
from k3mem.replay.sweep.cells import Cell, Inputs, Outcome, grid, run_cell
from k3mem.replay.sweep.page import columns, html
from k3mem.replay.sweep.store import Store
from k3mem.replay.synth import write_synth

GB = 10**9


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sweep") / "t.jsonl"
    write_synth(path, 5, 5, scale=0.1)
    return str(path)


@pytest.fixture
def inputs(trace: str) -> Inputs:
    return Inputs(paths=(trace,))


def replayed(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "wall_seconds"}


# -- cells


def test_a_cell_is_what_replay_gives(trace: str) -> None:
    got = call("sweep", trace, "--pool", "1GB,0", "--json", "-", "--jobs", "1")
    assert got.exit_code == 0, got.output
    cells = json.loads(got.stdout)["cells"]
    assert [(c["mode"], c["pool_bytes"]) for c in cells] == [("arrival", 0), ("arrival", GB), ("bound", GB)]
    for cell, pool in zip(cells, ("0", "1GB"), strict=False):
        alone = json.loads(call("replay", trace, "--pool", pool, "--json", "-").stdout)
        assert replayed(cell["report"]) == replayed(alone)
    bound = json.loads(call("bound", trace, "--pool", "1GB", "--json", "-").stdout)
    assert cells[2]["report"]["bound_tokens"] == bound["bound_tokens"]
    assert "a schedule reaches" in got.stderr


def test_a_timed_cell_is_what_replay_gives(trace: str) -> None:
    options = ["--mode", "timed", "--gap-cap", "5", "--limit", "60"]
    got = call("sweep", trace, *options, "--pool", "1GB", "--concurrency", "2,4", "--admission", "off,on",
               "--admission-bound", "90", "--json", "-", "--jobs", "1")
    assert got.exit_code == 0, got.output
    cells = json.loads(got.stdout)["cells"]
    assert [(c["concurrency"], c["admission"]) for c in cells] == [(2, "off"), (2, "on"), (4, "off"), (4, "on")]
    alone = call("replay", trace, *options, "--pool", "1GB", "--concurrency", "4", "--admission", "on",
                 "--admission-bound", "90", "--json", "-")
    assert replayed(cells[3]["report"]) == replayed(json.loads(alone.stdout))


def test_the_grid_has_every_combination_once() -> None:
    cells = grid("timed", [GB, 2 * GB, GB], ["a", "b", "a"], [4, 2], ["off", "auto"])
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 2
    assert len({cell.label for cell in cells}) == len({cell.key("x") for cell in cells}) == len(cells)
    assert [c.mode for c in grid("arrival", [GB, 0], ["a"])] == ["arrival", "arrival", "bound"]
    assert [c.mode for c in grid("arrival", [GB, 0], ["a"], bound=False)] == ["arrival", "arrival"]


def test_keys_name_contents_not_paths(inputs: Inputs, tmp_path: Path) -> None:
    copy = tmp_path / "t.jsonl"
    copy.write_bytes(Path(inputs.paths[0]).read_bytes())
    moved = Inputs(paths=(str(copy),))
    assert moved.digest() == inputs.digest()
    copy.write_bytes(copy.read_bytes() + b"\n")
    assert moved.digest() != inputs.digest()
    assert Inputs(paths=inputs.paths, tp=4).digest() != inputs.digest()
    cell = Cell(mode="arrival", pool_bytes=GB, policy="lru")
    assert cell.key("a") != cell.key("b")


# -- failures


def test_a_cell_that_fails_is_reported_and_the_rest_goes_on(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    got = call("sweep", trace, "--pool", "1MB,1GB", "--policy", "lru,psychic", "--no-bound", "--json", str(out),
               "--jobs", "1")
    assert got.exit_code == 1
    cells = json.loads(out.read_text())["cells"]
    assert [bool(cell["error"]) for cell in cells] == [False, True, True, True]
    assert "failed: lru, 1 MB: --pool 1 MB is too small" in got.stderr
    assert "failed: psychic, 1 GB: unknown policy 'psychic'" in got.stderr
    heads, rows, _ = columns({"cells": cells})
    assert len(rows[0]) == len(heads) and "unknown policy" in rows[1][-1]


def test_a_fault_of_ours_is_an_outcome_too(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("k3mem.replay.sweep.cells.run", broken)
    outcome = run_cell(inputs, Cell(mode="arrival", pool_bytes=GB, policy="lru"))
    assert (outcome.report, outcome.error) == (None, "ZeroDivisionError: no")


def deadly(inputs: Inputs, cell: Cell) -> Outcome:
    """In place of run_cell: some cells kill their process."""
    time.sleep(0.05)
    if cell.policy == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(cell, {"pid": os.getpid()})


def test_a_process_that_dies_costs_its_own_cell_alone(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "run_cell", deadly)
    cells = [Cell(mode="arrival", pool_bytes=GB + i, policy="deadly" if i == 2 else "lru") for i in range(6)]
    outcomes = list(workers.processes(inputs, cells, 2))
    assert sorted(outcome.cell.pool_bytes - GB for outcome in outcomes) == list(range(6))
    died = [outcome for outcome in outcomes if outcome.error is not None]
    assert [(o.cell.policy, o.error) for o in died] == [("deadly", "its process died (out of memory?)")]
    assert os.getpid() not in {o.report["pid"] for o in outcomes if o.report is not None}


def test_processes_give_the_same_as_this_one(inputs: Inputs) -> None:
    cells = grid("arrival", [GB, 2 * GB], ["lru"], bound=False)
    beside = {o.cell: o for o in workers.processes(inputs, cells, 2)}
    for alone in workers.here(inputs, cells):
        other = beside[alone.cell]
        assert alone.report is not None and other.report is not None
        assert replayed(alone.report) == replayed(other.report)


def test_closing_the_iterator_ends_the_processes(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "run_cell", sleepy)
    import multiprocessing

    cells = [Cell(mode="arrival", pool_bytes=GB + i, policy="first" if i == 0 else "slow") for i in range(3)]
    running = workers.processes(inputs, cells, 2)
    assert next(running).cell.policy == "first"
    ours = multiprocessing.active_children()
    assert ours
    running.close()
    for child in ours:
        child.join(20)
        assert child.exitcode is not None


def sleepy(inputs: Inputs, cell: Cell) -> Outcome:
    """In place of run_cell: one is quick, the others never end."""
    if cell.policy != "first":
        time.sleep(600)
    return Outcome(cell, {})


# -- what is kept


def test_resume_takes_finished_cells_and_runs_the_others(trace: str, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    args = ["sweep", trace, "--pool", "1GB,2GB", "--no-plots", "--out", str(out), "--jobs", "1", "--json", "-"]
    first = json.loads(call(*args).stdout)
    lines = (out / "cells.jsonl").read_text().splitlines()
    assert len(lines) == 4
    (out / "cells.jsonl").write_text(lines[0] + "\n" + lines[1] + "\n" + lines[2][:50])
    ran: list[Cell] = []

    def here(inputs: Inputs, cells: list[Cell]) -> Iterator[Outcome]:
        for cell in cells:
            ran.append(cell)
            yield run_cell(inputs, cell)

    monkeypatch.setattr(workers, "here", here)
    got = call(*args, "--resume")
    assert got.exit_code == 0, got.output
    assert [(cell.mode, cell.pool_bytes) for cell in ran] == [("bound", 2 * GB), ("bound", GB)]
    again = json.loads(got.stdout)
    assert [replayed(c["report"]) for c in again["cells"]] == [replayed(c["report"]) for c in first["cells"]]
    assert len((out / "cells.jsonl").read_text().splitlines()) == 5, "the broken line stays, and spoils no other"
    ran.clear()
    assert call(*args[:3], "1GB", *args[4:], "--resume").exit_code == 0 and ran == []
    assert call(*args[:3], "1GB", *args[4:], "--resume", "--limit", "20").exit_code == 0 and len(ran) == 2


def test_a_cell_that_failed_is_not_finished(tmp_path: Path) -> None:
    store, cell = Store(tmp_path / "a" / "b"), Cell(mode="arrival", pool_bytes=GB, policy="lru")
    store.add("k", Outcome(cell, None, "no"))
    assert store.finished({"k": cell}) == {}
    store.add("k", Outcome(cell, {"x": 1}, None, 2.0))
    assert store.finished({"k": cell}) == {"k": Outcome(cell, {"x": 1}, None, 2.0)}
    assert store.finished({"other": cell}) == {}


def test_an_interrupt_keeps_what_is_there(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(inputs: Inputs, cells: list[Cell]) -> Iterator[Outcome]:
        yield run_cell(inputs, cells[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "here", here)
    out = tmp_path / "out"
    got = call("sweep", trace, "--pool", "1GB,2GB", "--no-bound", "--no-plots", "--out", str(out), "--jobs", "1")
    assert got.exit_code == 130
    assert "interrupted: 1 of 2 cells are done and kept in" in got.stderr and "--resume" in got.stderr
    assert len((out / "cells.jsonl").read_text().splitlines()) == 1


# -- ray


class Ray:
    """A stand-in for the module: tasks run when they are asked for; one node is lost."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init(self, address: str) -> None:
        self.calls.append(("init", address))

    def remote(self, function: Any) -> Any:
        return SimpleNamespace(remote=lambda inputs, cell: (function, inputs, cell))

    def wait(self, refs: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        assert num_returns == 1
        return refs[-1:], refs[:-1]

    def get(self, ref: Any) -> Outcome:
        function, inputs, cell = ref
        if cell.pool_bytes == 2 * GB:
            raise ConnectionError("the node is gone")
        outcome: Outcome = function(inputs, cell)
        return outcome

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_ray_runs_a_task_a_cell(trace: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    got = call("sweep", trace, "--pool", "1GB,2GB", "--no-bound", "--ray", "ray://head:10001", "--json", "-")
    assert ray.calls == [("init", "ray://head:10001"), "shutdown"]
    cells = {cell["pool_bytes"]: cell for cell in json.loads(got.stdout)["cells"]}
    assert got.exit_code == 1 and cells[2 * GB]["error"] == "ConnectionError: the node is gone"
    alone = run_cell(inputs, Cell(mode="arrival", pool_bytes=GB, policy=cells[GB]["policy"]))
    assert alone.report is not None and replayed(cells[GB]["report"]) == replayed(alone.report)


def test_without_ray_it_says_so(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadOption, match="pip install ray"):
        list(workers.on_ray(inputs, [], "auto"))


# -- arguments


@pytest.mark.parametrize(("args", "reason"), [
    (["--pool", "1GB,,2GB"], "has an empty item"),
    (["--pool", "80"], "'80' has no unit"),
    (["--concurrency", "2"], "needs --mode timed"),
    (["--mode", "timed", "--concurrency", "0"], "'0' is no number of sessions"),
    (["--mode", "timed", "--admission", "maybe"], "'maybe' is not one of off, on, auto"),
    (["--resume"], "needs --out"),
    (["--shape", "kimi-k9", "--out", "x", "--no-plots"], "unknown shape 'kimi-k9'"),
])
def test_bad_arguments_exit_2_and_say_why(trace: str, args: list[str], reason: str, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    got = call("sweep", trace, *args)
    assert (got.exit_code, got.stdout) == (2, "") and reason in got.stderr


def test_a_bad_trace_ends_the_sweep_before_it_begins(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    got = call("sweep", str(bad))
    assert got.exit_code == 2 and "bad.jsonl" in got.stderr


# -- figures and pages


class Page(HTMLParser):
    """Tags, the text of table cells, and whatever would be loaded from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "data") and not (value or "").startswith("#"):
                self.outside.append(value or "")
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("td", "th"):
            self.cells[-1] += data


def read(path: Path) -> tuple[Page, str]:
    page, text = Page(), path.read_text()
    page.feed(text)
    return page, text


def test_a_sweep_of_pools_draws_hits_and_the_bound(trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need k3mem[plots]")
    out = tmp_path / "out"
    got = call("sweep", trace, "--pool", "1GB,2GB,0", "--out", str(out), "--jobs", "1", "--json",
               str(tmp_path / "s.json"))
    assert got.exit_code == 0, got.output
    assert sorted(path.name for path in out.iterdir()) == ["cells.jsonl", "hit-rate.svg", "report.html"]
    page, text = read(out / "report.html")
    assert page.tags.count("svg") == 1 and page.tags.count("table") == 2
    assert page.outside == [] and "script" not in page.tags and "link" not in page.tags and "@import" not in text
    assert "prefers-color-scheme: dark" in text and "currentColor" in text
    data = json.loads((tmp_path / "s.json").read_text())
    for cell in data["cells"]:
        rate = cell["report"].get("hit_rate", cell["report"].get("bound_hit_rate"))
        assert f"{rate:.2%}" in page.cells
    assert data["versions"]["k3mem"] in text and data["command"].split()[0] == "k3mem"
    figure = (out / "hit-rate.svg").read_text()
    assert figure.startswith("<?xml") and "currentColor" not in figure
    before = figure
    assert call("sweep", trace, "--pool", "1GB,2GB,0", "--out", str(out), "--jobs", "1", "--resume").exit_code == 0
    assert (out / "hit-rate.svg").read_text() == before, "the same cells give the same figure"


def test_a_timed_sweep_draws_recomputation_and_what_the_pool_holds(trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need k3mem[plots]")
    out = tmp_path / "out"
    got = call("sweep", trace, "--mode", "timed", "--pool", "1GB", "--concurrency", "2,4", "--admission", "off,on",
               "--gap-cap", "5", "--limit", "80", "--out", str(out), "--jobs", "1")
    assert got.exit_code == 0, got.output
    names = sorted(path.name for path in out.glob("*.svg"))
    assert names == ["pool-1.svg", "pool-2.svg", "recomputed.svg"]
    page, text = read(out / "report.html")
    assert page.tags.count("svg") == 3
    figures = [name for name in page.ids if name]
    assert len(figures) == len(set(figures)), "figures of one page share no id"
    used = set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', text))
    assert used and used <= set(figures)


def test_figures_keep_legends_off_the_data_and_name_their_units() -> None:
    pytest.importorskip("matplotlib", reason="figures need k3mem[plots]")
    from k3mem.replay.sweep.figures import draw

    def cell(policy: str, pool: int, rate: float) -> dict[str, Any]:
        return {"mode": "arrival", "policy": policy, "pool_bytes": pool, "concurrency": None, "admission": None,
                "error": None, "report": {"hit_rate": rate}}

    cells = [cell(policy, pool * GB, 0.1 * pool ** 0.5) for policy in ("lru", "other") for pool in (10, 20, 40, 41, 80)]
    bounds = [{**cell("", pool * GB, 0), "mode": "bound",
               "report": {"bound_hit_rate": 0.9, "feasible_hit_rate": 0.88}} for pool in (10, 80)]
    (drawing,) = draw({"trace": "t", "cells": [*cells, *bounds]})
    figure = drawing.figure
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_xlabel() == "pool (GB)" and axes.get_ylabel() == "prompt tokens that hit (%)"
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["10", "20", "40", "80"], "41 would touch 40"
    legend = axes.get_legend()
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert [text.get_text() for text in legend.get_texts()] == ["no schedule beats", "a schedule reaches", "lru",
                                                                "other"]


def test_without_matplotlib_nothing_runs_and_it_says_what_to_do(trace: str, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    got = call("sweep", trace, "--out", str(tmp_path / "out"))
    assert got.exit_code == 2 and "pip install 'k3mem[plots]'" in got.stderr
    assert not (tmp_path / "out").exists()
    got = call("sweep", trace, "--pool", "1GB", "--no-plots", "--out", str(tmp_path / "out"), "--jobs", "1")
    assert got.exit_code == 0 and (tmp_path / "out" / "report.html").exists()


def test_what_a_page_quotes_is_escaped() -> None:
    data = {"trace": "<b>", "shape": "s", "page_tokens": 64, "command": "k3mem sweep '<i>&'",
            "versions": {"k3mem": "1"}, "cost": {"name": "c", "hash": "h"},
            "cells": [{"mode": "timed", "policy": "<u>", "pool_bytes": 0, "concurrency": 2, "admission": "off",
                       "report": None, "error": "a < b", "cpu_seconds": 0.0}]}
    page = Page()
    page.feed(html(data, []))
    assert {"b", "i", "u"}.isdisjoint(page.tags)
    cells = [cell.strip() for cell in page.cells]
    assert "failed: a < b" in cells and "no limit" in cells


def test_the_command_line_says_nothing_of_figures_until_they_are_asked_for() -> None:
    code = ("import sys, k3mem.cli; late = ['matplotlib', 'k3mem.replay.sweep.cells', 'concurrent.futures.process']; "
            "sys.exit(' '.join(m for m in late if m in sys.modules) or 0)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
