"""`k3mem fuzz ...`. Exit codes: 0 nothing found, 1 a fault (or a mutant that lives), 2 wrong input.

Results go to stdout, progress to stderr; `--json -` puts the JSON alone on stdout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(no_args_is_help=True, help="Attack the core: random worlds, planted bugs, small scope, races.")

JsonOut = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="Write the result as JSON.")]
SHRINK_SECONDS = 60.0


@app.command()
def run(
    seed: Annotated[int, typer.Option(help="First seed; each world takes the next one.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="CPU time at most. (default: 30 without another bound)")] = None,
    events: Annotated[int | None, typer.Option(help="Until so many scheduler events have happened ...")] = None,
    worlds: Annotated[int | None, typer.Option(help="... and so many worlds have run.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: the cores.")] = 1,
    save: Annotated[Path | None, typer.Option(help="Where to write the shrunk script of a failure.")] = None,
    marks: Annotated[bool, typer.Option(help="Count the named branches that were reached.")] = True,
    json_out: JsonOut = None,
) -> None:
    """Run random worlds until something is wrong, enough has happened or time is up."""
    import time

    from k3mem.fuzz import campaign
    from k3mem.fuzz.marks import table

    limit = seconds if seconds is not None or events is not None or worlds is not None else 30.0
    shown = [time.monotonic()]

    def show(out: campaign.Campaign) -> None:
        if time.monotonic() - shown[0] >= 5:
            shown[0] = time.monotonic()
            typer.echo(f"{out.worlds} worlds, {out.events.total():,} events, {out.seconds:.0f} s", err=True)

    out = campaign.run(seed, campaign.Bounds(limit, events, worlds), jobs or campaign.cores(), marks, show)
    found, result = out.found, out.as_dict()
    if found is not None:
        result["script"] = str(_shrunk(int(found["seed"]), save))
    _put(result, json_out)
    if json_out != "-":
        if marks:
            typer.echo(table(out.marks))
        typer.echo(f"{out.worlds} worlds, {out.steps:,} steps, {out.events.total():,} events in {out.seconds:.1f} s: "
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
        if only and not set(only) <= (known := set(proof.names())):
            _fail(f"no mutant {sorted(set(only) - known)[0]!r}")
        verdicts = proof.prove(only or None, seconds, show, jobs)
    killed, clean = sum(v.killed for v in verdicts), sum(v.clean for v in verdicts)
    _put({"mutants": [v.as_dict() for v in verdicts], "killed": killed, "clean": clean, "of": len(verdicts)}, json_out)
    typer.echo(f"{killed} of {len(verdicts)} killed; the code without them survived the seeds of {clean}", err=True)
    _end(killed == clean == len(verdicts))


@app.command()
def explore(
    mutants: Annotated[bool, typer.Option("--mutants", help="Seek all planted bugs by exploration alone.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Seek planted bugs of these names.")] = None,
    seconds: Annotated[float, typer.Option(help="CPU time, of each planted bug.")] = 60.0,
    jobs: Annotated[int, typer.Option(min=0, help="Planted bugs sought at once; 0: the cores.")] = 0,
    json_out: JsonOut = None,
) -> None:
    """Visit every order of a small scope: 2 requests of 2 turns, 3 to 5 pages, 2 to 4 states."""
    from k3mem.fuzz.explorer import Explored, Scope
    from k3mem.fuzz.explorer import explore as visit
    from k3mem.fuzz.script import dump

    if mutants or only:
        _seek(only or [], seconds, jobs, json_out)

    before = Explored()

    def show(scope: Scope, out: Explored) -> None:
        typer.echo(f"{str(scope):54} {out.states - before.states:6,} states, {out.pruned - before.pruned:6,} pruned, "
                   f"{out.orders - before.orders:4,} orders for {out.covered - before.covered:,}, "
                   f"{out.seconds - before.seconds:.1f} s", err=json_out == "-")
        for name in ("states", "orders", "covered", "pruned", "seconds"):
            setattr(before, name, getattr(out, name))

    out = visit(seconds, progress=show)
    _put(out.as_dict(), json_out)
    if json_out != "-":
        typer.echo(f"{out.states:,} states, {out.orders:,} orders run that stand for {out.covered:,}, "
                   f"{out.pruned:,} branches met a known state, the longest order has {out.longest} choices; "
                   f"{out.seconds:.1f} s, {'complete' if out.complete else 'not complete'}")
        if out.found is not None:
            typer.echo(f"{out.found}\n  " + "\n  ".join(out.order))
        if out.script is not None:
            typer.echo(dump(out.script))
    _end(out.found is None and out.complete)


def _seek(only: list[str], seconds: float, jobs: int, json_out: str | None) -> NoReturn:
    """Exit code 1 where one of those asked for by name lives; exploration need not find all."""
    from k3mem.fuzz import campaign, prove, seek

    known = prove.names()
    if unknown := sorted(set(only) - set(known)):
        _fail(f"no mutant {unknown[0]!r}")

    def show(sought: seek.Sought) -> None:
        say = f"killed by {sought.by}" if sought.killed else "lives" if sought.complete else "lives (not complete)"
        typer.echo(f"{sought.name:34} {say:20} {sought.states:6,} states {sought.seconds:6.1f} s  {sought.what[:60]}",
                   err=json_out == "-")

    out = seek.seek_all(only or known, seconds, jobs or campaign.cores(), show)
    killed = sum(sought.killed for sought in out)
    _put({"mutants": [sought.as_dict() for sought in out], "killed": killed, "of": len(out)}, json_out)
    typer.echo(f"{killed} of {len(out)} killed by exploration alone", err=True)
    raise typer.Exit(int(bool(only) and killed < len(out)))


@app.command(name="all")
def all_(
    minutes: Annotated[float | None, typer.Option(help="By the clock, for everything. (default: as long as it "
                                                       "takes)")] = None,
    share: Annotated[str, typer.Option(metavar="I/N", help="Only this share: every N-th scope, planted bug and block "
                                                           "of seeds.")] = "0/1",
    stages: Annotated[list[str] | None, typer.Option("--stage", help="Only these stages.")] = None,
    events: Annotated[int | None, typer.Option(help="Events of random worlds. (default: 10 million / N)")] = None,
    mutant_seconds: Annotated[float, typer.Option(help="CPU time that each planted bug has.")] = 60.0,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: the cores.")] = 0,
    json_out: JsonOut = None,
) -> None:
    """Everything: stored scripts, all orders of the small scope, random worlds, every planted bug, the C core alone."""
    import time

    from k3mem.fuzz import campaign, whole

    try:
        mine = whole.Share.parse(share)
    except ValueError as error:
        _fail(str(error))
    if unknown := sorted(set(stages or []) - set(whole.STAGES)):
        _fail(f"no stage {unknown[0]!r}: there are {', '.join(whole.STAGES)}")
    began = time.monotonic()
    typer.echo(f"share {mine}: k3mem fuzz all --share {mine}" + ("" if minutes is None else f" --minutes {minutes:g}"),
               err=True)
    job = whole.Job(mine, jobs or campaign.cores(), None if minutes is None else began + 60 * minutes,
                    events or -(-whole.EVENTS // mine.of), -(-whole.WORLDS // mine.of), mutant_seconds,
                    lambda text: typer.echo(text, err=True))
    done = whole.everything(job, stages or ())
    wrong = [f"{stage.name}: {what}" for stage in done for what in stage.wrong]
    _put({"share": str(mine), "minutes": minutes, "seconds": round(time.monotonic() - began, 1), "wrong": wrong,
          "stages": {stage.name: stage.as_dict() for stage in done}}, json_out)
    for stage in done:
        if stage.unreached:
            typer.echo(f"{stage.name}: out of time for {', '.join(stage.unreached)}", err=True)
    typer.echo("\n".join(wrong) or "nothing found", err=json_out == "-")
    _end(not wrong)


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
