"""POOL-5: a leased entry stays where it is, whoever asks for room; capacity follows the lease at once.

Leases are taken by hand: transfers wait for the host tier.
"""

from __future__ import annotations

import pytest

from k3mem.plan import PAGE, STATE
from k3mem.policy import Policy
from k3mem.pool import Arena, Fit
from k3mem.types import NodeId
from tests.cases import plant
from tests.cases.helpers import Scene, cached, text, what_is_wrong

UNIT = 128
"""Bytes of a page; a state is 10 of them."""


def leased(scene: Scene, node: NodeId, hold: bool) -> None:
    """A transfer of this prefix begins or ends: lock and leases."""
    change = scene.arena.lease if hold else scene.arena.unlease
    if hold:
        scene.tree.lock(node)
    for page in scene.tree.pages(node).tolist():
        change(PAGE, page)
    change(STATE, scene.tree.info(node).state)
    if not hold:
        scene.tree.unlock(node)


def holes_below(eager: bool) -> tuple[Scene, NodeId]:
    """R1's pages above 10 holes and a gap of less than a state; R1's node is under transfer."""
    policy = Policy(max_running=4, prompt_ends=False, chunk_ends=False, eager=eager)
    scene = Scene(states=1, pages=26, state_bytes=10 * UNIT, policy=policy)
    scene.serve("X", text("X", 160), 1)
    scene.tombstone(text("X", 160), 160)
    scene.serve("R1", cached(160), 1)
    node = scene.nodes(cached(160))[160]
    leased(scene, node, True)
    while (victim := scene.tree.evict()) is not None:
        scene.cache.discard(victim)
    usage = scene.arena.usage()
    assert usage.hole_pages == 10 and usage.gap < 10 * UNIT and not usage.hole_states
    return scene, node


def run(eager: bool) -> None:
    scene, node = holes_below(eager)
    arena = scene.arena
    pages = scene.tree.pages(node)
    before = arena.page_places(pages).tolist()
    assert arena.fits(2, 1) == Fit.NO
    scene.submit("R3", text("R3", 20), 4)
    for _ in range(3):
        assert scene.engine.plan() is None and scene.engine.waits_for == "leases"
        assert arena.page_places(pages).tolist() == before
    leased(scene, node, False)
    assert arena.fits(2, 1) == Fit.MOVES, "nothing was allocated or freed since"
    leased(scene, node, True)
    assert arena.fits(2, 1) == Fit.NO
    leased(scene, node, False)
    scene.tree.lock(node)
    scene.step()
    assert len(scene.plans[-1].moves) and arena.page_places(pages).tolist() != before
    scene.run()
    scene.tree.unlock(node)
    scene.settle()


def scenario() -> None:
    run(False)
    run(True)


@pytest.mark.parametrize("eager", [False, True])
def test_what_is_under_transfer_stays_and_what_needs_it_moved_waits(eager: bool) -> None:
    run(eager)


def ends() -> None:
    """Both ends of the arena, both routes: making room for the other kind, and compaction."""
    for kind in (PAGE, STATE):
        arena = Arena(capacity_bytes=1000, page_bytes=50, state_bytes=50, align=1)
        got = arena.alloc(8, 8)
        assert got is not None
        ids, free = got[kind], (arena.free_pages, arena.free_states)[kind]
        free(ids[:6])
        demand = (0, 8) if kind == PAGE else (8, 0)
        assert arena.fits(*demand) == Fit.MOVES
        arena.lease(kind, int(ids[7]))
        assert arena.fits(*demand) == Fit.NO
        assert not len(arena.make_room(*demand, 10**6))
        places = (arena.page_places, arena.state_places)[kind]
        where = places(ids[7:]).tolist()
        moves = arena.compact(10**6)
        assert where[0] not in moves[moves[:, 1] == kind][:, 2].tolist() and places(ids[7:]).tolist() == where
        arena.unlease(kind, int(ids[7]))
        assert arena.fits(*demand) != Fit.NO
        arena.check()


def test_neither_end_moves_a_leased_entry() -> None:
    ends()


def test_capacity_that_forgets_leases_fails() -> None:
    for check in (ends, scenario):
        with plant.capacity_remembered():
            assert what_is_wrong(check)


@plant.needs_mutants
def test_moving_what_is_leased_fails() -> None:
    for check in ("ends", "scenario"):
        assert plant.with_mutant(plant.MOVES_LEASED, f"{__name__}:{check}")
    assert plant.with_mutant(0, f"{__name__}:scenario") == ""
