"""What policies make of requests: learned values, the choice between policies, policies of one's own."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.radix import Auto, Cost, Custom, EvictionPolicy, Info, Kind, Learned, Lru, Note, Prices, Tree, due
from k3mem.radix.auto import Shadow
from k3mem.radix.learn import CLASSES, EDGES, MIDDLES, WIDTHS, class_table, gittins, hazards
from k3mem.radix.tree import AGES
from k3mem.types import Int32, StateId

POLICIES = [Lru(()), Cost(()), Learned(()), Auto(()), Custom(lambda info, use, prices: use, ())]
PRICES = Prices(state_bytes=64, token_bytes=1, capacity_bytes=1000)
HOUR = 3600.0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
def test_every_policy_is_one_and_keeps_a_tree_whole(policy: EvictionPolicy) -> None:
    assert isinstance(policy, EvictionPolicy)
    tree = Tree(1, 1, policy)
    keeper = policy.keeper(tree, PRICES)
    scope, rng = tree.new_scope(), np.random.default_rng(3)
    for step in range(1, 400):
        prompt = rng.integers(0, 3, rng.integers(1, 9), np.int32)
        ticket = keeper.requested(scope, prompt, step * 0.5)
        found = tree.match(scope, prompt, len(prompt), step)
        if found.depth:
            tree.touch(found.node)
        if found.depth < len(prompt):
            node = tree.publish(found.node, prompt, len(prompt), np.arange(9 * step, 9 * step + 9), StateId(step),
                                Kind.PROMPT_END, step).node
            tree.note(node, Note.TOOL)
        keeper.finished(ticket, Note.TOOL)
        while tree.counters().checkpoints > 20:
            assert tree.evict() is not None
        tree.check()
    while tree.evict() is not None:
        pass
    assert tree.counters().checkpoints == 0


# -- learned values

def brute(hazard: np.ndarray, age: int) -> float:  # type: ignore[type-arg]
    """The Gittins index by its definition, over stops at ends of buckets."""
    alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
    for h, width in zip(hazard[age:], WIDTHS[age:], strict=True):
        dies = 1 - np.exp(-h * width)
        hits, time = hits + alive * dies, time + (alive * dies / h if h else alive * width)
        alive *= 1 - dies
        best = max(best, hits / time)
    return best


def test_the_index_is_the_best_rate_of_returns_over_all_stops() -> None:
    hazard = np.random.default_rng(1).gamma(0.5, 1.0, (4, AGES)) / MIDDLES
    index = gittins(hazard)
    for row, ages in zip(hazard, index, strict=True):
        assert ages == pytest.approx([brute(row, age) for age in range(AGES)])


def test_the_index_looks_ahead_to_returns_that_come_later() -> None:
    hazard = np.full(AGES, 1e-9)
    hazard[8] = 1.0
    index = gittins(hazard)
    assert index[8] > index[7] > index[5] > 100 * index[9]


def test_before_anything_is_known_recency_decides() -> None:
    nothing = np.zeros((CLASSES, AGES))
    index = gittins(hazards(nothing, nothing, 1.0))
    assert np.ptp(index, axis=0) == pytest.approx(0)
    assert (np.diff(index[0, 1:-1]) < 0).all()


def test_a_class_with_evidence_stands_apart_and_lends_to_its_like() -> None:
    returns, exposure = np.zeros((2, CLASSES, AGES))
    tool, end = (int(class_table()[0, note, 1]) for note in (Note.TOOL, Note.END))
    returns[tool, 4], exposure[tool, 4], exposure[end, 4] = 100, 200, 20_000
    rates = hazards(returns, exposure, 1.0)[:, 4]
    other_turn, running = (int(class_table()[0, note, turn]) for note, turn in ((Note.TOOL, 9), (Note.RUNNING, 1)))
    assert rates[tool] == pytest.approx(0.5, rel=0.1)
    assert rates[end] < 0.001 < rates[running] < rates[other_turn]


def test_expected_returns_have_classes_of_their_own() -> None:
    table = class_table()
    assert {due(s) for s in (0.0, 1.0)} == {Note.DUE}
    assert due(64.0) - Note.DUE == 6 and due(1e9) < 32
    assert len({int(table[0, note, 3]) for note in (Note.TOOL, Note.END, due(8.0), due(64.0))}) == 4
    assert table.max() < CLASSES and len(EDGES) == AGES


def chains(shadow: Shadow) -> int:
    """Sessions that return after a minute, between many that never do; tokens that hit."""
    hits, now, rng = 0, 0.0, np.random.default_rng(5)
    prompts: list[Int32] = [rng.integers(0, 1000, 20, np.int32) for _ in range(6)]
    for _ in range(120):
        for i in range(6):
            now += 10.0
            prompts[i] = np.concatenate((prompts[i], rng.integers(0, 1000, 4, np.int32)))
            if len(prompts[i]) > 60:
                prompts[i] = rng.integers(0, 1000, 20, np.int32)
            hit, left = shadow.request(0, prompts[i], now)
            shadow.note(left, Note.TOOL)
            hits += hit
            for _ in range(2):
                _, left = shadow.request(0, rng.integers(0, 1000, 40, np.int32), now)
                shadow.note(left, Note.END)
    return hits


def test_learned_keeps_what_returns_where_lru_cannot() -> None:
    lru, learned = (chains(Shadow(policy, 1, 1, PRICES, 1200)) for policy in (Lru(()), Learned(())))
    assert learned > 1.3 * lru


def test_auto_follows_the_better_one_and_lru_until_then() -> None:
    tree = Tree(1, 1, Auto(()))
    keeper = Auto((), wakes=0).keeper(tree, PRICES._replace(capacity_bytes=1200))
    assert keeper.stats()["followed"] == "Lru"
    now, rng = 0.0, np.random.default_rng(5)
    prompts: list[Int32] = [rng.integers(0, 1000, 20, np.int32) for _ in range(6)]
    scope = tree.new_scope()
    for _ in range(120):
        for i in range(6):
            now += 10.0
            prompts[i] = np.concatenate((prompts[i], rng.integers(0, 1000, 4, np.int32)))
            if len(prompts[i]) > 60:
                prompts[i] = rng.integers(0, 1000, 20, np.int32)
            keeper.finished(keeper.requested(scope, prompts[i], now), Note.TOOL)
            for _ in range(2):
                keeper.finished(keeper.requested(scope, rng.integers(0, 1000, 40, np.int32), now), Note.END)
    assert keeper.stats()["followed"] == "Learned"


def test_auto_costs_nothing_before_anything_must_go() -> None:
    tree = Tree(1, 1, Auto())
    keeper = Auto().keeper(tree, PRICES)
    scope, prompts = tree.new_scope(), np.arange(200, dtype=np.int32).reshape(10, 20)

    def serve(i: int) -> None:
        keeper.requested(scope, prompts[i], float(i))
        tree.publish(tree.root(scope), prompts[i], 20, range(20 * i, 20 * i + 20), StateId(i), Kind.PROMPT_END, i)

    def shadowed() -> list[int]:
        return [shadow.tree.counters().checkpoints for shadow in keeper.shadows]  # type: ignore[attr-defined]

    for i in range(3):
        serve(i)
    assert shadowed() == [0, 0], "2 x (64 + 20) of 1000 bytes were cached at the third"
    for i in range(3, 5):
        serve(i)
    assert shadowed() == [2, 2]


def test_auto_wakes_at_the_first_eviction() -> None:
    tree = Tree(1, 1, Auto())
    keeper = Auto().keeper(tree, PRICES)
    scope, prompt = tree.new_scope(), np.arange(20, dtype=np.int32)
    keeper.requested(scope, prompt, 0.0)
    tree.publish(tree.root(scope), prompt, 20, range(20), StateId(1), Kind.PROMPT_END, 1)
    assert tree.evict() is not None and tree.evictions == 1
    keeper.requested(scope, prompt, 1.0)
    assert keeper.stats()["shadow_hits"] == [0, 0]
    keeper.requested(scope, prompt, 2.0)
    assert keeper.stats()["shadow_hits"] == [20, 20]


def test_shadows_shrink_with_the_pool() -> None:
    tree = Tree(1, 1, Auto())
    keeper = Auto(wakes=0).keeper(tree, PRICES)
    scope, prompts = tree.new_scope(), np.arange(240, dtype=np.int32).reshape(12, 20)
    for i in range(11):
        keeper.requested(scope, prompts[i], float(i))
    keeper.resized(300)
    keeper.requested(scope, prompts[11], 11.0)
    held = [shadow.tree.counters() for shadow in keeper.shadows]  # type: ignore[attr-defined]
    assert [c.checkpoints * 64 + c.kv_tokens <= 300 for c in held] == [True, True]
    assert all(c.checkpoints == 3 for c in held)


def test_auto_samples_sessions_where_the_pool_is_large() -> None:
    policy = Auto(())
    keeper = policy.keeper(Tree(1, 1, policy), PRICES._replace(capacity_bytes=PRICES.state_bytes << 16))
    assert keeper.stats()["share"] == 0.25


# -- a policy of one's own

def test_a_policy_in_python_chooses_the_victims() -> None:
    def deepest_first(info: Info, use: int, prices: Prices) -> float:
        return -info.depth

    policy = Custom(deepest_first, ())
    tree = Tree(1, 1, policy)
    policy.keeper(tree, PRICES)
    root = tree.root(tree.new_scope())
    nodes = [tree.publish(root, [i] * n, n, range(10 * n, 11 * n), n, Kind.PROMPT_END, n).node
             for i, n in enumerate((3, 9, 5))]
    tree.lock(nodes[1])
    assert tree.evict(nodes[0]).depth == 5  # type: ignore[union-attr]
    assert tree.evict(nodes[0]) is None
    tree.unlock(nodes[1])
    assert tree.evict().depth == 9  # type: ignore[union-attr]


def test_a_policy_in_python_chooses_also_where_what_goes_first_is_protected() -> None:
    policy = Custom(lambda info, use, prices: -info.depth)
    tree = Tree(1, 1, policy)
    policy.keeper(tree, PRICES)
    root = tree.root(tree.new_scope())
    first = tree.publish(root, [1, 1], 2, range(10, 12), 1, Kind.PROMPT_END, 1).node
    last = tree.publish(first, [1, 1, 1], 3, range(10, 13), 2, Kind.PROMPT_END, 2).node
    for i, n in enumerate((3, 9, 5)):
        tree.publish(root, [7 + i] * n, n, range(20 * n, 21 * n), 10 + i, Kind.PROMPT_END, 3)
    assert tree.info(first).superseded and tree.next_class() == 0
    assert [e.depth for e in (tree.evict(last), tree.evict(last), tree.evict(last)) if e] == [9, 5, 3]


def test_lru_in_python_evicts_what_lru_evicts() -> None:
    hits = [chains(Shadow(policy, 1, 1, PRICES, 1200)) for policy in (POLICIES[0], POLICIES[4])]
    assert hits[0] == hits[1] > 0
