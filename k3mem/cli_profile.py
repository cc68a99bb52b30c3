"""`k3mem profile`: what verifying drafts costs on an executor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3mem.cli_parts import TP, ConfigFile, Page, ShapeName, cost_of, need_torch, open_bars, reported, shape_of

if TYPE_CHECKING:
    from k3mem.shape import Shape


def profile(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the surface goes, as JSON.")],
    executor: Annotated[str, typer.Option(help="Executor by its registered name.")] = "sim",
    window: Annotated[int, typer.Option(min=2, help="Largest window: 1 + drafts.")] = 8,
    rows: Annotated[str | None, typer.Option(
        help="Batches, separated by commas. (default: 1,4,16,64,256; with --model 1,4,16)")] = None,
    context: Annotated[str | None, typer.Option(
        help="Tokens of context of each row, separated by commas. (default: 0,4096; with --model 0,256)")] = None,
    repeat: Annotated[int | None, typer.Option(
        min=1, help="Steps a point; their median counts. (default: 1; with --model 9)")] = None,
    tolerance: Annotated[float | None, typer.Option(
        min=0.0, help="Share of a step's time that makes no riser. (default: 0.002; with --model 0.25)")] = None,
    model: Annotated[Path | None, typer.Option(
        metavar="DIR", help="torch_ref: config.json and safetensors; sizes are the model's.")] = None,
    cost: Annotated[Path | None, typer.Option(help="sim: cost model (TOML). (default: k3-tp8-nominal)")] = None,
    shape: ShapeName = None,
    config: ConfigFile = None,
    tp: TP = 8,
    page: Page = 64,
) -> None:
    """Measure what verifying drafts costs on an executor: the surface that a verify planner reads."""
    if cost is not None and executor != "sim":
        raise typer.BadParameter("needs --executor sim", param_hint="--cost")
    if (model is not None) != (executor == "torch_ref"):
        raise typer.BadParameter("goes with --executor torch_ref, and the other way round", param_hint="--model")
    if model is not None and (shape is not None or config is not None):
        raise typer.BadParameter("has its own sizes: leave out --shape and --config", param_hint="--model")
    real = model is not None
    batches = _counts(rows or ("1,4,16" if real else "1,4,16,64,256"), "--rows", 1)
    contexts = _counts(context or ("0,256" if real else "0,4096"), "--context", 0)
    with reported():
        from k3mem.profile import measure
        from k3mem.spec.surface import dump

        clock = time.perf_counter
        if model is None:
            geometry, make = shape_of(shape, config, tp, page), _maker(executor, cost)
        else:
            geometry, make = _of_model(model, page, window)
            clock = time.process_time  # one thread: nobody else's time counts
        with open_bars() as bars:
            found = measure(geometry, make, window=window, rows=batches, contexts=contexts,
                            repeat=repeat or (9 if real else 1), clock=clock, progress=bars("profile", None),
                            tolerance=(0.25 if real else 0.002) if tolerance is None else tolerance)
        text = dump(found.surface, executor=executor, shape=geometry.name, window=window, points=len(found.points),
                    residual_us=round(found.residual_us, 3))
        out.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"{out}: {len(found.surface.ends)} treads from {len(found.points)} points, at most "
                   f"{found.residual_us:.1f} us off", err=True)


def _of_model(folder: Path, page: int, window: int) -> tuple[Shape, Callable[[], Any]]:
    """A model's sizes, and what makes an executor of it."""
    need_torch()
    from k3mem.executors.torch_ref import Model, TorchExecutor

    model = Model.from_pretrained(folder)
    return model.shape(page, window), lambda: TorchExecutor(model, max_window=max(16, window))


def _maker(name: str, cost: Path | None) -> Callable[[], Any]:
    """What makes an executor of this name."""
    from k3mem.executor import find

    try:
        kind: Any = find(name)
    except LookupError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--executor") from error
    model = cost_of(cost) if name == "sim" else None
    return kind if model is None else lambda: kind(model)


def _counts(text: str, option: str, least: int) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers", param_hint=option) from error
    if min(counts) < least:
        raise typer.BadParameter(f"must be >= {least}", param_hint=option)
    return counts
