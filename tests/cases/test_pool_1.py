"""POOL-1: a state needs bytes, whoever lies on them: evicting KV and closing its holes makes room for one."""

from __future__ import annotations

import numpy as np

from k3mem.plan import PAGE, Plan
from k3mem.policy import Policy
from k3mem.pool import Fit
from k3mem.radix import Kind
from k3mem.sched import room
from k3mem.types import NO_STATE, ScopeId
from tests.cases import plant
from tests.cases.helpers import Scene, cached, text, what_is_wrong

UNIT = 128
"""Bytes of a page; a state is 20 of them, the arena 100 beside the sinks."""
NODE_PAGES = 5


def full_of_kv() -> Scene:
    """90 cached, unlocked pages in nodes of 5, no checkpoint; 10 pages of gap."""
    scene = Scene(states=1, pages=80, state_bytes=20 * UNIT)
    scope = scene.cache.scope(("", "", ""))
    assert scope == ScopeId(0)
    for i in range(18):
        got = scene.arena.alloc(NODE_PAGES, 0)
        assert got is not None
        tokens = np.array(text(f"kv{i}", NODE_PAGES * 16), np.int32)
        scene.cache.keep(scene.tree.root(scope), tokens, len(tokens), got[0], NO_STATE, Kind.CHUNK_END, 0)
    assert scene.arena.usage().gap == 10 * UNIT
    scene.executor.device.tables.update(Plan(step=0, page_table=scene.arena.drain()[0]))
    return scene


def scenario() -> None:
    scene = full_of_kv()
    arena = scene.arena
    assert arena.room_states() == 0, "free ids are no capacity"
    assert arena.fits(2, 1) == Fit.NO
    scene.submit("R", text("R", 20), 4)
    scene.step()
    assert scene.core.lanes.running == 1
    need = 20 + 2 - 10
    evicted = 90 - scene.tree.counters().kv_pages
    assert need <= evicted < need + NODE_PAGES, "not a node more than needed"
    moved = scene.plans[0].moves
    assert len(moved) and set(moved[:, 1].tolist()) == {PAGE}, "the holes were closed"
    scene.run()
    assert scene.got["R"] == scene.expected["R"] and not scene.executor.violations
    scene.engine.check()


def test_kv_is_evicted_for_a_state() -> None:
    scenario()


def test_where_nothing_is_evictable_the_request_waits() -> None:
    scene = Scene(states=1, pages=80, state_bytes=20 * UNIT)
    scene.submit("R0", cached(1120), 4)
    scene.step()
    scene.submit("R", text("R", 20), 4)
    scene.step()
    assert scene.core.lanes.running == 1 and len(scene.core.queue) == 1
    scene.run()
    scene.settle()


def outsized() -> None:
    """R cannot fit beside R0, whatever is evicted."""
    scene = Scene(states=6, pages=100, policy=Policy(max_running=4, steps_in_flight=0))
    for i in range(3):
        scene.serve(i, text(f"cached {i}", 66), 1)
    scene.submit("R0", text("R0", 900), 30)
    scene.step()
    before = scene.tree.counters()
    scene.submit("R", text("R", 1200), 3)
    scene.step(5)
    assert scene.jobs["R"] in scene.core.queue
    assert scene.tree.counters() == before, "evicted for nothing"
    scene.verify()
    scene.run()
    scene.settle()


def test_nothing_is_evicted_for_a_request_that_cannot_fit_anyway() -> None:
    outsized()


def test_evicting_for_the_impossible_fails() -> None:
    with plant.patched(room, "hopeless", lambda old: lambda *a: False):
        assert what_is_wrong(outsized)


def test_evicting_states_alone_fails() -> None:
    with plant.only_states_are_evicted():
        assert what_is_wrong(scenario)
