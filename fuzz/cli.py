"""`k3mem fuzz ...`. Exit codes: 0 nothing found, 1 a fault (or a mutant that lives), 2 wrong input.

Results go to stdout, progress to stderr; `--json -` puts the JSON alone on stdout.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(no_args_is_help=True, help="Attack the core: random worlds, planted bugs, small scope, races.")

JsonOut = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the result as JSON.")]
SHRINK_SECONDS = 60.0


@app.command()
def run(
    seed: Annotated[int, typer.Option(help="First seed; each world takes the next one.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="CPU time. (default: 30, or no bound with --events)")] = None,
    events: Annotated[int | None, typer.Option(help="Stop after so many scheduler events.")] = None,
    save: Annotated[Path | None, typer.Option(help="Where to write the shrunk script of a failure.")] = None,
    marks: Annotated[bool, typer.Option(help="Count the named branches that were reached.")] = True,
    json_out: JsonOut = None,
) -> None:
    """Run random worlds until something is wrong, time is up or enough has happened."""
    from contextlib import nullcontext

    from k3mem.fuzz.marks import Marks
    from k3mem.fuzz.runner import run_seed

    limit = seconds if seconds is not None or events is not None else 30.0
    began, worlds, steps = time.process_time(), 0, 0
    counts: Counter[str] = Counter()
    found: dict[str, Any] | None = None
    watch = Marks()
    with watch if marks else nullcontext():
        while found is None:
            spent = time.process_time() - began
            if (limit is not None and spent >= limit) or (events is not None and counts.total() >= events):
                break
            outcome = run_seed(seed + worlds, deadline=None if limit is None else began + limit)
            worlds, steps, counts = worlds + 1, steps + outcome.steps, counts + outcome.events
            if outcome.found is not None:
                found = {"seed": seed + worlds - 1, "by": outcome.found.by, "what": outcome.found.what}
            if worlds % 10 == 0:
                typer.echo(f"{worlds} worlds, {counts.total():,} events, {spent:.0f} s", err=True)
    took = time.process_time() - began
    result = {"seed": seed, "worlds": worlds, "steps": steps, "events": counts.total(), "by_kind": dict(counts),
              "seconds": round(took, 2), "events_per_second": round(counts.total() / max(took, 1e-9)),
              "marks": dict(watch.counts) if marks else None, "found": found}
    if found is not None:
        result["script"] = str(_shrunk(int(found["seed"]), save))
    _put(result, json_out)
    if json_out != "-":
        if marks:
            typer.echo(watch.table())
        typer.echo(f"{worlds} worlds, {steps:,} steps, {counts.total():,} events in {took:.1f} s: "
                   + (f"seed {found['seed']}: {found['by']}: {found['what']}" if found else "nothing found"))
    _end(found is None)


def _shrunk(seed: int, save: Path | None) -> Path:
    """Shrink a failing seed and write its script."""
    from k3mem.fuzz.runner import replay, run_seed
    from k3mem.fuzz.script import Script, dump
    from k3mem.fuzz.shrink import shrink

    first = run_seed(seed)
    by = first.found.by if first.found is not None else ""

    def fails(script: Script) -> bool:
        found = replay(script).found
        return found is not None and found.by == by

    typer.echo(f"seed {seed} fails; shrinking {len(first.script.actions)} actions", err=True)
    script = shrink(first.script, fails, SHRINK_SECONDS)
    path = save or Path(f"fuzz-{seed}.json")
    path.write_text(dump(script), encoding="utf-8")
    typer.echo(f"{path}: {len(script.actions)} actions", err=True)
    return path


@app.command()
def prove(
    mutant: Annotated[Path | None, typer.Option(help="A patch, applied to a copy of the source.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only mutants of these names.")] = None,
    seconds: Annotated[float, typer.Option(help="CPU time that each has.")] = 60.0,
    jobs: Annotated[int | None, typer.Option(help="Processes at once. (default: the cores)")] = None,
    json_out: JsonOut = None,
) -> None:
    """Show that every planted bug is found, and that the code without one survives the same seeds."""
    from k3mem.fuzz import prove as proof
    from k3mem.fuzz.patch import PatchError, prove_patch

    def show(verdict: proof.Verdict) -> None:
        say = f"killed by {verdict.by}" if verdict.killed else "LIVES"
        typer.echo(f"{verdict.name:34} {say:18} {verdict.worlds:4} worlds {verdict.seconds:6.1f} s  "
                   f"{verdict.what[:72]}",
                   err=json_out == "-")

    if mutant is not None:
        try:
            verdicts = [prove_patch(mutant, seconds)]
        except (OSError, PatchError) as error:
            _fail(str(error))
        show(verdicts[0])
    else:
        if only and not set(only) <= (known := proof.names()):
            _fail(f"no mutant {sorted(set(only) - known)[0]!r}")
        verdicts = proof.prove(only or None, seconds, show, jobs)
    killed, clean = sum(v.killed for v in verdicts), sum(v.clean for v in verdicts)
    _put({"mutants": [v.as_dict() for v in verdicts], "killed": killed, "clean": clean, "of": len(verdicts)}, json_out)
    typer.echo(f"{killed} of {len(verdicts)} killed; the code without them survived the seeds of {clean}", err=True)
    _end(killed == clean == len(verdicts))


@app.command()
def explore(
    seconds: Annotated[float, typer.Option(help="CPU time.")] = 60.0,
    json_out: JsonOut = None,
) -> None:
    """Visit every order of a small scope: 2 requests of 2 turns, 3 to 5 pages, 2 to 4 states."""
    from k3mem.fuzz.explorer import Explored, scopes
    from k3mem.fuzz.explorer import explore as visit
    from k3mem.fuzz.script import dump

    def show(done: int, out: Explored) -> None:
        typer.echo(f"scope {done} of {len(scopes())}: {out.states:,} states, {out.orders:,} orders", err=True)

    out = visit(seconds, progress=show)
    result = {"states": out.states, "orders": out.orders, "pruned": out.pruned, "steps": out.steps,
              "seconds": round(out.seconds, 2), "complete": out.complete,
              "found": str(out.found) if out.found else None}
    _put(result, json_out)
    if json_out != "-":
        typer.echo(f"{out.states:,} states, {out.orders:,} orders, {out.pruned:,} branches met a known state, "
                   f"{out.seconds:.1f} s; {'complete' if out.complete else 'not complete'}")
        if out.script is not None:
            typer.echo(f"{out.found}\n{dump(out.script)}")
    _end(out.found is None and out.complete)


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scripts.")],
    planted: Annotated[bool, typer.Option("--planted", help="Put the script's own mutant back.")] = False,
    json_out: JsonOut = None,
) -> None:
    """Replay scripts exactly."""
    from contextlib import nullcontext

    from k3mem.fuzz.mutants import BY_NAME
    from k3mem.fuzz.runner import replay as again
    from k3mem.fuzz.script import load

    rows = []
    for file in files:
        try:
            script = load(file)
        except (OSError, ValueError) as error:
            _fail(str(error))
        with BY_NAME[script.mutant].plant() if planted and script.mutant in BY_NAME else nullcontext():
            outcome = again(script)
        rows.append({"file": str(file), "found": str(outcome.found) if outcome.found else None,
                     "steps": outcome.steps, "events": outcome.total})
        if json_out != "-":
            typer.echo(f"{file}: {outcome.found or 'nothing found'} ({outcome.steps} steps)")
    _put({"scripts": rows}, json_out)
    _end(not any(row["found"] for row in rows))


@app.command()
def judge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded plans.")],
    json_out: JsonOut = None,
) -> None:
    """Look for races in plans recorded from any executor."""
    import importlib

    try:
        race: Any = importlib.import_module("k3mem.fuzz.race")
    except ModuleNotFoundError:
        _fail("this build has no race checker (k3mem.fuzz.race)")
    try:
        report = race.judge(file)
    except (OSError, ValueError) as error:
        _fail(str(error))
    races = [str(one) for one in report.races]
    _put({"file": str(file), "commands": report.commands, "races": races}, json_out)
    if json_out != "-":
        for one in races:
            typer.echo(one)
        typer.echo(f"{report.commands:,} commands, {len(races)} races")
    _end(not races)


@app.command()
def bench(
    seconds: Annotated[float, typer.Option(help="CPU time of each of the two runs.")] = 10.0,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    json_out: JsonOut = None,
) -> None:
    """Measure events a second without full checks, and with all invariants checked after each step."""
    from k3mem.fuzz.bench import measure

    fast, checked = measure(seconds, seed, check_every=0), measure(seconds, seed, check_every=1)
    result = {"events_per_second": fast.events_per_second, "rows_committed_per_second": fast.rows_per_second,
              "events_per_second_checked": checked.events_per_second, "by_kind": dict(fast.by_kind),
              "worlds": fast.worlds, "steps": fast.steps, "seconds": round(fast.seconds, 2)}
    _put(result, json_out)
    if json_out != "-":
        typer.echo(f"{fast.events_per_second:,} events/s, {fast.rows_per_second:,} rows/s; checked after each step: "
                   f"{checked.events_per_second:,} events/s")


def _put(result: dict[str, Any], json_out: str | None) -> None:
    if json_out == "-":
        typer.echo(json.dumps(result, indent=2))
    elif json_out is not None:
        Path(json_out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def _end(right: bool) -> None:
    if not right:
        raise typer.Exit(1)
