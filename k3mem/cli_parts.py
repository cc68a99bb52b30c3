"""What commands of the command line share: types of options, errors as exit codes, progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from k3mem.executors.cost import CostModel
    from k3mem.replay.trace import Trace
    from k3mem.shape import Shape

class Mode(str, Enum):
    arrival = "arrival"
    timed = "timed"


class Admission(str, Enum):
    off = "off"
    on = "on"
    auto = "auto"


ShapeName = Annotated[str | None, typer.Option("--shape", help="Model by name. (default: kimi-k3)")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Model by its Hugging Face config.json.")]
TP = Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks.")]
Page = Annotated[int, typer.Option("--page", help="Tokens a KV page, 1..512.")]
JsonOut = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON; - is stdout.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Count malformed lines and go on, instead of failing.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Read this many requests at most.")]
Tokenizer = Annotated[Path | None, typer.Option("--tokenizer", help="tokenizer.json, for text traces.")]
Block = Annotated[int | None, typer.Option("--block", min=1, help="Tokens a block, where the trace does not say.")]


@contextmanager
def reported(*wrong: type[Exception]) -> Iterator[None]:
    """Errors about the input end in exit code 2, failures of a run in 1, each with its message on stderr. Of plain
    exceptions only those in `wrong` are taken for errors about the input."""
    from k3mem.errors import K3MemError

    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        fail(f"{where}{error.strerror or error}", 2)
    except K3MemError as error:
        fail(str(error), 2 if isinstance(error, ValueError) else 1)
    except wrong as error:
        fail(str(error), 2)


def fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


def need_torch() -> None:
    """Fails with what to install where torch is not there."""
    from importlib.util import find_spec

    if not (find_spec("torch") and find_spec("safetensors")):
        fail("this command needs torch and safetensors: pip install 'k3mem[torch]'", 1)


def write_json(report: dict[str, Any], where: str | None) -> bool:
    """Write a report to a file, or to stdout for `-`; whether stdout is taken."""
    import json

    if where == "-":
        typer.echo(json.dumps(report, indent=2))
    elif where is not None:
        Path(where).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return where == "-"


def size_of(text: str, option: str) -> int:
    from k3mem.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def shape_of(name: str | None, config: Path | None, tp: int, page: int) -> Shape:
    from k3mem.shape import Shape

    if name is not None and config is not None:
        raise typer.BadParameter("a name or a config, not both", param_hint="--config")
    if config is not None:
        return Shape.from_config(config, tp, page_tokens=page)
    return Shape.preset(name or "kimi-k3", tp, page_tokens=page)


def cost_of(path: Path | None) -> CostModel:
    from k3mem.executors.cost import CostModel, nominal

    return nominal() if path is None else CostModel.load(path)


def load_trace(paths: list[Path], bars: Bars, *, skip_bad: bool, limit: int | None, tokenizer: Path | None,
          block: int | None) -> Trace:
    from k3mem.replay.trace import load

    trace = load(paths, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block, progress=bars("read", limit))
    if trace.skipped:
        lines = "1 bad line" if trace.skipped == 1 else f"{trace.skipped} bad lines; the first"
        typer.echo(f"skipped {lines}: {trace.problems[0]}", err=True)
    return trace


def block_is_used(trace: Trace, block: int | None) -> None:
    """Raises BadParameter for a `--block` that the trace overrules."""
    if block is not None and trace.block != block:
        unit = "gives token ids" if trace.block == 1 else f"states blocks of {trace.block} tokens"
        raise typer.BadParameter(f"{trace.name} {unit}; leave this option out", param_hint="--block")


Bars = Callable[[str, int | None], Callable[[int], None]]
"""(name, total) -> a function that is told how much is done."""


@contextmanager
def open_bars() -> Iterator[Bars]:
    """Progress bars on stderr, where it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def bar(name: str, total: int | None) -> Callable[[int], None]:
            task = progress.add_task(name, total=total)

            def done(count: int) -> None:
                progress.update(task, completed=count)

            return done

        yield bar


def as_progress(bar: Callable[[int], None]) -> Callable[[int, int], None]:
    """What a driver tells, told to a progress bar."""
    return lambda done, total: bar(done)
