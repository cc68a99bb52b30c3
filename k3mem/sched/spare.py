"""What the last running request holds but does not need: what goes when there is nobody left to retract.

A request needs its pages and its working state. Beside them it may keep the checkpoint it stands on (its lock does),
the partial page of the tail it resumed from, its extra buffer, and targets for its followers. Pins go first of all.
"""

from __future__ import annotations

from k3mem.sched.core import Core
from k3mem.sched.job import Seated
from k3mem.types import NO_STATE, StateId


def give_one(core: Core, seat: Seated) -> bool:
    """Let one such thing of a seat go, the only one that runs; pins before that. False when there is none. For a plan
    without restores or copies so far: steps launched before it have read their sources, in stream order."""
    return core.pins.give_way() or _leave_tail(core, seat) or _drop_checkpoint(core, seat) or _drop_extra(core, seat)


def _leave_tail(core: Core, seat: Seated) -> bool:
    """From a tail to the last page multiple below it: the seat has its own copy of the rows above."""
    tree, span = core.cache.tree, core.span
    info = tree.info(seat.node)
    if not info.is_tail:
        return False
    floor = info.depth // span * span
    node = info.parent
    if floor > info.start:
        pages = seat.pages[: seat.page_count]
        node = tree.publish(node, seat.job.tokens, floor, pages, stamp=info.kv_stamp).node
    tree.lock(node)
    tree.unlock(seat.node)
    seat.node, seat.node_depth = node, floor
    return True


def _drop_checkpoint(core: Core, seat: Seated) -> bool:
    if core.cache.tree.state(seat.node) == NO_STATE or core.cache.holds[seat.node]:
        return False
    core.cache.let_go(seat.node)
    return True


def _drop_extra(core: Core, seat: Seated) -> bool:
    if seat.slots:
        _free(core, seat.slots.popitem()[1])
        return True
    if seat.extra.latest is not None:
        _free(core, seat.extra.donate()[0])
        return True
    if seat.extra.pending is not None and core.lanes.inflight[seat.lane] == 0:
        _free(core, seat.extra.missed())
        return True
    return False


def _free(core: Core, state: StateId) -> None:
    core.cache.arena.free_state(state)
