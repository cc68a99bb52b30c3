"""The command line. Exit codes: 0 done, 1 the run failed, 2 the input or the arguments are wrong.

Results go to stdout; progress, warnings and errors to stderr. With `--json -` stdout holds the JSON alone. Whatever a
command needs is imported when it runs, so that `k3mem --help` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from k3mem.executors.cost import CostModel
    from k3mem.replay.options import ReplayOptions
    from k3mem.replay.trace import Trace
    from k3mem.shape import Shape

app = typer.Typer(name="k3mem", no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
trace_app = typer.Typer(no_args_is_help=True, help="Make and convert traces.")
app.add_typer(trace_app, name="trace")


class Mode(str, Enum):
    arrival = "arrival"
    timed = "timed"


class Loop(str, Enum):
    open = "open"
    closed = "closed"


class Admission(str, Enum):
    off = "off"
    on = "on"
    auto = "auto"


class FileFormat(str, Enum):
    tokens = "tokens"
    arrivals = "arrivals"
    mooncake = "mooncake"


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True,
                                       help="Print the version.")] = False,
) -> None:
    """Memory and scheduling for hybrid linear-attention language models."""


@app.command("fuzz", context_settings={"allow_extra_args": True, "ignore_unknown_options": True,
                                       "help_option_names": []}, add_help_option=False)
def fuzz_command(context: typer.Context) -> None:
    """Attack the core: random worlds, planted bugs, small scope, races."""
    from k3mem.fuzz.cli import app as fuzz_app

    fuzz_app(context.args, prog_name="k3mem fuzz")


def main() -> None:
    """Entry point of the `k3mem` script."""
    app()


# -- replay

ShapeName = Annotated[str | None, typer.Option("--shape", help="Model by name. (default: kimi-k3)")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Model by its Hugging Face config.json.")]
TP = Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks.")]
Page = Annotated[int, typer.Option("--page", help="Tokens a KV page, 1..512.")]
JsonOut = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the report as JSON; - is stdout.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Count malformed lines and go on, instead of failing.")]
Limit = Annotated[int | None, typer.Option("--limit", help="Read this many requests at most.")]
Tokenizer = Annotated[Path | None, typer.Option("--tokenizer", help="tokenizer.json, for text traces.")]
Block = Annotated[int | None, typer.Option("--block", min=1, help="Tokens a block, where the trace does not say.")]


@app.command()
def replay(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Files of one format, plain or gzip.")],
    mode: Annotated[Mode, typer.Option(help="arrival: one request after another, no clock. "
                                            "timed: the scheduler on a virtual clock.")] = Mode.arrival,
    loop: Annotated[Loop | None, typer.Option(help="timed: send at the trace's arrivals, or each turn after the "
                                                   "answer before it. (default: closed)")] = None,
    concurrency: Annotated[int | None, typer.Option(help="timed, closed: streams at a time. (default: 32)")] = None,
    gap_cap: Annotated[float | None, typer.Option(help="timed: cut think times to this many seconds.")] = None,
    pool: Annotated[str, typer.Option(help="Bytes for pages and states: 80GB, 40GiB, 512MB; 0 is unlimited.")] = "80GB",
    split: Annotated[float | None, typer.Option(help="Share of a fixed pool for states. (default: one arena)")] = None,
    page: Page = 64,
    policy: Annotated[str, typer.Option(help="Eviction policy.")] = "lru",
    admission: Annotated[Admission | None, typer.Option(
        help="timed: hold back new sessions while the active ones fill the pool; auto: only while that helps. "
             "(default: off)")] = None,
    admission_bound: Annotated[float | None, typer.Option(help="timed: seconds that a request is held at most. "
                                                               "(default: 1800)")] = None,
    shape: ShapeName = None,
    config: ConfigFile = None,
    tp: TP = 8,
    cost: Annotated[Path | None, typer.Option(help="timed: cost model (TOML). (default: k3-tp8-nominal)")] = None,
    skip_bad: SkipBad = False,
    limit: Limit = None,
    tokenizer: Tokenizer = None,
    block: Block = None,
    seed: Annotated[int, typer.Option(help="Seed of whatever is drawn.")] = 0,
    fast_forward: Annotated[bool, typer.Option(help="timed: run identical decode steps at once; same report.")] = True,
    bound: Annotated[bool, typer.Option("--bound", help="arrival: beside it the clairvoyant bound, LRU, and the share "
                                                        "of the gap between them that the policy closes.")] = False,
    json_out: JsonOut = None,
) -> None:
    """Replay a trace through the memory core and report what was reused, and why not more."""
    if bound and mode is not Mode.arrival:
        raise typer.BadParameter("needs --mode arrival", param_hint="--bound")
    if mode is Mode.arrival:
        for name, value in (("--loop", loop), ("--concurrency", concurrency), ("--gap-cap", gap_cap), ("--cost", cost),
                            ("--admission", admission), ("--admission-bound", admission_bound)):
            if value is not None:
                raise typer.BadParameter("needs --mode timed", param_hint=name)
    if admission_bound is not None and admission in (None, Admission.off):
        raise typer.BadParameter("needs --admission on or auto", param_hint="--admission-bound")
    if loop is Loop.open and concurrency is not None:
        raise typer.BadParameter("needs --loop closed", param_hint="--concurrency")
    pool_bytes = _size(pool, "--pool")
    with _reported():
        from k3mem.replay.options import ReplayOptions

        model = _cost(cost) if mode is Mode.timed else None
        geometry = _shape(shape, config, tp, page)
        chosen: dict[str, Any] = {"loop": None if loop is None else loop.value, "concurrency": concurrency,
                                  "admission": None if admission is None else admission.value,
                                  "admission_bound": admission_bound}
        options = ReplayOptions(
            mode=mode.value, gap_cap=gap_cap, pool_bytes=pool_bytes, split=split, page_tokens=page, policy=policy,
            cost=model, limit=limit, seed=seed, fast_forward=fast_forward,
            **{key: value for key, value in chosen.items() if value is not None},
        )
        options.check_fit(geometry)
        with _bars() as bars:
            trace = _load(traces, bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            _block_is_used(trace, block)
            stats = _run(trace, geometry, options, bars("replay", len(trace.turns)))
            if bound:
                from k3mem.replay.bound import against_bound

                stats |= against_bound(trace, geometry, options, stats, lambda name: _progress(bars(name, None)))
        _publish(stats, json_out)


@app.command("bound")
def bound_command(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Files of one format, plain or gzip.")],
    pool: Annotated[str, typer.Option(help="Bytes for pages and states: 80GB, 40GiB, 512MB; 0 is unlimited.")] = "80GB",
    page: Page = 64,
    shape: ShapeName = None,
    config: ConfigFile = None,
    tp: TP = 8,
    belady: Annotated[bool, typer.Option("--belady", help="Also replay Belady's rule: the checkpoint whose next use "
                                                          "is farthest goes first.")] = False,
    skip_bad: SkipBad = False,
    limit: Limit = None,
    tokenizer: Tokenizer = None,
    block: Block = None,
    json_out: JsonOut = None,
) -> None:
    """Bound the hit rate of any eviction schedule at this pool, and find one that comes close."""
    pool_bytes = _size(pool, "--pool")
    with _reported():
        from k3mem.replay.bound import grid_of, run_belady, run_bound, visits
        from k3mem.replay.options import ReplayOptions

        geometry = _shape(shape, config, tp, page)
        options = ReplayOptions(pool_bytes=pool_bytes, page_tokens=page, limit=limit)
        options.check_fit(geometry)
        with _bars() as bars:
            trace = _load(traces, bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            _block_is_used(trace, block)
            found = run_bound(trace, geometry, options, _progress(bars("bound", None)))
            if belady:
                seen = visits(trace, grid_of(trace, geometry), limit)
                hit = run_belady(trace, geometry, options, seen, _progress(bars("belady", len(trace.turns))))
                found |= {"belady_tokens": hit, "belady_hit_rate": hit / found["input_tokens"]}
        report = {"trace": trace.name, "skipped": trace.skipped, "shape": geometry.name, "pool_bytes": pool_bytes,
                  "page_tokens": page, **found}
        if not _write_json(report, json_out):
            _print_bound(report)


def _print_bound(report: dict[str, Any]) -> None:
    from rich.console import Console

    from k3mem.replay.report import bound_table, header

    console = Console()
    console.print(header(report), markup=False, highlight=False, soft_wrap=True)
    console.print(bound_table(report))


def _progress(bar: Callable[[int], None]) -> Callable[[int, int], None]:
    """What a driver tells, told to a progress bar."""
    return lambda done, total: bar(done)


def _run(trace: Trace, shape: Shape, options: ReplayOptions, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run the driver; its statistics, with what was asked for beside them."""
    import time

    def on_progress(done: int, total: int) -> None:
        progress(done)

    began = time.perf_counter()
    if options.mode == "timed":
        from k3mem.replay.timed import run_timed as driver
    else:
        from k3mem.replay.arrival import run_arrival as driver
    stats = dict(driver(trace, shape, options, on_progress))
    stats.setdefault("wall_seconds", time.perf_counter() - began)
    stats |= {"trace": trace.name, "skipped": trace.skipped, "mode": options.mode, "shape": shape.name,
              "pool_bytes": options.pool_bytes, "split": options.split, "page_tokens": options.page_tokens,
              "policy": options.policy, "seed": options.seed}
    if options.cost is not None:
        stats.setdefault("loop", options.loop)
        stats["admission_mode"] = options.admission
        stats.setdefault("cost", {"name": options.cost.name, "hash": options.cost.hash})
    if stats.get("rejected"):
        typer.echo(f"warning: {stats['rejected']} of {len(trace.turns)} requests can never fit this pool and were "
                   "rejected", err=True)
    return stats


def _publish(stats: dict[str, Any], json_out: str | None) -> None:
    from rich.console import Console

    from k3mem.replay.report import build, header, tables, to_json

    report = build(stats)
    if json_out == "-":
        typer.echo(to_json(report))
    elif json_out is not None:
        Path(json_out).write_text(to_json(report) + "\n", encoding="utf-8")
    console = Console(stderr=json_out == "-")
    console.print(header(report), markup=False, highlight=False, soft_wrap=True)
    for table in tables(report):
        console.print(table)


# -- trace


@trace_app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="gzip if the name ends in .gz.")],
    format: Annotated[FileFormat, typer.Option(help="tokens: ids; arrivals: block deltas; mooncake: block hashes.")],
    block: Annotated[int | None, typer.Option(min=1, help="Tokens a block, where the trace does not say; with --format "
                                                          "mooncake also those to write.")] = None,
    skip_bad: SkipBad = False,
    limit: Limit = None,
    tokenizer: Tokenizer = None,
    json_out: JsonOut = None,
) -> None:
    """Write a trace in another format."""
    with _reported(ValueError):
        from k3mem.replay.convert import convert as write

        if target.exists() and source.exists() and target.samefile(source):
            raise typer.BadParameter("is the file to convert; name another", param_hint="OUT")
        with _bars() as bars:
            trace = _load([source], bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            if format is not FileFormat.mooncake:  # whose own blocks it sizes
                _block_is_used(trace, block)
            write(trace, target, format.value, block=block)
        typer.echo(f"{target}: {len(trace.turns)} requests", err=True)
        if json_out is not None:
            _write_json(trace.summary(), json_out)


@trace_app.command()
def synth(
    target: Annotated[Path, typer.Argument(metavar="OUT", help="gzip if the name ends in .gz.")],
    sessions: Annotated[int, typer.Option(help="Agent sessions.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    scale: Annotated[float, typer.Option(help="Factor on all lengths.")] = 1.0,
    flip: Annotated[bool, typer.Option("--flip", help="Turn half-way from many short to few long sessions.")] = False,
    json_out: JsonOut = None,
) -> None:
    """Make a trace of agent sessions from a seed."""
    with _reported(ValueError):
        from k3mem.replay.synth import write_synth

        trace = write_synth(target, seed, sessions, scale=scale, mix="flip" if flip else "agent")
        typer.echo(f"{target}: {len(trace.turns)} requests", err=True)
        if json_out is not None:
            _write_json(trace.summary(), json_out)


# -- profile


@app.command()
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
    with _reported():
        from k3mem.profile import measure
        from k3mem.spec.surface import dump

        geometry, make = _shape(shape, config, tp, page), _maker(executor, cost)
        with _bars() as bars:
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
    model = _cost(cost) if name == "sim" else None
    return kind if model is None else lambda: kind(model)


def _counts(text: str, option: str, least: int) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers", param_hint=option) from error
    if min(counts) < least:
        raise typer.BadParameter(f"must be >= {least}", param_hint=option)
    return counts


# -- shape, version


@app.command("shape")
def shape_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Model by name.")] = None,
    config: ConfigFile = None,
    tp: TP = 1,
    page: Page = 64,
    json_out: JsonOut = None,
) -> None:
    """Print the sizes of a model's state and KV on one rank."""
    with _reported():
        shape = _shape(name, config, tp, page)
        facts = {key: getattr(shape, key) for key in (
            "name", "state_bytes", "token_bytes", "page_tokens", "page_bytes", "state_layers", "kv_layers", "grid",
            "record_bytes", "vocab_size", "max_tokens")}
        facts["tokens_a_state"] = round(shape.state_bytes / shape.token_bytes, 2)
        if _write_json(facts, json_out):
            return
        for key, value in facts.items():
            typer.echo(f"{key:15} {value:,}" if isinstance(value, int) else f"{key:15} {value}")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as of

    typer.echo(of("k3mem"))


# -- helpers


@contextmanager
def _reported(*wrong: type[Exception]) -> Iterator[None]:
    """Errors about the input end in exit code 2, failures of a run in 1, each with its message on stderr. Of plain
    exceptions only those in `wrong` are taken for errors about the input."""
    from k3mem.errors import K3MemError

    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _fail(f"{where}{error.strerror or error}", 2)
    except K3MemError as error:
        _fail(str(error), 2 if isinstance(error, ValueError) else 1)
    except wrong as error:
        _fail(str(error), 2)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _write_json(report: dict[str, Any], where: str | None) -> bool:
    """Write a report to a file, or to stdout for `-`; whether stdout is taken."""
    import json

    if where == "-":
        typer.echo(json.dumps(report, indent=2))
    elif where is not None:
        Path(where).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return where == "-"


def _size(text: str, option: str) -> int:
    from k3mem.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _shape(name: str | None, config: Path | None, tp: int, page: int) -> Shape:
    from k3mem.shape import Shape

    if name is not None and config is not None:
        raise typer.BadParameter("a name or a config, not both", param_hint="--config")
    if config is not None:
        return Shape.from_config(config, tp, page_tokens=page)
    return Shape.preset(name or "kimi-k3", tp, page_tokens=page)


def _cost(path: Path | None) -> CostModel:
    from k3mem.executors.cost import CostModel, nominal

    return nominal() if path is None else CostModel.load(path)


def _load(paths: list[Path], bars: Bars, *, skip_bad: bool, limit: int | None, tokenizer: Path | None,
          block: int | None) -> Trace:
    from k3mem.replay.trace import load

    trace = load(paths, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block, progress=bars("read", limit))
    if trace.skipped:
        lines = "1 bad line" if trace.skipped == 1 else f"{trace.skipped} bad lines; the first"
        typer.echo(f"skipped {lines}: {trace.problems[0]}", err=True)
    return trace


def _block_is_used(trace: Trace, block: int | None) -> None:
    """Raises BadParameter for a `--block` that the trace overrules."""
    if block is not None and trace.block != block:
        unit = "gives token ids" if trace.block == 1 else f"states blocks of {trace.block} tokens"
        raise typer.BadParameter(f"{trace.name} {unit}; leave this option out", param_hint="--block")


Bars = Callable[[str, int | None], Callable[[int], None]]
"""(name, total) -> a function that is told how much is done."""


@contextmanager
def _bars() -> Iterator[Bars]:
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
