"""Texts of what the compiled device finds; the same as the reference device's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from k3mem.native import lib

KIND = ("page", "state")
ROLES = ("working state", "target")
PURPOSES = {lib.K3_TO_READ: "reads", lib.K3_TO_RESTORE: "restores", lib.K3_TO_FOLD: "folds into"}
BY = {
    lib.K3_BY_ZEROING: "zeroing", lib.K3_BY_COPY: "copy", lib.K3_BY_RESTORE: "restore",
    lib.K3_BY_WORKING: ROLES[0], lib.K3_BY_TARGET: ROLES[1], lib.K3_BY_SNAPSHOT: "snapshot", lib.K3_BY_FOLD: "fold",
}


def _names(by: int, kind: int, entry: int) -> str:
    return f"{BY.get(by, f'lane {by}')} names {KIND[kind]} id {entry}"


def _writer(has: int, lane: int, generation: int) -> tuple[int, int] | None:
    return (lane, generation) if has else None


def _over(lane: int, low: int, high: int, place: int, has: int, other: int, generation: int) -> str:
    return (f"lane {lane} writes rows {low}..{high - 1} of page place {place} over rows of "
            f"{_writer(has, other, generation) or 'a copy'} without zeroing")


def _shared(target: int, lane: int, other_target: int, other: int, place: int) -> str:
    return (f"the {ROLES[target]} of lane {lane} is also the {ROLES[other_target]} of lane {other} "
            f"(state place {place})")


def _other_state(lane: int, depth: int) -> str:
    return (f"lane {lane} at depth {depth}: its working state is not that of the prefix in its pages" if depth else
            f"lane {lane} starts at depth 0 from a used state")


TEXTS: dict[int, Callable[..., str]] = {
    lib.K3_NOTE_SINK: lambda by, kind, entry: f"{_names(by, kind, entry)}, which is the sink",
    lib.K3_NOTE_RANGE: lambda by, kind, entry: f"{_names(by, kind, entry)}, which is out of range",
    lib.K3_NOTE_NO_ENTRY: lambda by, kind, entry: f"{_names(by, kind, entry)}, which has no table entry",
    lib.K3_NOTE_STALE: lambda by, kind, entry, place, owner:
        f"{_names(by, kind, entry)} at place {place}, which is owned by {owner}",
    lib.K3_NOTE_MAP_RANGE: lambda kind, entry, place:
        f"maps {KIND[kind]} id {entry} to place {place}: out of range, or the sink's id",
    lib.K3_NOTE_MAP_SINK: lambda kind, entry, place:
        f"maps {KIND[kind]} id {entry} to place {place}, where a sink lies",
    lib.K3_NOTE_MAP_TWICE: lambda kind, one, other, place: f"maps {KIND[kind]} ids {one} and {other} to place {place}",
    lib.K3_NOTE_SEAT_RANGE: lambda lane: f"seats lane {lane}, which is out of range",
    lib.K3_NOTE_SEAT_AGAIN: lambda lane, generation:
        f"seats lane {lane} with the generation {generation} of its last tenant",
    lib.K3_NOTE_SEAT_DEEP: lambda lane, depth, limit:
        f"seats lane {lane} at depth {depth}, outside 0 .. its limit {limit}",
    lib.K3_NOTE_LIST_UNSEATED: lambda lane: f"extends the page list of lane {lane}, which has no seat",
    lib.K3_NOTE_LIST_INDEX: lambda lane, index: f"names entry {index} of lane {lane}'s page list",
    lib.K3_NOTE_ROW_UNSEATED: lambda lane: f"row for lane {lane}, which has no seat",
    lib.K3_NOTE_ROW_STALE: lambda lane, generation, tenant:
        f"row for lane {lane} generation {generation}, whose tenant is {tenant}",
    lib.K3_NOTE_OVER: _over,
    lib.K3_NOTE_REST: lambda place, row: f"page place {place} is read whole, and rows beyond {row} are poison",
    lib.K3_NOTE_POISON_ROW: lambda row, place: f"reads poison at row {row} of page place {place}",
    lib.K3_NOTE_UNWRITTEN: lambda row, place: f"reads row {row} of page place {place}, which nobody wrote",
    lib.K3_NOTE_COPY_POISON: lambda place: f"copies page place {place}, which is poison",
    lib.K3_NOTE_COPY_PART: lambda rows, place:
        f"copies rows 0..{rows - 1} of page place {place}, not all of which were written",
    lib.K3_NOTE_POISON_STATE: lambda purpose, place: f"{PURPOSES[purpose]} state place {place}, which is poison",
    lib.K3_NOTE_MOVE_UNOWNED: lambda kind, place: f"moves {KIND[kind]} place {place}, which no id owns",
    lib.K3_NOTE_SHARED_STATE: _shared,
    lib.K3_NOTE_PREFILL_AT: lambda lane, start, depth:
        f"lane {lane} is to absorb tokens from {start} on, but stands at {depth}",
    lib.K3_NOTE_PREFILL_TOKEN: lambda lane: f"lane {lane} is to prefill, but its last sampled token is not absorbed",
    lib.K3_NOTE_DEEPER: lambda lane, depth, start: f"lane {lane} stands at {depth}, deeper than the worst case {start}",
    lib.K3_NOTE_NO_TOKEN: lambda lane: f"lane {lane} is to decode, but has no sampled token",
    lib.K3_NOTE_NO_PAGE: lambda lane, index: f"lane {lane} has no entry {index} in its page list",
    lib.K3_NOTE_OTHER_STATE: _other_state,
    lib.K3_NOTE_POISON_PAGE: lambda lane, place: f"lane {lane} reads page place {place}, which is poison",
    lib.K3_NOTE_BREAK: lambda lane, index:
        f"lane {lane}: entry {index} of its page list does not continue the one before",
    lib.K3_NOTE_SAME_STEP: lambda lane, place, has, other, generation:
        f"lane {lane} reads page place {place}, which {_writer(has, other, generation)} writes in this step",
    lib.K3_NOTE_HANDED_OUT: lambda entry, place:
        f"page id {entry} was handed out at place {place}, neither zeroed nor overwritten",
}


def texts(core: Any, pages_of: Callable[[int], Sequence[int]]) -> list[str]:
    """What the last phase of a device noted, as text. `pages_of(lane)`: that lane's page list."""
    out: list[str] = []
    at = 0
    while at < core.n_notes:
        note = core.notes[at]
        args = list(note.args)
        at += 1
        if note.code == lib.K3_NOTE_OVER:
            args.append(core.notes[at].args[0])
            at += 1
        if note.code == lib.K3_NOTE_PAGES_MISSING:
            lane, end, first, last = args[:4]
            out.append(_missing(lane, end, first, last, pages_of(lane)))
            continue
        text = TEXTS[note.code]
        out.append(text(*args[: text.__code__.co_argcount]))
    return out


def _missing(lane: int, end: int, first: int, last: int, pages: Sequence[int]) -> str:
    missing = [k for k in range(first, last) if k >= len(pages) or pages[k] < 0]
    return f"lane {lane} may reach depth {end}, but its page list lacks entries {missing}"
