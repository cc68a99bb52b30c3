"""Planted bugs of speculation: which drafts are verified, and who is told what came of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.fuzz.patching import Plant, all_of, patched
from k3mem.sched import close, decode, speculate
from k3mem.sched.core import Core
from k3mem.sched.job import End, Seated
from k3mem.sched.speculate import Proposal
from k3mem.spec import Draft
from k3mem.types import Int32


def window_of_another_lane() -> Plant:
    """Each lane gets the window that was chosen for the one before it."""

    def make(old: Any) -> Any:
        def kept(core: Core, confidence: Any, offered: Int32, context: int) -> Int32:
            out: Int32 = np.minimum(np.roll(old(core, confidence, offered, context), 1), offered)
            return out
        return kept

    return patched(speculate, "_kept", make)


def window_past_the_drafts() -> Plant:
    """A row's window is one longer than its drafts and its token."""
    return patched(Proposal, "windows", lambda old: property(lambda self: old.fget(self) + 1))


def planner_is_ignored() -> Plant:
    """Whatever was drafted is verified."""
    return patched(speculate, "_kept", lambda old: lambda core, confidence, offered, context: offered)


def last_drafts_are_kept() -> Plant:
    """Of a lane's drafts the last ones are verified: no prefix of what follows its tokens."""
    guesses: list[Draft] = []

    def draft(old: Any) -> Any:
        def ask(*a: Any) -> Draft:
            guesses.append(old(*a))
            return guesses[-1]
        return ask

    def propose(old: Any) -> Any:
        def cut(core: Core, chosen: Int32, starts: Int32) -> Any:
            guesses.clear()
            out = old(core, chosen, starts)
            if out is None:
                return None
            asked = iter(guesses)
            most = [min(core.window - 1, int(core.lanes.limit[lane]) - core.lanes.seat(lane).job.count - 1)
                    for lane in chosen.tolist()]
            whole = [next(asked, Draft(np.zeros(0, np.int32))).tokens if m > 0 else d
                     for m, d in zip(most, out.drafts, strict=True)]
            return out._replace(drafts=[w[len(w) - len(d) :] for w, d in zip(whole, out.drafts, strict=True)])
        return cut

    return all_of(patched(speculate, "_draft", draft), patched(decode, "propose", propose))


def drafts_of_another_lane() -> Plant:
    """Where some rows of a plan must wait, the others keep the drafts of all rows in order."""

    def make(old: Any) -> Any:
        def keep(self: Proposal, rows: Any) -> Proposal:
            out: Proposal = old(self, rows)
            return out._replace(drafts=self.drafts[: len(out.drafts)])
        return keep

    return patched(Proposal, "keep", make)


def told_of_stops() -> Plant:
    """A draft after a stop id counts as one that was wrong."""

    def make(old: Any) -> Any:
        def tell(planner: Any, flight: Any, result: Any, *a: Any) -> None:
            old(planner, flight, replace(result, done=np.zeros_like(result.done)), *a)
        return tell

    return patched(speculate, "_tell", make)


def told_with_the_bonus() -> Plant:
    """The token that is sampled after the last right draft counts as a right draft."""

    def make(old: Any) -> Any:
        def tell(planner: Any, flight: Any, result: Any, kept: Int32, right: Int32, began: Any) -> None:
            old(planner, flight, result, kept, np.minimum(right + 1, kept), began)
        return tell

    return patched(speculate, "_tell", make)


def told_of_another_row() -> Plant:
    """Rows are told in another order than their confidences."""

    def make(old: Any) -> Any:
        def tell(planner: Any, flight: Any, result: Any, kept: Int32, right: Int32, began: Any) -> None:
            old(planner, flight, result, np.roll(kept, 1), np.roll(right, 1), began)
        return tell

    return patched(speculate, "_tell", make)


def drafter_is_not_told() -> Plant:
    """What a drafter keeps of a request it keeps for ever."""
    return patched(Core, "undraft", lambda old: lambda self, request_id: None)


def drafter_is_told_of_the_retracted() -> Plant:
    """A request that leaves its lane has ended, as far as its drafter is told."""

    def make(old: Any) -> Any:
        def closing(core: Core, seat: Seated) -> None:
            old(core, seat)
            if seat.end == End.RETRACT:
                core.undraft(seat.job.request.id)
        return closing

    return patched(close, "close", make)
