"""What a fault has to do with order: the failed world once more, its commands in program order, and what the
happens-before checker says of its plans."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from k3mem.fuzz.race import Judge
from k3mem.fuzz.record import BadRecording, Record
from k3mem.fuzz.runner import Outcome, replay


class Explained(NamedTuple):
    """A fault and order."""

    race: str
    """The first race that its plans have; "" for none."""
    in_order: str
    """`fails` as well where all commands run in program order, or `vanishes`."""


class Tape(list[Record]):
    """A sink that keeps the records."""

    put = list.append


def explain(outcome: Outcome) -> Explained:
    """Replay a world that failed, recorded. Planted bugs must still be there."""
    tape = Tape()
    replay(outcome.script, tape)
    in_order = msgspec.structs.replace(outcome.script.config, shuffle=False)
    again = replay(msgspec.structs.replace(outcome.script, config=in_order))
    return Explained(first_race(tape), "vanishes" if again.found is None else "fails")


def first_race(records: list[Record]) -> str:
    """The first race of these records as text, "" for none. A recording that no executor could show is one, too."""
    judge = Judge()
    try:
        for record in records:
            judge.put(record)
            if judge.report.races:
                break
        judge.finish()
    except BadRecording as error:
        return f"bad recording: {error}"
    except Exception as error:  # plans of a planted bug may be anything
        return f"not judged: {type(error).__name__}: {error}"
    return str(judge.report.races[0]) if judge.report.races else ""


__all__: list[Any] = ["Explained", "Tape", "explain", "first_race"]
