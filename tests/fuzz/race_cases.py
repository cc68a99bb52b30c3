"""One small recording for every kind of race, and the other order of its two commands.

A case is a list of plans, run one after another. `other` gives the same work in the other order; None: the mock itself
runs the two commands in either order, as its seed says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from k3mem.errors import StepFailed
from k3mem.executor import Layout
from k3mem.executors.mock import Faults, MockExecutor
from k3mem.executors.mock.memory import POISON
from k3mem.fuzz.race import Judge, Report
from k3mem.fuzz.record import Recorder
from k3mem.plan import PAGE, Plan, Seat
from tests.plans import Host, PlanBuilder, layout_of, small_shape

LAYOUT = layout_of(small_shape())
Plans = list[PlanBuilder]


@dataclass(frozen=True)
class Case:
    kind: str
    plans: Callable[[], Plans]
    other: Callable[[], Plans] | None = None


def scene(*, lanes: int = 2, depth: int = 6) -> tuple[Host, Plans]:
    """Lane n has prefilled `depth` tokens of its own and sampled one. Its pages are 3n + 1 .. 3n + 3 of 4 rows, its
    state is n + 1."""
    host = Host(LAYOUT)
    builder = host.plan()
    for lane in range(lanes):
        host.seat(builder, lane, prompt=depth, limit=12)
        builder.prefill(lane, 0, [10 * lane + n for n in range(depth)], True)
    return host, [builder]


def decodes(host: Host, depth: int = 6, lanes: Sequence[int] = (0, 1)) -> PlanBuilder:
    builder = host.plan()
    for lane in lanes:
        builder.decode(lane, depth)
    return builder


def seat(lane: int, state: int, **more: Any) -> Seat:
    return Seat(**({"lane": lane, "generation": 2, "scope": b"scope", "state": state, "depth": 0, "prompt": 4,
                    "limit": 12} | more))


def extra(builder: PlanBuilder, entry: int, place: int, *, state: bool = False, zero: bool = True) -> None:
    """An id outside the host's count."""
    builder.add("state_table" if state else "page_table", (entry, place))
    if zero:
        builder.add("zero_states" if state else "zero_pages", entry)


# -- without an order


def moves_overlap() -> Plans:
    host, plans = scene()
    plan = decodes(host).add("moves", (0, PAGE, 1, 20), (0, PAGE, 4, 1)).add("page_table", (1, 20), (4, 1))
    return [*plans, plan]


def two_places(first: int, second: int) -> Plans:
    host, plans = scene()
    plan = decodes(host).add("moves", (0, PAGE, 1, 20)).add("page_table", (1, first), (1, second))
    return [*plans, plan]


def two_tenants(scopes: tuple[bytes, bytes]) -> Plans:
    host, plans = scene()
    plan = host.plan()
    extra(plan, 7, 7, state=True)
    extra(plan, 8, 8)
    plan.add("seats", *(seat(2, 7, scope=scope) for scope in scopes)).add("lane_pages", (2, 0, 8))
    return [*plans, plan.prefill(2, 0, [1, 2], True, generation=2)]


def copies_overlap() -> Plans:
    host, plans = scene()
    plan = host.plan()
    extra(plan, 8, 8, zero=False)
    return [*plans, plan.add("page_copies", (1, 4, 4), (4, 8, 4))]


def restores_overlap() -> Plans:
    host, plans = scene()
    plan = host.plan()
    extra(plan, 8, 8, state=True, zero=False)
    return [*plans, plan.add("restores", (1, 2), (2, 8))]


def two_rows() -> Plans:
    host = Host(LAYOUT)
    first, second = host.plan(), host.plan()
    host.seat(first, 0, prompt=8, limit=12)
    first.prefill(0, 0, [1, 2, 3, 4], False)
    return [first, second.prefill(0, 4, [5, 6], False).prefill(0, 4, [7, 8], True)]


def one_state() -> Plans:
    host = Host(LAYOUT)
    plan = host.plan()
    host.seat(plan, 0, prompt=4, limit=12)
    host.seat(plan, 1, prompt=4, limit=12, state=1)
    return [plan.prefill(0, 0, [1, 2, 3, 4], True).prefill(1, 0, [5, 6, 7, 8], True)]


def one_page() -> Plans:
    host = Host(LAYOUT)
    plan = host.plan()
    host.seat(plan, 0, prompt=4, limit=12)
    host.seat(plan, 1, prompt=4, limit=12)
    plan.add("lane_pages", (1, 0, 1))
    return [plan.prefill(0, 0, [1, 2, 3, 4], True).prefill(1, 0, [5, 6, 7, 8], True)]


def target_is_working() -> Plans:
    host, plans = scene()
    plan = host.plan().decode(0, 6).snapshot(7, 2).decode(1, 6)
    return [*plans, plan]


def two_folds(swap: bool) -> Plans:
    host, plans = scene()
    plan = host.plan()
    for drafts in ([1, 2], [3])[:: -1 if swap else 1]:
        plan.verify(0, 6, drafts)
    return [*plans, plan]


# -- in the wrong order


def early_restore(later: bool) -> Plans:
    host, plans = scene(lanes=1)
    plan = host.plan()
    extra(plan, 7, 7, state=True, zero=False)
    extra(plan, 8, 8, state=True, zero=False)
    plan.decode(0, 6).snapshot(7, 7)
    into = host.plan() if later else plan
    into.add("restores", (7, 8))
    return [*plans, plan, *([into] if later else [])]


def late_zeroing(first: bool) -> Plans:
    host, plans = scene(lanes=1)
    if not first:
        return [*plans, decodes(host, lanes=[0]).add("zero_pages", 1)]
    plans[0].add("zero_pages", 1)
    return [*plans, decodes(host, lanes=[0])]


def no_zeroing(late: bool) -> Plans:
    """Working state of lane 2 is zeroed by the plan after the one that uses it."""
    host, plans = scene()
    plan, after = host.plan(), host.plan()
    extra(plan, 7, 7, state=True, zero=not late)
    extra(plan, 8, 8)
    plan.add("seats", seat(2, 7)).add("lane_pages", (2, 0, 8)).prefill(2, 0, [1, 2, 3], True, generation=2)
    return [*plans, plan, after.add("zero_states", *([7] if late else []))]


def reused(before: bool) -> Plans:
    """Lane 2 resumes from lane 0's state of depth 4, which lane 0 goes on to use."""
    host, plans = scene(lanes=1, depth=4)
    go_on, resume = decodes(host, 4, [0]), host.plan()
    extra(resume, 8, 8, state=True, zero=False)
    extra(resume, 8, 8)
    resume.add("restores", (1, 8)).add("seats", seat(2, 8, depth=4, prompt=6))
    resume.add("lane_pages", (2, 0, 1), (2, 1, 8)).prefill(2, 4, [5, 6], True, generation=2)
    return numbered([*plans, resume, go_on] if before else [*plans, go_on, resume])


def stale_source(before: bool) -> Plans:
    host, plans = scene()
    taken, restore = host.plan(), host.plan()
    extra(taken, 7, 1, state=True)
    extra(restore, 8, 8, state=True, zero=False)
    restore.add("restores", (1, 8))
    return numbered([*plans, restore, taken] if before else [*plans, taken, restore])


def stale_target(before: bool) -> Plans:
    host, plans = scene()
    taken, zero = host.plan(), host.plan().add("zero_states", 1)
    extra(taken, 7, 1, state=True, zero=False)
    extra(taken, 8, 8)
    taken.add("restores", (2, 7))
    return numbered([*plans, zero, taken] if before else [*plans, taken, zero])


def second_writer(before: bool) -> Plans:
    host = Host(LAYOUT)
    one, other = host.plan(), host.plan()
    host.seat(one, 0, prompt=3, limit=12)
    host.seat(one, 1, prompt=3, limit=12)
    one.add("lane_pages", (1, 0, 1))
    rows = [(0, [1, 2, 3]), (1, [4, 5, 6])][:: -1 if before else 1]
    for plan, (lane, tokens) in zip((one, other), rows, strict=True):
        plan.prefill(lane, 0, tokens, True)
    return [one, other]


def moved_from_nobody(before: bool) -> Plans:
    host, plans = scene(lanes=1)
    move = host.plan().add("moves", (0, PAGE, 40, 1))
    return numbered([move, *plans] if before else [*plans, move, decodes(host, lanes=[0])])


def old_generation(before: bool) -> Plans:
    host, plans = scene(lanes=1)
    new, old = host.plan(), decodes(host, lanes=[0])
    extra(new, 7, 7, state=True)
    new.add("seats", seat(0, 7))
    return numbered([*plans, old, new] if before else [*plans, new, old])


def swapped_chunks(right: bool) -> Plans:
    host = Host(LAYOUT)
    first, one, other = host.plan(), host.plan(), host.plan()
    host.seat(first, 0, prompt=12, limit=12)
    first.prefill(0, 0, [1, 2, 3, 4], False)
    one.prefill(0, 4, [5, 6, 7, 8], False)
    other.prefill(0, 8, [9, 10, 11, 12], False)
    return numbered([first, one, other] if right else [first, other, one])


def twice_zeroed() -> Plans:
    host, plans = scene()
    plan = host.plan()
    extra(plan, 8, 8)
    return [*plans, plan.add("zero_pages", 8)]


def twice_told() -> Plans:
    host, plans = scene()
    return [*plans, decodes(host).add("lane_pages", (0, 0, 1), (0, 0, 1))]


def numbered(plans: Plans) -> Plans:
    """In this order, with steps to match."""
    for step, plan in enumerate(plans, 1):
        plan.head["step"] = step
    return plans


CASES = [
    Case("moves_overlap", moves_overlap),
    Case("tables_conflict", lambda: two_places(20, 1), lambda: two_places(1, 20)),
    Case("lane_seated_twice", lambda: two_tenants((b"a", b"b")), lambda: two_tenants((b"b", b"a"))),
    Case("copies_overlap", copies_overlap),
    Case("restores_overlap", restores_overlap),
    Case("two_rows_one_lane", two_rows),
    Case("rows_share_state", one_state),
    Case("rows_share_page", one_page),
    Case("target_in_use", target_is_working),
    Case("folded_twice", lambda: two_folds(False), lambda: two_folds(True)),
    Case("restored_before_write", lambda: early_restore(False), lambda: early_restore(True)),
    Case("use_before_write", lambda: no_zeroing(True), lambda: no_zeroing(False)),
    Case("lost_write", lambda: late_zeroing(False), lambda: late_zeroing(True)),
    Case("wrong_prefix", lambda: reused(False), lambda: reused(True)),
    Case("stale_entry", lambda: stale_source(False), lambda: stale_source(True)),
    Case("foreign_write", lambda: stale_target(False), lambda: stale_target(True)),
    Case("two_writers", lambda: second_writer(False), lambda: second_writer(True)),
    Case("moved_nobody", lambda: moved_from_nobody(False), lambda: moved_from_nobody(True)),
    Case("stale_lane", lambda: old_generation(False), lambda: old_generation(True)),
    Case("wrong_position", lambda: swapped_chunks(False), lambda: swapped_chunks(True)),
]
"""Kinds of the forward stream alone. Where `other` is a right order, it has no race."""
BENIGN_CASES = [Case("zeroed_twice", twice_zeroed), Case("told_twice", twice_told)]


def outcome(plans: Sequence[PlanBuilder | Plan], seed: int = 0, *, faults: Faults | None = None,
            layout: Layout = LAYOUT) -> tuple[Report, Any]:
    """The judgement of a run on the mock, and what the run left: sampled tokens, rows, states; poison is poison."""
    judge = Judge()
    mock = MockExecutor(seed, shuffle_streams=False, faults=faults)
    executor = Recorder(mock, judge)
    executor.attach(layout)
    tokens: list[tuple[int, ...]] = []
    for plan in plans:
        try:
            result = executor.collect(executor.launch(plan.build() if isinstance(plan, PlanBuilder) else plan))
        except StepFailed:
            continue
        tokens.append(tuple(result.tokens.tolist()))
    return judge.finish(), (tuple(tokens), bytes_of(mock))


def bytes_of(mock: MockExecutor) -> Any:
    """What the mock's pages and states hold, the sinks aside."""
    memory = mock.device.memory
    rows = tuple(None if page is None else tuple(tuple(min(v, POISON) for v in group) for group in page.rows)
                 for page in memory.pages[1:])
    return rows, tuple(memory.matrix)[1:], tuple(memory.window)[1:]


def reversed_phases(plan: Plan) -> Plan:
    """The plan with the entries of each unordered phase the other way round."""
    return replace(plan, **{name: np.ascontiguousarray(getattr(plan, name)[::-1])
                            for name in ("page_table", "state_table", "zero_pages", "zero_states", "lane_pages")})
