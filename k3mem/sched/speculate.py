"""Speculation in a step: what drafters propose, how much of it is verified, and what is learned when it commits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from k3mem.errors import InvalidRequest
from k3mem.plan import Plan, Result
from k3mem.sched.core import Core, Flight
from k3mem.sched.job import Job, read_only
from k3mem.spec import Draft, Drafter, Planner
from k3mem.spec.draft import EMPTY, UNSURE
from k3mem.types import Bool, Float64, Int32


class Proposal(NamedTuple):
    """Drafts of all decode and verify rows of a plan, cut to what is verified."""

    drafts: list[Int32]
    """[rows] the first of what each row's drafter proposed."""
    offered: Int32
    """[rows] how many that were."""
    confidence: Float64
    """[rows, most offered] chance of each draft offered, as its drafter says; 0 where there is none."""

    @property
    def any(self) -> bool:
        """Whether any row verifies."""
        return any(len(d) for d in self.drafts)

    @property
    def windows(self) -> Int32:
        """[rows] tokens of each row."""
        return np.array([1 + len(d) for d in self.drafts], np.int32)

    def keep(self, rows: Bool) -> Proposal:
        """Of some rows only."""
        return Proposal([d for d, k in zip(self.drafts, rows.tolist(), strict=True) if k], self.offered[rows],
                        self.confidence[rows])


def propose(core: Core, chosen: Int32, starts: Int32) -> Proposal | None:
    """What each chosen lane verifies: guesses clipped to the window, the limit and the budget, and of those the first
    ones that the planner keeps. None without a drafter, or where nobody guesses. O(lanes + drafts log drafts)."""
    if core.drafter is None or core.window == 1:
        return None
    left = core.policy.token_budget - len(chosen)
    guesses: list[Draft] = []
    for lane in chosen.tolist():
        job = core.lanes.seat(lane).job
        most = min(core.window - 1, job.limit - job.count - 1, left)
        guess = _draft(core, core.drafter, lane, job, most) if most > 0 else Draft(EMPTY)
        left -= len(guess.tokens)
        guesses.append(guess)
    offered = np.array([len(guess.tokens) for guess in guesses], np.int32)
    if not offered.any():
        return None
    confidence = np.zeros((len(guesses), int(offered.max())))
    for row, guess in enumerate(guesses):
        n = len(guess.tokens)
        confidence[row, :n] = UNSURE if guess.confidence is None else guess.confidence[:n]
    kept = _kept(core, confidence, offered, int(starts.sum(dtype=np.int64)))
    return Proposal([guess.tokens[:n] for guess, n in zip(guesses, kept.tolist(), strict=True)], offered, confidence)


def _draft(core: Core, drafter: Drafter, lane: int, job: Job, most: int) -> Draft:
    """A drafter's guesses for one request, at most `most`. Raises InvalidRequest unless they are tokens, and
    confidences chances."""
    who = f"request {job.request.id!r}: its drafter"
    known = read_only(job.tokens[: job.count])
    if core.drafts_lane is None:
        said = drafter.draft(job.request.id, known, most)
    else:
        said = core.drafts_lane(lane, int(core.lanes.generation[lane]), known, most)
    tokens, confidence = said if isinstance(said, Draft) else (said, None)
    given = np.asarray(tokens)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InvalidRequest(f"{who} gave {given.ndim} dimensions of {given.dtype}; it must return a flat array of "
                             "integers, or an empty one. Repair it, or abort the request")
    if confidence is not None:
        sure = np.asarray(confidence)
        if sure.shape != given.shape or sure.dtype.kind not in "fiu" or not ((sure >= 0) & (sure <= 1)).all():
            raise InvalidRequest(f"{who} gave confidences {sure!r} of {len(given)} tokens; they must be as many "
                                 "numbers from 0 to 1, or None. Repair it, or abort the request")
        confidence = sure
    guess, vocab = given[:most], core.shape.vocab_size
    wrong = np.flatnonzero((guess < 0) | (guess >= vocab))
    if len(wrong):
        first = int(wrong[0])
        if not (job.request.media and guess[first] >= vocab):
            raise InvalidRequest(f"{who} gave token {guess[first]}, outside 0..{vocab - 1}. Repair it, or abort the "
                                 "request")
        guess = guess[:first]  # a medium's place in the key, copied from the prompt: nothing that can be sampled
    return Draft(guess.astype(np.int32), confidence)


def _kept(core: Core, confidence: Float64, offered: Int32, context: int) -> Int32:
    """[rows] drafts that the planner keeps of each row. Raises ValueError where it keeps what is not there."""
    if core.planner is None:
        return offered
    kept = np.asarray(core.planner.choose(confidence, offered, context))
    if kept.shape != offered.shape or kept.dtype.kind not in "iu" or ((kept < 0) | (kept > offered)).any():
        raise ValueError(f"the planner keeps {kept!r} of {offered.tolist()} drafts; it must return one integer a row, "
                         "from 0 to what was offered")
    return kept.astype(np.int32)


def learn(core: Core, flight: Flight, result: Result) -> None:
    """Tell the planner what came of a step, before anything of it is booked: drafts accepted, where nothing but the
    drafts ended them, and the step's time, where it computed nothing else. O(rows)."""
    plan, proposal, planner = flight.plan, flight.proposal, core.planner
    ends = result.times
    began = core.ended
    if proposal is not None:
        rows = len(flight.rows)
        accepted, kept = result.accepted[:rows], plan.length[:rows] - 1
        right = np.maximum(accepted - 1, 0)
        if planner is not None:
            try:
                _tell(planner, flight, result, kept, right, began)
            except Exception as e:  # the caller's code: anything may come, and the step goes on
                core.cache.log.add("planner", detail=f"{type(e).__name__}: {e}")
        core.metrics.drafts_accepted += int(right.sum())
    core.ended = float(ends[-1]) if len(ends) else None
    if planner is not None and len(core.flights) == 1:
        core.quiet = core.clock()


def _tell(planner: Planner, flight: Flight, result: Result, kept: Int32, right: Int32, began: float | None) -> None:
    plan, proposal, ends = flight.plan, flight.proposal, result.times
    assert proposal is not None
    rows = len(kept)
    told = (kept > 0) & (result.accepted[:rows] > 0) & (result.done[:rows] == 0)
    if told.any():
        planner.accepted(proposal.confidence[told], kept[told], right[told])
    if began is not None and len(ends) == 1 and _alone(plan, rows):
        # what passed while nothing was in flight is the host's time, not the step's
        context = int(plan.start[:rows].sum(dtype=np.int64))
        planner.took(rows, int(plan.length[:rows].sum()), context, 1e6 * (float(ends[0]) - began - flight.pause))


def _alone(plan: Plan, rows: int) -> bool:
    """Whether a plan computes decode and verify rows, copies nothing, and follows no failure."""
    copies = len(plan.moves) or len(plan.page_copies) or len(plan.restores)
    return len(plan.kind) == rows and not (plan.resync or copies)
