"""Checkpoints in order of value, against an oracle that works every value out from the paths."""

from __future__ import annotations

import random

import numpy as np
import pytest

from k3mem.radix import Kind, Lru, Note, Tree
from k3mem.radix.tree import AGES
from k3mem.types import Float64

EDGES = np.concatenate(([0.0], 0.001 * 2.0 ** np.arange(AGES - 1)))
STATE_TOKENS = 5.0
CLASSES = 3 * 2 * 3


def class_of(structure: int, note: int, turn: int) -> int:
    return structure * 6 + (note == Note.TOOL) * 3 + min(turn, 2)


def class_table() -> np.ndarray:  # type: ignore[type-arg]
    return np.array([[[class_of(s, note, turn) for turn in range(256)] for note in range(32)] for s in range(3)],
                    np.uint16)


class Priced:
    """A tree with values, driven by one random generator; its uses are at times of its own."""

    def __init__(self, seed: int, page: int = 2, ghosts: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.page, self.tree = page, Tree(page, page, Lru((Kind.CHUNK_END,)), ghosts)
        self.scope = self.tree.new_scope()
        self.tree.learn(class_table(), CLASSES, EDGES.tolist(), STATE_TOKENS)
        self.values = np.random.default_rng(seed).integers(1, 50, (CLASSES, AGES)).astype(np.float32)
        self.tree.values(self.values)
        self.now, self.step, self.next, self.states = 0.0, 0, 1, 0

    def tick(self) -> None:
        self.now += self.rng.choice((0.001, 0.01, 0.5, 3.0))
        self.tree.time(self.now)

    def request(self) -> None:
        """A prompt: what it hits is touched, what it computes is kept."""
        self.step += 1
        n = self.page * self.rng.randint(1, 6)
        tokens = np.array([self.rng.choice((0, 0, 0, 1)) for _ in range(n)], np.int32)
        found = self.tree.match(self.scope, tokens, n, self.step)
        if found.depth:
            self.tree.touch(found.node)
        pages = np.arange(self.next, self.next + n)
        self.next += n
        for end in sorted({self.page * self.rng.randint(1, n // self.page), n}):
            if end > found.depth:
                kind = self.rng.choice((Kind.PROMPT_END, Kind.BRANCH, Kind.CHUNK_END))
                self.states += 1
                self.tree.publish(found.node, tokens, end, pages, self.states, kind, self.step)

    def note(self) -> None:
        nodes = self.tree.walk().node
        if len(nodes):
            self.tree.note(int(self.rng.choice(nodes)), self.rng.choice((Note.TOOL, Note.TOOL, Note.END, Note.OVER)))

    def oracle(self) -> dict[int, tuple[int, float]]:
        """node -> (rank, value) of each checkpoint, at the present moment."""
        walk, out = self.tree.walk(), {}
        touch = self.tree._table("touch")
        infos = {int(node): self.tree.info(int(node)) for node in walk.node}
        kv_children = {node: sum(i.parent == node for i in infos.values()) for node in infos}
        for node, info in infos.items():
            if info.state < 0:
                continue
            below = kv_children[node]
            line = below == 1 and info.children == 1 and info.kind != Kind.BRANCH
            age = int(np.searchsorted(np.round(EDGES * 1e6), round(self.now * 1e6) - int(touch[node]), "right")) - 1
            saved = held = info.depth - info.start
            shared, above = below > 0, info.parent
            while above in infos and infos[above].state < 0:
                length = infos[above].depth - infos[above].start
                shared = shared or kv_children[above] > 1
                saved, held, above = saved + length, held + (0 if shared else length), infos[above].parent
            weight = np.float32(saved / (STATE_TOKENS + (0 if below else held)))
            cell = self.values[class_of(0 if not below else 1 if line else 2, info.note, info.turn), age]
            first = info.superseded and info.kind == Kind.CHUNK_END or info.note == Note.OVER and info.children < 2
            out[node] = 0 if first else 1, float(np.float32(cell * weight))
        return out

    def evict(self) -> None:
        """All are weighed anew, so that the victim is exactly the least."""
        self.tick()
        self.tree.values(self.values)
        order = self.oracle()
        for node, (_, value) in order.items():
            assert self.tree.info(node).value == pytest.approx(value), (node, self.tree.info(node))
        for _ in range(self.rng.choice((1, 1, 3))):
            gone = self.tree.evict()
            assert gone is not None or not order
            if gone is None or gone.state < 0:
                continue
            rank, value = order[gone.node]
            least = min(order.values())
            assert rank == least[0]
            assert rank == 0 or value == pytest.approx(least[1])
            self.tree.values(self.values)
            order = self.oracle()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choices((self.request, self.note, self.tick, self.evict), (10, 6, 4, 4))[0]()
            self.tree.check()


@pytest.mark.parametrize("seed", range(6))
def test_the_victim_is_the_checkpoint_of_least_value(seed: int) -> None:
    Priced(seed, page=seed % 3 + 1, ghosts=(None, 8)[seed % 2]).run(150)


# -- what is learned

def learning() -> tuple[Tree, Float64, Float64]:
    tree = Tree(1, 1, Lru(()))
    tree.learn(class_table(), CLASSES, EDGES.tolist(), STATE_TOKENS)
    return tree, *tree.learned()


def bucket(seconds: float) -> int:
    return int(np.searchsorted(EDGES, seconds, "right")) - 1


def publish(tree: Tree, tokens: list[int], stamp: int, kind: Kind = Kind.PROMPT_END) -> int:
    return tree.publish(tree.root(0), tokens, len(tokens), range(1, len(tokens) + 1), stamp, kind, stamp).node


def test_a_use_counts_as_a_return_at_its_age_and_the_wait_as_exposure() -> None:
    tree, returns, exposure = learning()
    tree.new_scope()
    node = publish(tree, [1, 2], 1)
    tree.time(10.0)
    tree.touch(node)
    assert returns.sum() == 1 and returns[class_of(0, 0, 0), bucket(10.0)] == 1
    assert exposure.sum() == pytest.approx(10.0, abs=1e-4)
    tree.time(13.0)
    waits = exposure + tree.waiting()
    assert waits.sum() == pytest.approx(13.0, abs=1e-4)
    assert np.count_nonzero(exposure[class_of(0, 0, 0)]) >= bucket(2.9)


def test_what_was_evicted_and_is_asked_for_again_counts_as_a_return() -> None:
    tree, returns, _ = learning()
    tree.new_scope()
    tree.time(1.0)
    publish(tree, [1, 2], 1)
    tree.time(2.0)
    assert tree.evict() is not None
    tree.time(6.0)
    publish(tree, [1, 2, 3], 2)
    assert returns[class_of(0, 0, 0), bucket(5.0)] == 1
    assert returns.sum() == 1


def test_what_is_remembered_without_bytes_counts_too() -> None:
    tree, returns, _ = learning()
    tree.new_scope()
    publish(tree, [1, 2], 1)
    assert tree.evict() is not None
    tree.time(3.0)
    tree.remember(tree.root(0), [1, 2, 3], 3)
    assert returns.sum() == 1


def test_a_note_starts_the_age_anew_under_its_own_class() -> None:
    tree, returns, _ = learning()
    tree.new_scope()
    node = publish(tree, [1, 2], 1)
    tree.time(50.0)
    tree.note(node, Note.TOOL)
    tree.time(52.0)
    tree.touch(node)
    assert returns[class_of(0, Note.TOOL, 0), bucket(2.0)] == 1


def test_an_ended_session_goes_first_up_to_its_fork() -> None:
    tree, _, _ = learning()
    tree.new_scope()
    trunk = publish(tree, [1], 1)
    middle, end, other = (publish(tree, t, s) for s, t in ((2, [1, 2]), (3, [1, 2, 3]), (4, [1, 9])))
    tree.touch(middle)
    tree.touch(end)
    tree.note(end, Note.OVER)
    gone = [tree.evict(), tree.evict()]
    assert {e.node for e in gone if e} == {middle, end}
    assert {tree.info(n).note for n in (trunk, other)} == {Note.RUNNING}


def test_turns_are_counted_along_a_lineage_even_where_its_end_was_evicted() -> None:
    tree, _, _ = learning()
    tree.new_scope()
    assert [tree.info(publish(tree, list(range(n)), n)).turn for n in (1, 2, 3)] == [0, 1, 2]
    while tree.evict():
        pass
    fork = publish(tree, [0, 1, 2], 9, Kind.BRANCH)
    assert tree.info(fork).turn == 3
    assert tree.info(publish(tree, [0, 1, 2, 3], 9)).turn == 3


@pytest.mark.parametrize("wrong", [
    {"count": 0}, {"count": 5}, {"state_tokens": 0.0}, {"edges": [0.0] * AGES}, {"edges": [1.0]},
])
def test_wrong_tables_are_refused(wrong: dict[str, object]) -> None:
    tree = Tree(1, 1, Lru(()))
    good = {"classes": class_table(), "count": CLASSES, "edges": EDGES.tolist(), "state_tokens": 1.0}
    with pytest.raises(ValueError, match="learn"):
        tree.learn(**{**good, **wrong})  # type: ignore[arg-type]


def test_values_must_be_a_table_of_numbers_at_least_0() -> None:
    tree, _, _ = learning()
    for wrong in (np.zeros((2, AGES), np.float32), np.full((CLASSES, AGES), -1, np.float32),
                  np.full((CLASSES, AGES), np.nan, np.float32)):
        with pytest.raises(ValueError, match="values"):
            tree.values(wrong)
