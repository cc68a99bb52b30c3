"""Fast-forward: one plan that stands for k identical decode steps, where nothing could happen between them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from k3mem.plan import Plan
from k3mem.pool import Fit
from k3mem.sched import decode, room
from k3mem.sched.anchors import decode_anchor
from k3mem.sched.builder import DECODES, ONES, TRUE, ZEROS, Builder
from k3mem.sched.core import Core
from k3mem.sched.lanes import Rows

MOST = 1 << 14
"""Steps that one plan may stand for."""


class Forward(Protocol):
    """An executor's `fast_forward`: how many repetitions of a plan, up to `limit`, would all be *planned* before
    `until` with `depth` steps in flight; at least 1."""

    def __call__(self, plan: Plan, limit: int, until: float, depth: int) -> int: ...


def extend(core: Core, b: Builder) -> None:
    """Let this plan stand for as many steps as would come out the same one by one: decode rows only, nobody who
    could be admitted, no lane that ends before the last of them, and pages for all without evicting or moving."""
    if core.forward is None or not _uniform(core, b):
        return
    most = min(MOST, core.lanes.uniform(b.rows))
    if most <= 1:
        return
    until = core.until if core.sessions is None else min(core.until, core.sessions.next_change)
    most = core.forward(_sketch(core, b), most, until, core.policy.steps_in_flight)
    b.repeat = _cover(core, b, max(1, most))


def _uniform(core: Core, b: Builder) -> bool:
    """Whether nobody but the rows of this plan has a say in the next ones."""
    if b.prefill or b.admitted or b.drafts or b.snapshots or not len(b.lanes) or core.drafter is not None:
        return False
    if core.policy.steps_in_flight > 1:  # a pipeline that runs dry is committed step by step, and joined in between
        return False
    if core.timed or core.resync or core.ending or decode_anchor(core, 0) is not None:
        return False
    if any(flight.ends_lane for flight in core.flights):
        return False
    if core.queue and (not core.blocked or b.moves):  # moves may let the head of the queue in
        return False
    return not (core.policy.eager and _has_holes(core))


def _has_holes(core: Core) -> bool:
    usage = core.cache.arena.usage()
    return bool(usage.hole_pages or usage.hole_states)


def _sketch(core: Core, b: Builder) -> Plan:
    """The plan as far as its time goes."""
    n = len(b.lanes)
    filled: dict[str, Any] = {"moves": np.concatenate(b.moves)} if b.moves else {}
    return Plan(
        step=b.step, kind=DECODES(n), lane=b.lanes, generation=core.lanes.generation.take(b.lanes), start=b.starts,
        length=ONES(n), sample=TRUE(n), token_offset=ZEROS(n + 1), **filled,
    )


def _cover(core: Core, b: Builder, steps: int) -> int:
    """Pages for `steps` decode steps, taken in the order in which single steps would take them; fewer steps when
    they do not all fit as things stand. The plan's rows stand for so many steps then."""
    lanes, arena = core.lanes, core.cache.arena
    rows = Rows(b.lanes, steps=steps)
    needs = lanes.survey(rows)
    if needs.pages and arena.fits(needs.pages, 0) != Fit.NOW:
        steps = max(1, int((lanes.covered[b.lanes] - lanes.launched[b.lanes]).min()))
        rows = Rows(b.lanes, steps=steps)
        needs = lanes.survey(rows)
    if needs.pages:
        got = room.take(core, b, needs.pages, 0, room.Evict.NOTHING)
        assert got is not None
        decode.give_rows(core, b, rows, needs, lanes.deal(rows, needs, got[0]))
    b.rows = rows
    decode.touch_rows(core, b, rows, needs)
    return steps
