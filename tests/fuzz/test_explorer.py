"""The explorer visits every order of a small scope, the same ones each time, and finds planted bugs in it."""

from __future__ import annotations

import signal

import pytest

from k3mem.fuzz import script as do
from k3mem.fuzz import seek
from k3mem.fuzz.explorer import Choice, Explored, Explorer, Scope, _nth_node, explore, scopes
from k3mem.fuzz.fingerprint import fingerprint
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.runner import replay
from k3mem.fuzz.world import World

LATE, WINDOWS, FAIL, LEASE = scopes()[:4]
SMALL = [("donated_and_freed", LATE), ("states_are_not_zeroed", LATE), ("freed_before_the_last_reader", WINDOWS),
         ("cancel_keeps_its_bytes", WINDOWS), ("resync_is_skipped", FAIL)]
STEP = Choice((do.Plan(), do.Launch()))
COMMIT = Choice((do.Commit(),))
FIRST, SECOND = Choice((do.Submit(0, text=7, count=5, new=2),)), Choice((do.Submit(10, text=7, count=7, new=2),))


def after(scope: Scope, *choices: Choice) -> tuple[Explorer, World]:
    """A world of the scope to which this has happened."""
    explorer = Explorer(scope, Explored(), 0.0)
    world = explorer.world()
    for choice in choices:
        explorer.do(world, choice)
    return explorer, world


def test_a_scope_is_visited_whole_and_alike_each_time() -> None:
    one, other = (explore(60.0, [LATE]).as_dict() for _ in range(2))
    assert one["complete"] and one["found"] is None
    assert one["states"] > 200 and one["pruned"] > 200 and one["covered"] > 1000 * one["orders"] > 0
    assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_the_scope_has_every_misfortune_and_3_to_5_pages_and_2_to_4_states() -> None:
    assert {name for scope in scopes() for name in scope.misfortunes} == {"abort", "windows", "fail", "lease"}
    assert {scope.config.pages for scope in scopes()} == {3, 4, 5}
    assert {scope.config.states for scope in scopes()} == {2, 3, 4}
    assert len({str(scope) for scope in scopes()}) == len(scopes())


@pytest.mark.parametrize(("name", "scope"), SMALL, ids=[name for name, _ in SMALL])
def test_a_planted_bug_is_found_with_the_order_that_shows_it(name: str, scope: Scope) -> None:
    with BY_NAME[name].plant():
        out = explore(60.0, [scope])
        assert out.found is not None and out.order and out.script is not None
        assert replay(out.script).found is not None
    assert replay(out.script).found is None


def test_late_steps_show_what_steps_that_run_at_launch_do_not() -> None:
    """Plans that share their buffers do no harm as long as each has run before the next one is made."""
    with BY_NAME["shared_plan_buffers"].plant():
        late, at_launch = explore(60.0, [LATE]), explore(60.0, [LATE._replace(late=False)])
    assert late.found is not None and any(choice.endswith("late") for choice in late.order)
    assert at_launch.found is None and at_launch.complete


def test_a_late_step_runs_when_its_result_is_fetched_or_a_later_one_runs() -> None:
    late = STEP._replace(late=True)
    streams = after(LATE, FIRST, late)[1].executor._streams
    assert streams.waiting > 0
    explorer, world = after(LATE, FIRST, STEP, late)
    explorer.do(world, COMMIT)
    assert world.executor._streams.waiting > 0
    explorer.do(world, COMMIT)
    assert world.executor._streams.waiting == 0
    assert after(LATE, FIRST, late, STEP)[1].executor._streams.waiting == 0


def test_worlds_in_different_states_have_different_fingerprints() -> None:
    explorer, world = after(WINDOWS)
    seen = set()
    for _ in range(8):
        seen.add(fingerprint(world))
        explorer.do(world, explorer.choices(world, True)[0])
    assert len(seen) == 8
    late = STEP._replace(late=True)
    assert fingerprint(after(LATE, FIRST, STEP)[1]) != fingerprint(after(LATE, FIRST, late)[1])


def test_orders_that_end_alike_have_one_fingerprint() -> None:
    """Names of ids, numbers of steps and of submissions do not count."""
    cancelled = Choice((do.Plan(), do.Cancel()))
    same = [
        after(WINDOWS, FIRST, STEP, SECOND, COMMIT),
        after(WINDOWS, FIRST, STEP, COMMIT, SECOND),
        after(WINDOWS, FIRST, cancelled, STEP, COMMIT, SECOND),
    ]
    assert len({fingerprint(world) for _, world in same}) == 1
    assert fingerprint(after(WINDOWS, SECOND, STEP, COMMIT, FIRST)[1]) != fingerprint(same[0][1])


def test_a_lease_means_the_same_checkpoint_whatever_its_node_is_called() -> None:
    """A number in the order of tokens, as a script says it in the order of nodes."""
    explorer, world = after(LEASE, FIRST, STEP, COMMIT, STEP, COMMIT, SECOND, STEP, COMMIT, STEP, COMMIT)
    leases = [choice for choice in explorer.choices(world, False) if isinstance(choice.actions[0], do.Lease)]
    assert len(leases) >= 2
    nodes = [_nth_node(world, choice.actions[0].nth) for choice in leases]  # type: ignore[union-attr]
    assert sorted(nodes) == list(range(len(leases)))
    said = explorer.do(world, leases[0])
    assert said.actions == (do.Lease(nodes[0]),) and world.core.cache.arena.leases > 0


def test_time_that_is_up_is_said() -> None:
    assert not explore(0.0).complete


@pytest.mark.parametrize(("name", "killed"), [("half_translated", True), ("deadlines_never_come", False)])
def test_a_process_of_its_own_seeks_a_planted_bug(name: str, killed: bool) -> None:
    """Nobody has a deadline in the small scope."""
    (sought,) = seek.seek_all([name], 2.0)
    assert sought.killed is killed and sought.states > 0
    assert bool(sought.order) is killed


def test_a_process_that_dies_while_it_explores_is_a_kill_and_before_it_is_none() -> None:
    died, hung = seek.read("m", -11, "begun\n", ""), seek.read("m", -signal.SIGXCPU, "begun\n", "")
    assert (died.killed, died.by, hung.killed, hung.by) == (True, "check", True, "liveness")
    never = seek.read("m", 1, "", "Traceback\nImportError: gone")
    assert not never.killed and "gone" in never.what
