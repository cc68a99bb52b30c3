"""Checkpoints in order of value, and what is learned of their use."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.fuzz.alone.price import CLASSES, EDGES, STATE_TOKENS, Priced, class_of, class_table
from k3mem.radix import Kind, Lru, Note, Tree
from k3mem.radix.tree import AGES
from k3mem.types import Float64


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
