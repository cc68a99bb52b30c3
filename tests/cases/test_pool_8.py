"""POOL-8: ids and places are told apart on every route: with shuffled tables, a resumed prompt (prefix from the pool)
and a cold one (all rows its own) come out alike, whichever way the executor reads."""

from __future__ import annotations

from k3mem.executors.mock import MockExecutor
from k3mem.policy import Policy
from tests.cases import plant
from tests.cases.helpers import Scene, cached, diverge, text, what_is_wrong

LAST = diverge(cached(150), "last", 60)


def shuffled(executor: MockExecutor) -> Scene:
    """Places of pages and states are no longer their ids: entries came, went and were moved."""
    scene = Scene(states=8, pages=40, executor=executor, policy=Policy(max_running=4, eager=True))
    for i in range(6):
        scene.submit(i, text(f"T{i}", 60 + 30 * i), 9)
    scene.run()
    scene.serve("A", cached(200), 1, hints=(128,))
    for i in range(3):
        scene.serve(f"more {i}", text(f"M{i}", 40), 3)
        scene.match(cached(200))
        scene.tree.touch(scene.nodes(cached(200))[128])
    pages, states = scene.arena.tables()
    for table in (pages, states):
        assert sum(id != place for id, place in table.tolist()) >= 2, "tables are not shuffled"
    return scene


def scenario() -> None:
    for reads in ("digest", "all"):
        scene = shuffled(MockExecutor(context_reads=reads, strict_handout=False))  # type: ignore[arg-type]
        assert scene.serve("resumed", LAST, 20) == 128
        gone = scene.tree.flush()
        scene.cache.give_back(gone)
        assert scene.serve("cold", LAST, 20) == 0
        assert scene.got["resumed"] == scene.got["cold"]
        scene.settle()


def test_both_routes_give_equal_results_under_a_shuffled_table() -> None:
    scenario()


def test_places_for_ids_on_one_route_fail() -> None:
    with plant.half_translated():
        assert what_is_wrong(scenario)
