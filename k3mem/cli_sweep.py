"""`k3mem sweep`: many replays of one trace, and a report that shows them side by side."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from k3mem.cli_parts import (
    TP,
    Admission,
    Bars,
    Block,
    ConfigFile,
    JsonOut,
    Limit,
    Mode,
    Page,
    ShapeName,
    SkipBad,
    Tokenizer,
    block_is_used,
    fail,
    load_trace,
    open_bars,
    reported,
    size_of,
    write_json,
)

if TYPE_CHECKING:
    from k3mem.replay.sweep.cells import Cell, Inputs, Outcome
    from k3mem.replay.sweep.store import Store


WIDE = 200
"""Columns of what goes to a file or a pipe: no number is cut short."""
SAMPLES = 256
"""Of what the pool holds over a timed run: more cannot be told apart in a figure."""


def sweep(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Files of one format, plain or gzip.")],
    mode: Annotated[Mode, typer.Option(help="As for replay.")] = Mode.arrival,
    pool: Annotated[str, typer.Option(help="Pool sizes, with commas; 0 is unlimited.")] = "40GB,80GB,160GB",
    policy: Annotated[str | None, typer.Option(help="Eviction policies, with commas. (default: replay's)")] = None,
    concurrency: Annotated[str | None, typer.Option(help="timed: sessions at a time, with commas. "
                                                         "(default: 32)")] = None,
    admission: Annotated[str | None, typer.Option(help="timed: off, on, auto, with commas. (default: off)")] = None,
    admission_bound: Annotated[float | None, typer.Option(help="timed: seconds that a request is held at "
                                                               "most.")] = None,
    gap_cap: Annotated[float | None, typer.Option(help="timed: cut think times to this many seconds.")] = None,
    bound: Annotated[bool, typer.Option(help="arrival: the clairvoyant bound of each pool.")] = True,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. (default: one a core)")] = None,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster instead.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep cells as they come, and draw: cells.jsonl, "
                                                                 "report.html, figures as SVG.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Take finished cells of the same inputs, by the same code, "
                                                          "from --out.")] = False,
    plots: Annotated[bool, typer.Option(help="Draw figures (needs k3mem[plots]).")] = True,
    shape: ShapeName = None,
    config: ConfigFile = None,
    tp: TP = 8,
    page: Page = 64,
    cost: Annotated[Path | None, typer.Option(help="timed: cost model (TOML). (default: k3-tp8-nominal)")] = None,
    skip_bad: SkipBad = False,
    limit: Limit = None,
    tokenizer: Tokenizer = None,
    block: Block = None,
    seed: Annotated[int, typer.Option(help="Seed of whatever is drawn.")] = 0,
    json_out: JsonOut = None,
) -> None:
    """Replay a trace over pool sizes, concurrency and policies, in parallel, and draw what comes out."""
    timed = {"--concurrency": concurrency, "--admission": admission, "--admission-bound": admission_bound,
             "--gap-cap": gap_cap, "--cost": cost}
    for name, value in timed.items():
        if mode is Mode.arrival and value is not None:
            raise typer.BadParameter("needs --mode timed", param_hint=name)
    if resume and out is None:
        raise typer.BadParameter("needs --out", param_hint="--resume")
    if config is not None and shape is not None:
        raise typer.BadParameter("a name or a config, not both", param_hint="--config")
    pools = [size_of(text, "--pool") for text in _items(pool, "--pool")]
    many = [_count(text) for text in _items(concurrency or "32", "--concurrency")]
    held = [_admission(text) for text in _items(admission or "off", "--admission")]
    with reported():
        from k3mem.replay.options import ReplayOptions
        from k3mem.replay.sweep.cells import Inputs, grid
        from k3mem.replay.sweep.store import Store

        if out is not None and plots:
            from k3mem.replay.sweep.figures import need_matplotlib

            need_matplotlib()
        policies = _items(policy, "--policy") if policy is not None else [ReplayOptions().policy]
        inputs = Inputs(paths=tuple(str(path.resolve()) for path in traces), skip_bad=skip_bad, limit=limit,
                        tokenizer=_absolute(tokenizer), block=block, shape=shape or "kimi-k3",
                        config=_absolute(config), tp=tp, page=page, cost=_absolute(cost))
        cells = grid(mode.value, pools, policies, many, held, bound=bound, gap_cap=gap_cap, seed=seed,
                     series=SAMPLES if out is not None and plots else 0, admission_bound=admission_bound)
        with open_bars() as bars:
            trace = load_trace(traces, bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            block_is_used(trace, block)
            outcomes = _run(inputs, cells, bars, None if out is None else Store(out), resume=resume, ray=ray,
                            jobs=jobs or os.cpu_count() or 1)
        _publish(_data(inputs, trace.name, outcomes), out, plots, json_out)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if failed:
        fail("\n".join(f"failed: {outcome.cell.label}: {outcome.error}" for outcome in failed), 1)


def _run(inputs: Inputs, cells: list[Cell], bars: Bars, store: Store | None, *, resume: bool, ray: str | None,
         jobs: int) -> list[Outcome]:
    """The outcomes of all cells, in their order. An interrupt ends the run with exit code 130."""
    from k3mem.replay.sweep import workers

    digest = inputs.digest() if store is not None else ""
    by_key = {cell.key(digest): cell for cell in cells}
    found = {outcome.cell: outcome for outcome in store.finished(by_key).values()} if store and resume else {}
    left = [cell for cell in cells if cell not in found]
    keys = {cell: key for key, cell in by_key.items()}
    bar = bars("cells", len(cells))
    bar(len(found))
    if ray is not None:
        running = workers.on_ray(inputs, left, ray)
    elif jobs == 1 or len(left) <= 1:
        running = workers.here(inputs, left)
    else:
        running = workers.processes(inputs, left, jobs)
    try:
        with closing(running):
            for outcome in running:
                found[outcome.cell] = outcome
                if store is not None:
                    store.add(keys[outcome.cell], outcome)
                bar(len(found))
    except KeyboardInterrupt:
        kept = f" and kept in {store.path}; go on with --resume" if store is not None else "; nothing was kept"
        fail(f"interrupted: {len(found)} of {len(cells)} cells are done{kept}", 130)
    return [found[cell] for cell in cells]


def _data(inputs: Inputs, trace: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """The whole sweep, JSON-ready."""
    import platform
    from importlib.metadata import version

    return {
        "trace": trace, "shape": inputs.geometry().name, "page_tokens": inputs.page,
        "command": " ".join(["k3mem", *sys.argv[1:]]),
        "versions": {"k3mem": version("k3mem"), "python": platform.python_version(), "numpy": version("numpy")},
        "cost": {"name": inputs.cost_model().name, "hash": inputs.cost_model().hash},
        "cells": [outcome.as_dict() for outcome in outcomes],
    }


def _publish(data: dict[str, Any], out: Path | None, plots: bool, json_out: str | None) -> None:
    from rich.console import Console

    from k3mem.replay.sweep.page import table, write

    console = Console(stderr=write_json(data, json_out))
    if not console.is_terminal:
        console = Console(stderr=console.stderr, width=WIDE)
    console.print(f"trace {data['trace']} | shape {data['shape']} | {len(data['cells'])} cells", markup=False,
                  highlight=False, soft_wrap=True)
    console.print(table(data))
    if out is not None:
        for path in write(data, out, plots):
            console.print(str(path), markup=False, highlight=False, soft_wrap=True)


def _items(text: str, option: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise typer.BadParameter(f"{text!r} has an empty item; write values with commas", param_hint=option)
    return items


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is no number of sessions", param_hint="--concurrency")
    return int(text)


def _admission(text: str) -> Literal["off", "on", "auto"]:
    if text not in [one.value for one in Admission]:
        raise typer.BadParameter(f"{text!r} is not one of off, on, auto", param_hint="--admission")
    return cast(Literal["off", "on", "auto"], text)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())
