"""Coverage marks: named branches of the core, counted from outside while a `Marks` is open; nothing is paid otherwise.

A mark watches one function: it is reached when a call, judged by its arguments and its result, took that branch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

from k3mem.engine import Engine
from k3mem.errors import Effect
from k3mem.plan import PAGE, STATE, Plan, Row
from k3mem.pool import Arena, ExtraBuffer, Fit
from k3mem.radix import Kind, Tree
from k3mem.sched import admit, anchors, close, commit, decode, failure, follow, launch, moves, prefill, room, spare
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.job import End
from k3mem.sched.pins import Pins
from k3mem.sched.scheduler import Scheduler
from k3mem.sched.sessions import Sessions

Reached = Callable[[Any, tuple[Any, ...]], Any]
"""(result, arguments) -> whether the branch was taken."""


def _plan(test: Callable[[Plan], Any]) -> Reached:
    return lambda plan, args: test(plan)


def _always(result: Any, args: tuple[Any, ...]) -> bool:
    return True


def _done(result: Any, args: tuple[Any, ...]) -> bool:
    return bool(result)


MARKS: tuple[tuple[str, Any, str, Reached], ...] = (
    # match and admission
    ("hit", Cache, "match", lambda m, a: m.depth > 0),
    ("tail hit", Cache, "match", lambda m, a: m.depth % a[0].shape.page_span),
    ("tombstone on the path", Cache, "match", lambda m, a: m.evicted > m.depth),
    ("KV beyond the checkpoint", Cache, "match", lambda m, a: m.kv > m.depth > 0),
    ("ghost beyond the KV", Cache, "match", lambda m, a: m.known > m.kv),
    ("checkpoint beyond the limit", Cache, "match", lambda m, a: m.full > a[3]),
    ("known in another scope", Cache, "explain", lambda c, a: "other_scope" in c),
    ("off-grid miss", Cache, "explain", lambda c, a: "off_grid" in c),
    ("evicted miss", Cache, "explain", lambda c, a: "kv_evicted" in c),
    ("stateless miss", Cache, "explain", lambda c, a: "no_state" in c),
    ("seated", admit, "_seat", _done),
    ("refused", admit, "_seat", lambda r, a: not r),
    ("refused at a hit", admit, "_seat", lambda r, a: not r and a[3].depth),
    ("starts over from nothing", admit, "_from_nothing", _always),
    ("takeover in place", admit, "_reserve", lambda r, a: r is not None and r[2]),
    ("takeover undone", admit, "_put_back", _always),
    ("preempted by priority", admit, "retract", _always),
    ("admission undone", admit, "_requeue", _always),
    ("admission undone after an abort", admit, "_requeue", lambda r, a: a[1].reason is not None),
    # followers
    ("follower waits", follow, "should_wait", _done),
    ("follower gives up", follow, "should_wait", lambda r, a: not r and a[2].waits),
    ("follower's wait undone", follow, "_unwait", _always),
    ("slot for a follower", follow, "_meeting", lambda r, a: r is not None),
    # prefill
    ("several snapshots in a chunk", prefill, "add_targets", lambda r, a: any(
        len(row.targets) > 1 for row in a[1].prefill)),
    ("chunk off the grid", prefill, "_chunk_end", lambda r, a: r > a[3] and r < a[2].target
        and r % a[0].shape.grid),
    ("no budget for a chunk", prefill, "_chunk_end", lambda r, a: r <= a[3]),
    ("branch anchor", anchors, "planned", lambda r, a: Kind.BRANCH in r.values()),
    ("hint anchor", anchors, "planned", lambda r, a: Kind.HINT in r.values()),
    ("turn anchor", anchors, "planned", lambda r, a: Kind.TURN in r.values()),
    ("chunk drawn back to an anchor", anchors, "cut", lambda r, a: r < a[3]),
    ("skipped snapshot", room, "take_state", lambda r, a: r is None),
    # decode
    ("verify rows", Builder, "finish", _plan(lambda p: (p.kind == Row.VERIFY).any())),
    ("prefill beside decode", Builder, "finish", _plan(lambda p: len(set(p.kind.tolist())) > 1)),
    ("decode snapshot", Builder, "finish", _plan(lambda p: any(
        p.kind[row] != Row.PREFILL for row in p.snapshots[:, 0].tolist()))),
    ("target named again", decode, "add_snapshots", lambda r, a: any(
        s.seat.extra.pending is not None and a[0].lanes.inflight[s.seat.lane] for s in a[1].snapshots)),
    ("snapshot landed", ExtraBuffer, "landed", _always),
    ("snapshot missed", ExtraBuffer, "missed", _always),
    ("retracted for pages", decode, "retract_last", _done),
    ("nobody to retract", decode, "retract_last", lambda r, a: not r),
    # what goes before a retraction
    ("tail left", spare, "_leave_tail", _done),
    ("own checkpoint dropped", spare, "_drop_checkpoint", _done),
    ("extra buffer dropped", spare, "_drop_extra", _done),
    ("pins gave way", Pins, "give_way", _done),
    ("hopeless demand", room, "hopeless", _done),
    # memory
    ("fits after moves", Arena, "fits", lambda r, a: r == Fit.MOVES),
    ("page moved", moves, "add", lambda r, a: (a[2][:, 1] == PAGE).any() if len(a[2]) else False),
    ("state moved", moves, "add", lambda r, a: (a[2][:, 1] == STATE).any() if len(a[2]) else False),
    ("moves undone", Arena, "undo", lambda r, a: len(a[1])),
    ("dead moves dropped", moves, "drop_dead", _always),
    ("lease", Arena, "lease", _always),
    ("evicted a checkpoint", Cache, "discard", lambda r, a: a[1].state >= 0),
    ("evicted KV alone", Cache, "discard", lambda r, a: a[1].state < 0),
    ("evicted only the cheap", Cache, "cheap_room", lambda r, a: r != Fit.NO),
    ("path capped", Tree, "cap", lambda r, a: r is not None),
    # publishing and the end
    ("displaced donation", Cache, "keep", lambda r, a: not r.taken and a[5] >= 0),
    ("pages replaced by the tree's", Cache, "keep", lambda r, a: len(r.changed)),
    ("finished", close, "close", lambda r, a: a[1].end == End.FINISH),
    ("retracted", close, "close", lambda r, a: a[1].end == End.RETRACT),
    ("aborted while running", close, "close", lambda r, a: a[1].end == End.ABORT),
    ("overrun row", commit, "_book", lambda r, a: r is None),
    ("host stop", commit, "_book", lambda r, a: r is not None and r.reason == "host_stop"),
    ("stop id", commit, "_book", lambda r, a: r is not None and r.reason == "stop"),
    ("launched over one in flight", launch, "launched", lambda r, a: len(a[0].flights) > 1),
    ("session held", Sessions, "arrive", lambda r, a: not r),
    ("family suspended", Sessions, "_make_way", lambda r, a: r),
    ("deadline", Scheduler, "abort", lambda r, a: len(a) > 2 and a[2] == "deadline"),
    # failure and the whole cache
    ("step failed, effect unknown", failure, "fail", lambda r, a: a[2] == Effect.UNKNOWN),
    ("step failed, contents lost", failure, "fail", lambda r, a: a[2] == Effect.CONTENTS_LOST),
    ("step failed, no effect", Scheduler, "missed", _always),
    ("survivor beside a failure", failure, "_forget_damage", _always),
    ("several steps failed at once", failure, "_damage", lambda r, a: len(a[1]) > 1),
    ("resync", Builder, "finish", _plan(lambda p: p.resync and p.step > 1)),
    ("cancelled", Scheduler, "cancel", _always),
    ("flushed", Engine, "flush", _always),
    ("resized", Engine, "resize", _always),
    ("slept", Engine, "sleep", _always),
)


@dataclass(eq=False)
class Marks:
    """Counts reached marks while it is open (a context manager)."""

    counts: Counter[str] = field(default_factory=Counter)
    _old: list[tuple[Any, str, Any]] = field(default_factory=list)

    def __enter__(self) -> Marks:
        self.counts.update(dict.fromkeys((name for name, *_ in MARKS), 0))
        wanted: dict[tuple[int, str], tuple[Any, list[tuple[str, Reached]]]] = {}
        for name, owner, function, reached in MARKS:
            wanted.setdefault((id(owner), function), (owner, []))[1].append((name, reached))
        for (_, function), (owner, tests) in wanted.items():
            old = getattr(owner, function)
            self._old.append((owner, function, old))
            setattr(owner, function, self._counting(old, tests))
        return self

    def _counting(self, old: Any, tests: list[tuple[str, Reached]]) -> Any:
        counts = self.counts

        def call(*args: Any, **named: Any) -> Any:
            result = old(*args, **named)
            for name, reached in tests:
                if np.any(reached(result, args)):
                    counts[name] += 1
            return result

        return call

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        while self._old:
            owner, function, old = self._old.pop()
            setattr(owner, function, old)


def missed(counts: Counter[str]) -> list[str]:
    """Marks that were never reached."""
    return [name for name, count in counts.items() if not count]


def table(counts: Counter[str]) -> str:
    """Three columns of names and counts; what was missed stands out."""
    cells = [f"{name:34}{count if count else '-- never':>10}" for name, count in counts.items()]
    third = -(-len(cells) // 3)
    rows = ["  ".join(cells[i::third]) for i in range(third)]
    return "\n".join([*rows, f"{len(cells) - len(missed(counts))} of {len(cells)} marks reached"])
