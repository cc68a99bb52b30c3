"""check() names every table in which one word is broken."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from k3mem.errors import Corrupted
from k3mem.radix import Kind, Lru, Note, Tree
from k3mem.radix.learn import CLASSES, EDGES, class_table
from k3mem.radix.tree import AGES

PER_NODE = ["touch", "parent", "left", "right", "kids_ghost", "kids_kv", "start", "len", "state", "lock", "seat",
            "scope", "stamp_low", "kv_stamp_low", "stamp_high", "kv_stamp_high", "kind", "flags"]


@pytest.fixture
def tree() -> Tree:
    """Forks, tails, ghosts, tombstones, locks, superseded marks and free nodes in two scopes; pages of 2 tokens."""
    tree = Tree(2, 2, Lru(), 60)
    rng = np.random.default_rng(7)
    page = 0
    for scope in (tree.new_scope(), tree.new_scope()):
        for i in range(40):
            tokens = np.concatenate([np.zeros(2, np.int32), rng.integers(0, 3, 10, dtype=np.int32)])
            node = tree.root(scope)
            pages = np.arange(page, page + 6)
            page += 6
            for end in (4, 8, 9 + i % 3):
                got = tree.publish(node, tokens, end, pages, 3 * page + end, Kind.CHUNK_END, i + 1)
                node = got.node
                for index, mine in got.replaced:
                    pages[index] = mine
    for _ in range(120):
        tree.evict()
    node, tokens = tree.root(scope), np.full(12, 5, np.int32)
    for end in (4, 8, 12):
        node = tree.publish(node, tokens, end, np.arange(page, page + 6), 9999 + end, Kind.CHUNK_END, 50).node
    walk = tree.walk()
    tree.lock(walk.node[0])
    tree.lock(walk.node[-1])
    tree.check()
    assert tree.info(tree.info(node).parent).superseded
    return tree


def broken(tree: Tree, table: str, node: int = -1) -> Iterator[tuple[int, str]]:
    """Flip the top bit of one word after the other, and give (index, what check() said) with the tree restored."""
    words = tree._table(table, node)
    width = words.dtype.itemsize
    top = np.array(1 << (8 * width - 1), f"u{width}").view(words.dtype)
    for i in range(len(words)):
        words[i] ^= top
        try:
            tree.check()
            said = "nothing"
        except Corrupted as error:
            said = str(error)
        words[i] ^= top
        yield i, said


@pytest.mark.parametrize("table", PER_NODE)
def test_a_broken_word_of_a_node_is_named(tree: Tree, table: str) -> None:
    for i, said in broken(tree, table):
        assert f"'{table}'" in said
        assert f"node {i}:" in said or not tree._table("flags")[i]
    tree.check()


@pytest.fixture
def priced(tree: Tree) -> Tree:
    """Checkpoints with classes, ages and notes, some evicted and still waited for."""
    tree = Tree(2, 2, Lru(), 60)
    tree.learn(class_table(), CLASSES, EDGES.tolist(), 9.0)
    tree.values(np.ones((CLASSES, AGES), np.float32))
    root = tree.root(tree.new_scope())
    for i in range(12):
        tree.time(3.0**i)
        node = tree.publish(root, [i % 4, i, 1, 1], 4, (2 * i, 2 * i + 1), 100 + i, Kind.PROMPT_END, i).node
        tree.note(node, Note.TOOL)
    for _ in range(3):
        tree.evict()
    tree.check()
    return tree


@pytest.mark.parametrize("table", ["price_scope", "timer", "class", "age", "note", "followed"])
def test_a_broken_word_of_a_price_is_named(priced: Tree, table: str) -> None:
    owners = {-2 - word: node for node, word in enumerate(priced._table("scope").tolist()) if word <= -2}
    assert len(owners) > 8
    for i, said in broken(priced, table):
        assert f"'{table}'" in said, (i, said)
        assert i not in owners or f"node {owners[i]}:" in said or table == "timer", (i, said)
    priced.check()


def test_a_price_that_two_nodes_share_is_named(tree: Tree) -> None:
    for node in tree.walk().node[:2]:
        state = tree.publish(int(node), tree.path_tokens(int(node)), tree.info(int(node)).depth, tree.pages(int(node)),
                             5000 + int(node), Kind.HINT, 60).node
        tree.note(state, Note.TOOL)
    tree.check()
    scope = tree._table("scope")
    first, second = np.flatnonzero(scope <= -2)
    scope[first], kept = scope[second], scope[first]
    with pytest.raises(Corrupted, match="'scope', node .* has two owners"):
        tree.check()
    scope[first] = kept
    tree.check()


def test_a_price_goes_with_its_checkpoint_where_nothing_is_learned(tree: Tree) -> None:
    walk = tree.walk()
    node = int(walk.node[walk.state >= 0][-1])
    tree.note(node, Note.OVER)
    assert (tree._table("scope") <= -2).sum() == 1 and tree.info(node).scope == 1
    tree.take(node)
    assert not (tree._table("scope") <= -2).any() and tree.info(node).note == Note.RUNNING
    tree.check()


def test_an_age_that_was_not_looked_at_is_named(priced: Tree) -> None:
    touch, timers = priced._table("touch"), priced._table("timers")
    touch[timers[-1]] = 1
    with pytest.raises(Corrupted, match=f"node {timers[-1]}"):
        priced.check()


@pytest.mark.parametrize("table", ["tokens", "pages"])
def test_a_broken_word_of_an_edge_is_named(tree: Tree, table: str) -> None:
    for node in tree.walk().node:
        for _, said in broken(tree, table, node):
            assert f"'{table}'" in said
            assert f"node {node}:" in said
    tree.check()


@pytest.mark.parametrize("table", ["roots", "evictable", "ghosts", "counters"])
def test_a_broken_word_of_an_array_is_named(tree: Tree, table: str) -> None:
    assert len(tree._table(table)) > 1
    for _, said in broken(tree, table):
        assert f"'{table}'" in said
    tree.check()


@pytest.mark.parametrize(
    ("table", "wrong"),
    [("parent", 3), ("left", 3), ("right", 3), ("kids_kv", 3), ("kids_ghost", 3),
     ("start", 2), ("len", 1), ("lock", 1), ("scope", 1), ("seat", 1)],
)
def test_a_plausible_wrong_word_is_named_too(tree: Tree, table: str, wrong: int) -> None:
    """Off by a little: still in range, so only the relations between words can tell."""
    words = tree._table(table)
    live = [i for i, flags in enumerate(tree._table("flags")) if flags & 1 and not flags & 32]
    for i in live:
        was = words[i]
        words[i] = was + wrong
        with pytest.raises(Corrupted, match=f"'{table}'"):
            tree.check()
        words[i] = was
    tree.check()


def test_a_page_with_two_owners_is_named(tree: Tree) -> None:
    a, b = [n for n in tree.walk().node if tree.info(n).depth % 2 == 0][:2]
    first, second = tree._table("pages", a), tree._table("pages", b)
    was, second[0] = second[0], first[0]
    with pytest.raises(Corrupted, match="'pages'.*two owners"):
        tree.check()
    second[0] = was
    tree.check()


def test_a_state_with_two_owners_is_named(tree: Tree) -> None:
    states = tree._table("state")
    a, b = np.flatnonzero(states >= 0)[:2]
    was, states[b] = states[b], states[a]
    with pytest.raises(Corrupted, match="'state'.*two owners"):
        tree.check()
    states[b] = was
    tree.check()


def test_siblings_with_a_common_page_are_named(tree: Tree) -> None:
    parent = next(n for n in tree.walk().node if tree.info(n).children > 1)
    a, b = [n for n in tree.walk().node if tree.info(n).parent == parent and len(tree._table("tokens", n)) > 1][:2]
    words = tree._table("tokens", a)
    was = words[:2].copy()
    words[:2] = tree._table("tokens", b)[:2]
    with pytest.raises(Corrupted, match="'tokens'"):
        tree.check()
    words[:2] = was
    tree.check()


def test_unknown_table_is_refused(tree: Tree) -> None:
    with pytest.raises(ValueError, match="no table"):
        tree._table("nothing")
