"""The command line. Exit codes: 0 done, 1 the run failed, 2 the input or the arguments are wrong.

Results go to stdout; progress, warnings and errors to stderr. With `--json -` stdout holds the JSON alone. Whatever a
command needs is imported when it runs, so that `k3mem --help` is quick.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3mem.cli_generate import generate, model_app
from k3mem.cli_parts import (
    TP,
    Admission,
    Block,
    ConfigFile,
    JsonOut,
    Limit,
    Mode,
    Page,
    ShapeName,
    SkipBad,
    Tokenizer,
    as_progress,
    block_is_used,
    cost_of,
    load_trace,
    open_bars,
    reported,
    shape_of,
    size_of,
    write_json,
)
from k3mem.cli_profile import profile
from k3mem.cli_sweep import sweep

if TYPE_CHECKING:
    from k3mem.replay.options import ReplayOptions
    from k3mem.replay.trace import Trace
    from k3mem.shape import Shape

app = typer.Typer(name="k3mem", no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
trace_app = typer.Typer(no_args_is_help=True, help="Make and convert traces.")
app.add_typer(trace_app, name="trace")
app.add_typer(model_app, name="model")
app.command()(generate)


class Loop(str, Enum):
    open = "open"
    closed = "closed"


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
    policy: Annotated[str, typer.Option(help="What to keep: auto, learned, cost or lru.")] = "auto",
    hints: Annotated[str, typer.Option(help="arrival: what callers tell the cache, with commas: end (of a session), "
                                            "tool (time to the next turn), fork.")] = "",
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
    explain: Annotated[str | None, typer.Option(metavar="N|REQUEST", help="The requests that lost most, and why; or "
                                                                          "this one.")] = None,
    series: Annotated[int | None, typer.Option(help="timed: sample what the pool holds, so many times at most, into "
                                                    "the JSON.")] = None,
    interval: Annotated[int | None, typer.Option(help="timed: checkpoints every so many tokens.")] = None,
    fork_depths: Annotated[int | None, typer.Option(help="timed: so many checkpoints a prompt, where earlier ones left "
                                                         "its path.")] = None,
    json_out: JsonOut = None,
) -> None:
    """Replay a trace through the memory core and report what was reused, and why not more."""
    if bound and mode is not Mode.arrival:
        raise typer.BadParameter("needs --mode arrival", param_hint="--bound")
    if mode is Mode.arrival:
        for name, value in (("--loop", loop), ("--concurrency", concurrency), ("--gap-cap", gap_cap), ("--cost", cost),
                            ("--admission", admission), ("--admission-bound", admission_bound), ("--series", series),
                            ("--interval", interval), ("--fork-depths", fork_depths)):
            if value is not None:
                raise typer.BadParameter("needs --mode timed", param_hint=name)
    if admission_bound is not None and admission in (None, Admission.off):
        raise typer.BadParameter("needs --admission on or auto", param_hint="--admission-bound")
    if loop is Loop.open and concurrency is not None:
        raise typer.BadParameter("needs --loop closed", param_hint="--concurrency")
    pool_bytes = size_of(pool, "--pool")
    with reported():
        from k3mem.replay.options import ReplayOptions

        model = cost_of(cost) if mode is Mode.timed else None
        geometry = shape_of(shape, config, tp, page)
        chosen: dict[str, Any] = {"loop": None if loop is None else loop.value, "concurrency": concurrency,
                                  "admission": None if admission is None else admission.value,
                                  "admission_bound": admission_bound}
        options = ReplayOptions(
            mode=mode.value, gap_cap=gap_cap, pool_bytes=pool_bytes, split=split, page_tokens=page, policy=policy,
            hints=tuple(hint for hint in hints.split(",") if hint), cost=model, limit=limit, seed=seed,
            fast_forward=fast_forward, series=series or 0, interval=interval, fork_depths=fork_depths,
            explain=int(explain) if explain is not None and explain.isdecimal() else explain,
            **{key: value for key, value in chosen.items() if value is not None},
        )
        options.check_fit(geometry)
        with open_bars() as bars:
            trace = load_trace(traces, bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            block_is_used(trace, block)
            stats = _run(trace, geometry, options, bars("replay", len(trace.turns)))
            if bound:
                from k3mem.replay.bound import against_bound

                stats |= against_bound(trace, geometry, options, stats, lambda name: as_progress(bars(name, None)))
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
    pool_bytes = size_of(pool, "--pool")
    with reported():
        from k3mem.replay.bound import grid_of, run_belady, run_bound, visits
        from k3mem.replay.options import ReplayOptions

        geometry = shape_of(shape, config, tp, page)
        options = ReplayOptions(pool_bytes=pool_bytes, page_tokens=page, limit=limit)
        options.check_fit(geometry)
        with open_bars() as bars:
            trace = load_trace(traces, bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            block_is_used(trace, block)
            found = run_bound(trace, geometry, options, as_progress(bars("bound", None)))
            if belady:
                seen = visits(trace, grid_of(trace, geometry), limit)
                hit = run_belady(trace, geometry, options, seen, as_progress(bars("belady", len(trace.turns))))
                found |= {"belady_tokens": hit, "belady_hit_rate": hit / found["input_tokens"]}
        report = {"trace": trace.name, "skipped": trace.skipped, "shape": geometry.name, "pool_bytes": pool_bytes,
                  "page_tokens": page, **found}
        if not write_json(report, json_out):
            _print_bound(report)


def _print_bound(report: dict[str, Any]) -> None:
    from rich.console import Console

    from k3mem.replay.report import bound_table, header

    console = Console()
    console.print(header(report), markup=False, highlight=False, soft_wrap=True)
    console.print(bound_table(report))


def _run(trace: Trace, shape: Shape, options: ReplayOptions, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run the driver; its statistics, with what was asked for beside them."""
    from k3mem.replay.run import run

    stats = run(trace, shape, options, as_progress(progress))
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
    if "explain" in report:
        from k3mem.replay.explain import lines

        for line in lines(report["explain"]):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


app.command()(sweep)
app.command()(profile)


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
    with reported(ValueError):
        from k3mem.replay.convert import convert as write

        if target.exists() and source.exists() and target.samefile(source):
            raise typer.BadParameter("is the file to convert; name another", param_hint="OUT")
        with open_bars() as bars:
            trace = load_trace([source], bars, skip_bad=skip_bad, limit=limit, tokenizer=tokenizer, block=block)
            if format is not FileFormat.mooncake:  # whose own blocks it sizes
                block_is_used(trace, block)
            write(trace, target, format.value, block=block)
        typer.echo(f"{target}: {len(trace.turns)} requests", err=True)
        if json_out is not None:
            write_json(trace.summary(), json_out)


@trace_app.command()
def synth(
    target: Annotated[Path, typer.Argument(metavar="OUT", help="gzip if the name ends in .gz.")],
    sessions: Annotated[int, typer.Option(help="Agent sessions.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    scale: Annotated[float, typer.Option(help="Factor on all lengths.")] = 1.0,
    flip: Annotated[bool, typer.Option("--flip", help="Turn half-way from many short to few long sessions.")] = False,
    documents: Annotated[bool, typer.Option("--documents", help="Sessions read long shared documents, each up to "
                                                                "one of its places.")] = False,
    json_out: JsonOut = None,
) -> None:
    """Make a trace of agent sessions from a seed."""
    if flip and documents:
        raise typer.BadParameter("one of --flip and --documents", param_hint="--documents")
    with reported(ValueError):
        from k3mem.replay.synth import write_synth

        trace = write_synth(target, seed, sessions, scale=scale,
                            mix="flip" if flip else "document" if documents else "agent")
        typer.echo(f"{target}: {len(trace.turns)} requests", err=True)
        if json_out is not None:
            write_json(trace.summary(), json_out)


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
    with reported():
        shape = shape_of(name, config, tp, page)
        facts = {key: getattr(shape, key) for key in (
            "name", "state_bytes", "token_bytes", "page_tokens", "page_bytes", "state_layers", "kv_layers", "grid",
            "record_bytes", "vocab_size", "max_tokens")}
        facts["tokens_a_state"] = round(shape.state_bytes / shape.token_bytes, 2)
        if write_json(facts, json_out):
            return
        for key, value in facts.items():
            typer.echo(f"{key:15} {value:,}" if isinstance(value, int) else f"{key:15} {value}")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as of

    typer.echo(of("k3mem"))
