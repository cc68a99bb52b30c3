"""Every planted misuse is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from k3mem.executors.mock import MockExecutor
from k3mem.plan import Row, Sampling, Seat
from tests.plans import Host, PlanBuilder, layout_of, run, small_shape

PROMPT = [5, 3, 8, 1, 9, 2]
LIMIT = 12


@dataclass
class Scene:
    """Lane 1 has absorbed PROMPT; a checkpoint at depth 4 exists; `plan` is the next plan, to be spoiled."""

    executor: MockExecutor
    host: Host
    state: int
    pages: list[int]
    checkpoint: int
    plan: PlanBuilder

    def next(self) -> PlanBuilder:
        """Run what `plan` holds and begin another."""
        run(self.executor, self.plan)
        self.plan = self.host.plan()
        return self.plan

    def found(self) -> list[str]:
        run(self.executor, self.plan)
        return self.executor.violations


@pytest.fixture(params=[0, 1, 2])
def scene(request: pytest.FixtureRequest) -> Scene:
    return scene_of(request.param)


def scene_of(seed: int = 0, **options: Any) -> Scene:
    executor = MockExecutor(seed, **options)
    layout = layout_of(small_shape())
    executor.attach(layout)
    host = Host(layout)
    first = host.plan()
    state = host.seat(first, 1, prompt=len(PROMPT), limit=LIMIT)
    pages = [entry[2] for entry in first.entries["lane_pages"]]
    checkpoint = host.new_state(first, zero=False)
    run(executor, first.prefill(1, 0, PROMPT, True).snapshot(4, checkpoint))
    assert executor.violations == []
    return Scene(executor, host, state, pages, checkpoint, host.plan())


def resume(scene: Scene, **changes: Any) -> None:
    """Lane 2 resumes at the checkpoint."""
    seat: dict[str, Any] = {"prompt": 6, "limit": LIMIT, "depth": 4, "checkpoint": scene.checkpoint,
                            "shared": scene.pages[:1]}
    scene.host.seat(scene.plan, 2, **(seat | changes))


Spoil = Callable[[Scene], object]


def drop(plan: PlanBuilder, phase: str, index: int = -1) -> None:
    del plan.entries[phase][index]


def unzeroed_state(s: Scene) -> None:
    s.host.seat(s.plan, 2, prompt=6, limit=LIMIT)
    drop(s.plan, "zero_states")
    s.plan.prefill(2, 0, PROMPT, True)


def unzeroed_page(s: Scene) -> None:
    s.host.seat(s.plan, 2, prompt=2, limit=4)
    drop(s.plan, "zero_pages")
    s.plan.prefill(2, 0, PROMPT[:2], True)


def unread_unzeroed_page(s: Scene) -> None:
    s.host.new_pages(s.plan, 1, zero=False)


def used_state_at_depth_0(s: Scene) -> None:
    s.host.seat(s.plan, 2, prompt=6, limit=LIMIT)
    s.plan.add("restores", (s.checkpoint, s.host.states)).prefill(2, 0, PROMPT, True)


def restore_of_poison(s: Scene) -> None:
    target = s.host.new_state(s.plan, zero=False)
    resume(s, checkpoint=target)
    s.plan.prefill(2, 4, PROMPT[4:], True)


def restore_of_another_depth(s: Scene) -> None:
    resume(s, checkpoint=s.state)
    s.plan.prefill(2, 4, PROMPT[4:], True)


def missing_restore(s: Scene) -> None:
    resume(s)
    drop(s.plan, "restores")
    s.plan.prefill(2, 4, PROMPT[4:], True)


def foreign_scope(s: Scene) -> None:
    resume(s, scope=b"other")
    s.plan.prefill(2, 4, PROMPT[4:], True)


def foreign_pages(s: Scene) -> None:
    resume(s, shared=s.pages[1:2])
    s.plan.prefill(2, 4, PROMPT[4:], True)


def copy_of_unwritten_rows(s: Scene) -> None:
    resume(s, depth=8, shared=s.pages[:1], tail=(s.pages[1], 4))


def tail_shared_in_place(s: Scene) -> None:
    """Lane 2 stands on lane 1's unfinished page itself: both write row 2 of it."""
    resume(s, depth=6, checkpoint=s.state, shared=s.pages[:2])
    s.plan.decode(1, 6).prefill(2, 6, [7], True)


def shared_working_state(s: Scene) -> None:
    resume(s)
    s.plan.entries["seats"] = [Seat(lane=2, generation=1, scope=b"scope", state=s.state, depth=4, prompt=6, limit=12)]
    s.plan.decode(1, 6).prefill(2, 4, PROMPT[4:], True)


def target_is_a_working_state(s: Scene) -> None:
    resume(s)
    s.plan.prefill(2, 4, PROMPT[4:], True).decode(1, 6).snapshot(7, s.host.states)


def state_over_a_live_page(s: Scene) -> None:
    """State place 40 covers bytes 60..159 of the arena, pages 1 (40..79) to 3 (120..159)."""
    s.plan.add("state_table", (9, 40)).add("zero_states", 9).decode(1, 6)


def page_over_a_live_state(s: Scene) -> None:
    """Page place 100 covers bytes 4000..4039 of the arena, state 1 bytes 3960..4059."""
    s.plan.add("page_table", (40, 100)).add("zero_pages", 40).decode(1, 6)


def place_given_to_another_id(s: Scene) -> None:
    s.plan.add("page_table", (50, s.pages[0])).add("zero_pages", 50).decode(1, 6)


def state_place_given_to_another_id(s: Scene) -> None:
    s.plan.add("state_table", (9, s.state)).add("zero_states", 9).decode(1, 6)


def two_ids_at_one_place(s: Scene) -> None:
    s.plan.add("page_table", (50, 60), (51, 60)).add("zero_pages", 50, 51)


def move_without_table(s: Scene) -> None:
    s.plan.add("moves", (0, 0, s.pages[0], 40)).decode(1, 6)


def table_without_move(s: Scene) -> None:
    s.plan.add("page_table", (s.pages[0], 40)).decode(1, 6)


def state_table_without_move(s: Scene) -> None:
    s.plan.add("state_table", (s.state, 12)).decode(1, 6)


def unread_context(s: Scene) -> None:
    s.plan.add("zero_pages", s.pages[0]).decode(1, 6)


def drop_lane_page(s: Scene) -> None:
    resume(s)
    drop(s.plan, "lane_pages")
    s.plan.prefill(2, 4, [*PROMPT[4:], 1, 1, 1], True)


def rewritten_lane_page(s: Scene) -> None:
    s.plan.add("lane_pages", (1, 0, s.pages[1])).decode(1, 6)


def stale_rows_beyond_the_chunk(s: Scene) -> None:
    """Lane 2 gets lane 1's own page, freed and handed out again under the same id, unzeroed."""
    s.host.seat(s.plan, 2, prompt=2, limit=4, shared=s.pages[:1])
    s.plan.prefill(2, 0, PROMPT[:2], True)


MISUSES: list[tuple[Spoil, str]] = [
    (unzeroed_state, "which is poison"),
    (unzeroed_page, "rows beyond 1 are poison"),
    (unread_unzeroed_page, "neither zeroed nor overwritten"),
    (used_state_at_depth_0, "starts at depth 0 from a used state"),
    (restore_of_poison, "restores: restores state place"),
    (restore_of_another_depth, "not that of the prefix"),
    (missing_restore, "which is poison"),
    (foreign_scope, "does not continue"),
    (foreign_pages, "does not continue"),
    (copy_of_unwritten_rows, "not all of which were written"),
    (tail_shared_in_place, "without zeroing"),
    (shared_working_state, "is also"),
    (target_is_a_working_state, "is also"),
    (state_over_a_live_page, "which is poison"),
    (page_over_a_live_state, "which is poison"),
    (place_given_to_another_id, "owned by 50"),
    (state_place_given_to_another_id, "owned by 9"),
    (two_ids_at_one_place, "ids 50 and 51 to place 60"),
    (move_without_table, "owned by -1"),
    (table_without_move, "which is poison"),
    (state_table_without_move, "which is poison"),
    (unread_context, "which nobody wrote"),
    (drop_lane_page, "page list lacks entries"),
    (rewritten_lane_page, "does not continue"),
    (stale_rows_beyond_the_chunk, "without zeroing"),
    (lambda s: s.plan.decode(1, 6, generation=2), "whose tenant is 1"),
    (lambda s: s.plan.decode(3, 6), "has no seat"),
    (lambda s: s.plan.decode(99, 6), "has no seat"),
    (lambda s: s.plan.decode(1, 5), "deeper than the worst case"),
    (lambda s: s.plan.decode(1, 6).decode(1, 6), "two rows for one lane"),
    (lambda s: s.plan.prefill(1, 6, [1], False), "is not absorbed"),
    (lambda s: (resume(s), s.plan.decode(2, 4)), "has no sampled token"),
    (lambda s: (resume(s), s.plan.prefill(2, 5, [1], True)), "stands at 4"),
    (lambda s: s.plan.add("zero_pages", 63), "no table entry"),
    (lambda s: s.plan.add("zero_states", 15), "no table entry"),
    (lambda s: s.plan.add("zero_pages", 64), "out of range"),
    (lambda s: s.plan.add("zero_pages", 0), "the sink"),
    (lambda s: s.plan.add("page_table", (50, 0)), "where a sink lies"),
    (lambda s: s.plan.add("page_table", (50, 103)), "where a sink lies"),
    (lambda s: s.plan.add("state_table", (9, 41)), "out of range"),
    (lambda s: s.plan.add("restores", (s.checkpoint, 0)), "the sink"),
    (lambda s: s.plan.add("lane_pages", (4, 0, 1)), "has no seat"),
    (lambda s: s.plan.add("restores", (s.checkpoint, s.checkpoint)), "both source and destination"),
    (lambda s: s.plan.add("page_copies", (1, 3, 2), (2, 3, 1)), "written twice"),
    (lambda s: s.plan.add("page_copies", (1, 3, 5)), "copies 5 rows"),
    (lambda s: s.plan.add("moves", (0, 0, 1, 40), (0, 0, 40, 41)), "overlap"),
    (lambda s: s.plan.add("moves", (0, 1, 1, 10), (0, 0, 1, 76)), "overlap"),
    (lambda s: s.plan.add("moves", (0, 0, 0, 40)), "is a sink"),
    (lambda s: s.plan.add("moves", (0, 0, 1, 104)), "out of range"),
    (lambda s: s.plan.add("moves", (0, 0, 60, 61)), "which no id owns"),
    (lambda s: (resume(s), s.plan.prefill(2, 4, [1, 2], True).snapshot(4, s.checkpoint)), "lies outside"),
    (lambda s: (resume(s), s.plan.prefill(2, 4, [1, 2], True).snapshot(7, s.checkpoint)), "lies outside"),
    (lambda s: s.plan.decode(1, 6).snapshot(8, s.checkpoint), "lies outside"),
    (lambda s: s.plan.verify(1, 6, [1, 2]).snapshot(7, s.checkpoint).snapshot(8, s.state), "more than one"),
    (lambda s: s.plan.decode(1, 6).add("snapshots", (1, 7, s.checkpoint)), "does not exist"),
    (lambda s: s.plan.decode(1, 6).snapshot(7, 14), "no table entry"),
    (lambda s: s.plan.verify(1, 6, [1] * 16), "verifies a window of 17"),
    (lambda s: s.plan.row(Row.DECODE, 1, 1, 6, 2, True), "has length 2"),
    (lambda s: s.plan.row(Row.DECODE, 1, 1, 6, 1, False), "does not sample"),
    (lambda s: s.plan.head.update(step=7), "does not follow"),
    (lambda s: (s.plan.head.update(repeat=2), s.plan.decode(1, 6)), "without fast-forward"),
    (lambda s: s.plan.add("seats", Seat(lane=1, generation=1, scope=b"", state=1, depth=0, prompt=1, limit=2)),
     "with the generation 1 of its last tenant"),
    (lambda s: s.plan.add("seats", Seat(lane=8, generation=1, scope=b"", state=1, depth=0, prompt=1, limit=2)),
     "out of range"),
]


def name_of(spoil: Spoil) -> str:
    name = spoil.__name__
    return "" if name == "<lambda>" else name


@pytest.mark.parametrize(("spoil", "message"), MISUSES, ids=[name_of(spoil) or text for spoil, text in MISUSES])
def test_misuse_is_reported(scene: Scene, spoil: Spoil, message: str) -> None:
    spoil(scene)
    found = scene.found()
    assert any(message in violation for violation in found), found
    assert found[0].startswith(f"step {scene.plan.head['step']}: ")


def test_reading_rows_that_the_same_step_writes_is_reported_in_every_order() -> None:
    found = []
    for seed in range(12):
        scene = scene_of(seed)
        scene.plan.decode(1, 6)
        scene.next()
        resume(scene, depth=8, checkpoint=scene.state, shared=scene.pages[:2])
        scene.plan.decode(1, 7).prefill(2, 8, [7], True)
        found.append(" ".join(scene.found()))
    assert all("in this step" in text or "which nobody wrote" in text for text in found)
    assert any("in this step" in text for text in found) and not all("in this step" in text for text in found)


@pytest.mark.parametrize("spoil", [resume, lambda s: s.plan.decode(1, 6), lambda s: s.plan.verify(1, 6, [1, 2])])
def test_right_use_is_not_reported(scene: Scene, spoil: Spoil) -> None:
    spoil(scene)
    assert scene.found() == []


@pytest.mark.parametrize(("capture", "depth", "right"), [
    ("any", 3, True), ("grid", 3, False), ("grid", 4, True), ("grid", 6, True), ("final", 4, False), ("final", 6, True),
])
def test_snapshots_beyond_the_capture_capability_are_reported(capture: Any, depth: int, right: bool) -> None:
    executor = MockExecutor(capture=capture)
    layout = layout_of(small_shape())
    executor.attach(layout)
    host = Host(layout)
    plan = host.plan()
    host.seat(plan, 1, prompt=6, limit=LIMIT)
    run(executor, plan.prefill(1, 0, PROMPT, True).snapshot(depth, host.new_state(plan)))
    assert (executor.violations == []) == right


def test_a_moved_place_is_poison_afterwards(scene: Scene) -> None:
    scene.plan.add("moves", (0, 0, scene.pages[0], 40), (0, 1, scene.state, 9))
    scene.plan.add("page_table", (scene.pages[0], 40)).add("state_table", (scene.state, 9))
    scene.next()
    memory = scene.executor.device.memory
    assert memory.pages[scene.pages[0]] is None and not memory.state_alive(scene.state)
    assert scene.executor.violations == []


def test_an_omitted_half_of_a_state_is_poison(scene: Scene) -> None:
    scene.executor.device.memory.window[scene.state] = None
    scene.plan.decode(1, 6)
    assert any("which is poison" in violation for violation in scene.found())


@pytest.mark.parametrize("half", ["matrix", "window"])
def test_audit_tells_matrix_and_window_apart(scene: Scene, half: str) -> None:
    memory = scene.executor.device.memory
    entry = (b"scope", PROMPT, 4, scene.checkpoint, scene.pages)
    assert scene.executor.audit([entry]) == []
    getattr(memory, half)[scene.checkpoint] = getattr(memory, half)[scene.state]
    (difference,) = scene.executor.audit([entry])
    assert half in difference


@pytest.mark.parametrize("group", [0, 1])
def test_audit_sees_every_row_of_every_group(scene: Scene, group: int) -> None:
    page = scene.executor.device.memory.pages[scene.pages[1]]
    assert page is not None
    page.rows[group][1] ^= 1
    (difference,) = scene.executor.audit([(b"scope", PROMPT, 6, -1, scene.pages)])
    assert f"group {group}: rows [1]" in difference
    assert scene.executor.audit([(b"scope", PROMPT, 5, -1, scene.pages)]) == []


def test_audit_reports_wrong_tokens_short_pages_and_unknown_ids(scene: Scene) -> None:
    audit = scene.executor.audit
    assert audit([(b"scope", [*PROMPT[:5], 99], 6, -1, scene.pages)])
    assert audit([(b"other", PROMPT, 4, scene.checkpoint, scene.pages)])
    assert audit([(b"scope", PROMPT, 6, -1, scene.pages[:1])])
    assert audit([(b"scope", PROMPT, 7, -1, scene.pages)])
    assert audit([(b"scope", PROMPT, 4, 15, [63])])


def test_corrupted_context_changes_the_tokens() -> None:
    tokens = []
    for touch in (False, True):
        scene = scene_of()
        page = scene.executor.device.memory.pages[scene.pages[0]]
        assert page is not None
        if touch:
            page.rows[1][2] ^= 1
            page.known = 0
            scene.executor.device.memory.epoch += 1
        (result,) = run(scene.executor, scene.plan.decode(1, 6))
        tokens.append(result.tokens.tolist())
    assert tokens[0] != tokens[1]


def test_poison_taints_the_tokens(scene: Scene) -> None:
    right = scene.executor.fresh_output(b"scope", PROMPT, Sampling(), 2)
    scene.executor.device.memory.poison_rows(scene.pages[0], 1, 2)
    (result,) = run(scene.executor, scene.plan.decode(1, 6))
    assert result.tokens.tolist() != right[1:]
    assert any("reads poison at row 1" in violation for violation in scene.executor.violations)
