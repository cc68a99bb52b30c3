"""`k3mem profile`: what verifying drafts costs on an executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from k3mem.cli_parts import TP, ConfigFile, Page, ShapeName, cost_of, open_bars, reported, shape_of


def profile(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the surface goes, as JSON.")],
    executor: Annotated[str, typer.Option(help="Executor by its registered name.")] = "sim",
    window: Annotated[int, typer.Option(min=2, help="Largest window: 1 + drafts.")] = 8,
    rows: Annotated[str, typer.Option(help="Batches, separated by commas.")] = "1,4,16,64,256",
    context: Annotated[str, typer.Option(help="Tokens of context of each row, separated by commas.")] = "0,4096",
    repeat: Annotated[int, typer.Option(min=1, help="Steps a point; their median counts.")] = 1,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Share of a step's time that makes no riser.")] = 0.002,
    cost: Annotated[Path | None, typer.Option(help="sim: cost model (TOML). (default: k3-tp8-nominal)")] = None,
    shape: ShapeName = None,
    config: ConfigFile = None,
    tp: TP = 8,
    page: Page = 64,
) -> None:
    """Measure what verifying drafts costs on an executor: the surface that a verify planner reads."""
    if cost is not None and executor != "sim":
        raise typer.BadParameter("needs --executor sim", param_hint="--cost")
    batches, contexts = _counts(rows, "--rows", 1), _counts(context, "--context", 0)
    with reported():
        from k3mem.profile import measure
        from k3mem.spec.surface import dump

        geometry, make = shape_of(shape, config, tp, page), _maker(executor, cost)
        with open_bars() as bars:
            found = measure(geometry, make, window=window, rows=batches, contexts=contexts, repeat=repeat,
                            tolerance=tolerance, progress=bars("profile", None))
        text = dump(found.surface, executor=executor, shape=geometry.name, window=window, points=len(found.points),
                    residual_us=round(found.residual_us, 3))
        out.write_text(text + "\n", encoding="utf-8")
        typer.echo(f"{out}: {len(found.surface.ends)} treads from {len(found.points)} points, at most "
                   f"{found.residual_us:.1f} us off", err=True)


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
