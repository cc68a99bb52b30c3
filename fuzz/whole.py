"""All of the fuzzer by one command, or a share of it that rotates: `k3mem fuzz all`.

    corpus    every stored script, as it is and with its own bug put back
    explore   every order of the small scope
    run       random worlds
    prove     every planted bug is found by worlds
    seek      planted bugs are found by exploration alone
    native    the C core alone

A share I/N takes every N-th scope, mutant and block of seeds, from I on; the corpus is always replayed whole.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from k3mem.fuzz import campaign, prove, seek
from k3mem.fuzz.explorer import Explored, explore, scopes
from k3mem.fuzz.hunt import SECONDS
from k3mem.fuzz.marks import missed
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.runner import replay
from k3mem.fuzz.script import load

EVENTS = 10_000_000
WORLDS = 200
"""Of the whole, at least."""
SEEDS = 1_000_000
"""Seeds between the first ones of two shares."""
NATIVE_SECONDS = 60
LEAST = 5.0
"""Clock seconds below which no further mutant is begun."""
EXPLORED = (
    "donated_and_freed", "freed_twice_on_abort", "half_translated", "cancel_keeps_its_bytes",
    "one_spare_for_two", "fork_before_admission", "refused_keeps_its_lock", "pages_are_not_zeroed",
    "states_are_not_zeroed", "snapshot_is_a_reference", "snapshot_one_off", "interior_never_filled",
    "donated_at_the_cut", "tails_are_not_copied", "tail_page_is_shared", "takeover_stays_in_the_tree",
    "unlocks_to_the_root", "shared_plan_buffers", "freed_before_the_last_reader", "resync_is_skipped",
    "moves_through_the_new_table", "moves_are_dropped", "tables_miss_moves", "leases_do_not_hold",
    "page_of_two_ids", "one_id_at_two_places", "chain_in_one_batch", "no_effect_is_a_launch",
    "counted_after_publishing", "events_before_their_step", "step.covered", "step.still_new",
)
"""Planted bugs that exploration alone must find."""
PARTS = {"explore": 0.15, "run": 0.30, "prove": 0.35, "seek": 0.10, "native": 0.10}
"""Share of the minutes that each stage may take, where they are bounded; what one leaves the next ones get."""

Say = Callable[[str], None]
T = TypeVar("T")


class Share(NamedTuple):
    """One of `of` shares, counted from 0."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Share:
        """From `I/N`. Raises ValueError."""
        number, _, of = text.partition("/")
        if not (number.isdigit() and of.isdigit() and int(number) < int(of)):
            raise ValueError(f"a share is I/N with 0 <= I < N, not {text!r}")
        return cls(int(number), int(of))

    def pick(self, things: Sequence[T]) -> list[T]:
        return list(things[self.number :: self.of])


@dataclass(slots=True)
class Stage:
    """What one stage showed."""

    name: str
    wrong: list[str] = field(default_factory=list)
    """What must not be; empty is right."""
    unreached: list[str] = field(default_factory=list)
    """What time did not allow."""
    seconds: float = 0.0
    """By the clock."""
    result: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"wrong": self.wrong, "unreached": self.unreached, "seconds": round(self.seconds, 1), **self.result}


@dataclass(slots=True)
class Job:
    """How much of everything, on how many cores, until when."""

    share: Share = Share(0, 1)
    jobs: int = 1
    end: float | None = None
    """On time.monotonic; None: no bound."""
    events: int = EVENTS
    worlds: int = WORLDS
    mutant_seconds: float = SECONDS
    say: Say = lambda text: None

    def left(self) -> float:
        return float("inf") if self.end is None else max(0.0, self.end - time.monotonic())


def everything(job: Job, only: Sequence[str] = ()) -> list[Stage]:
    """All stages, or those named, one after the other; each within its part of the time that is left."""
    out: list[Stage] = []
    names = [name for name in STAGES if not only or name in only]
    for at, name in enumerate(names):
        parts = sum(PARTS.get(later, 0.0) for later in names[at:])
        mine = job.left() if not parts else job.left() * PARTS.get(name, 0.0) / parts
        end = None if job.end is None or name not in PARTS else time.monotonic() + mine
        stage, began = Stage(name), time.monotonic()
        job.say(f"== {name}" + ("" if end is None else f", at most {mine:.0f} s"))
        STAGES[name](job, stage, end)
        stage.seconds = time.monotonic() - began
        told = "; ".join(stage.wrong) or ("nothing found" if not stage.unreached else
                                          f"nothing found, out of time for {len(stage.unreached)}")
        job.say(f"{name}: {told} ({stage.seconds:.0f} s)")
        out.append(stage)
    return out


def _corpus(job: Job, stage: Stage, end: float | None) -> None:
    files = sorted((Path(__file__).parent / "corpus").glob("*.json"))
    for file in files:
        script = load(file)
        found = replay(script).found
        if found is not None:
            stage.wrong.append(f"{file.name}: {found}")
        with BY_NAME[script.mutant].plant():
            if replay(script).found is None:
                stage.wrong.append(f"{file.name} does not see {script.mutant} any more")
    stage.result = {"scripts": len(files)}


def _explore(job: Job, stage: Stage, end: float | None) -> None:
    total = Explored()

    def show(scope: object, out: Explored) -> None:
        job.say(f"  {scope}: {out.states:,} states so far")

    chosen = job.share.pick(scopes()) or [scopes()[job.share.number % len(scopes())]]
    seconds = 600.0 if end is None else max(1.0, end - time.monotonic())
    total = explore(seconds, chosen, show)
    if total.found is not None:
        stage.wrong.append(f"{total.found}, after {'; '.join(total.order)}")
    if not total.complete:
        stage.unreached.append("the end of the scope")
    stage.result = {"scopes": [str(scope) for scope in chosen], **total.as_dict()}


def _run(job: Job, stage: Stage, end: float | None) -> None:
    bounds = campaign.Bounds(events=job.events, worlds=job.worlds, clock=end)
    shown = [time.monotonic()]

    def show(out: campaign.Campaign) -> None:
        if time.monotonic() - shown[0] > 10:
            shown[0] = time.monotonic()
            job.say(f"  {out.worlds} worlds, {out.events.total():,} events")

    out = campaign.run(job.share.number * SEEDS, bounds, job.jobs, True, show)
    stage.result = out.as_dict()
    if out.found is not None:
        stage.wrong.append(f"seed {out.found['seed']}: {out.found['by']}: {out.found['what']}")
    if out.events.total() < job.events:
        stage.unreached.append(f"{job.events:,} events")
    elif job.share.of == 1 and (left := missed(out.marks)):
        stage.wrong.append(f"marks never reached: {', '.join(left)}")


def _mutants(job: Job, stage: Stage, end: float | None, names: Sequence[str],
             hunt: Callable[[prove.AnyMutant, float, float | None], dict[str, Any]]) -> None:
    """One process a mutant: hunt(mutant, CPU seconds, clock seconds) tells `killed` (and `clean`), or raises
    OutOfTime."""
    known = {mutant.name: mutant for mutant in prove.every()}
    said: list[dict[str, Any]] = []

    def one(name: str) -> tuple[str, dict[str, Any] | None]:
        left = None if end is None else end - time.monotonic()
        if left is not None and left < LEAST:
            return name, None
        try:
            return name, hunt(known[name], job.mutant_seconds, left)
        except prove.OutOfTime:
            return name, None

    with ThreadPoolExecutor(job.jobs) as pool:
        for future in as_completed([pool.submit(one, name) for name in names]):
            name, verdict = future.result()
            if verdict is None:
                stage.unreached.append(name)
                continue
            said.append(verdict)
            if not verdict["killed"]:
                stage.wrong.append(f"{name} lives" + (f": {verdict['what']}" if verdict["what"] else ""))
            elif not verdict.get("clean", True):
                stage.wrong.append(f"without {name}: {verdict['what']}")
            job.say(f"  {len(said)} of {len(names)}: {name} {'killed' if verdict['killed'] else 'LIVES'}, "
                    f"{verdict.get('seconds', 0)} s")
    said.sort(key=lambda verdict: names.index(str(verdict["name"])))
    stage.result = {"mutants": said, "killed": sum(bool(v["killed"]) for v in said), "of": len(names)}


def _prove(job: Job, stage: Stage, end: float | None) -> None:
    _mutants(job, stage, end, job.share.pick(prove.names()),
             lambda mutant, seconds, most: prove.prove_apart(mutant, seconds, most).as_dict())


def _seek(job: Job, stage: Stage, end: float | None) -> None:
    _mutants(job, stage, end, job.share.pick(EXPLORED),
             lambda mutant, seconds, most: seek.seek_apart(mutant, seconds, most).as_dict())


def _native(job: Job, stage: Stage, end: float | None) -> None:
    """The target's own Makefile: it needs the source tree, make and a C compiler."""
    makefile = Path(__file__).parent / "native" / "Makefile"
    if not makefile.exists() or shutil.which("make") is None:
        stage.unreached.append("no source tree here, or no make")
        return
    most = NATIVE_SECONDS if end is None else int(end - time.monotonic()) - 10
    env = {**os.environ, "FUZZ_SECONDS": str(max(2, min(most, NATIVE_SECONDS))),
           "FUZZ_SEED": str(1 + job.share.number)}
    env.pop("MAKEFLAGS", None)
    done = subprocess.run(["make", "-s", "-f", str(makefile), "run"], env=env, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    stage.result = {"said": lines[-1] if lines else ""}
    if done.returncode:
        stage.wrong.append(f"the C target ended with {done.returncode}: {' | '.join(lines[-3:])}")


STAGES: dict[str, Callable[[Job, Stage, float | None], None]] = {
    "corpus": _corpus, "explore": _explore, "run": _run, "prove": _prove, "seek": _seek, "native": _native,
}
