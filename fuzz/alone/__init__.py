"""The arena and the tree alone, each against a slow model that knows no tables: the second stage of a fuzzed seed.

What an engine never asks of them is asked here: two users of one lease, the last reference to a leased page, moves
taken back, places pending on steps, checkpoints taken and capped, damage by rows.
"""

from __future__ import annotations

import random
import traceback

import numpy as np

from k3mem.errors import Corrupted
from k3mem.fuzz.alone.arena import GEOMETRIES, Actor
from k3mem.fuzz.alone.price import Priced
from k3mem.fuzz.alone.tree import World
from k3mem.fuzz.oracle import Found
from k3mem.radix import Kind, Lru, Tree
from k3mem.types import StateId

PAGES = (1, 1, 1, 2, 4, 16)
"""Tokens a page; most often few, so that prompts fork often."""
TREES = 3
"""Trees a seed."""
GHOSTS = (None, 0, 12)


def run(seed: int, operations: int) -> None:
    """So many operations of each tree, twice as many of the arena, which are cheaper, half as many of values. Raises
    Found at the first that the model does not agree with. O(operations)."""
    rng = random.Random(seed)
    geometry = GEOMETRIES[rng.choice(sorted(set(GEOMETRIES) - {"k3"}))]
    try:
        Actor(seed, geometry).run(2 * operations)
        for tree in range(TREES):
            World(TREES * seed + tree, rng.choice(PAGES), rng.choice(GHOSTS), rng.random() < 0.7).run(operations)
        part(rng, rng.choice(PAGES))
        Priced(seed, seed % 3 + 1, GHOSTS[seed % 2 * 2]).run(operations // 2)
    except Corrupted as error:
        raise Found("check", f"alone: {error}") from error
    except Exception as error:  # whatever escapes is a fault of the one or the other
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise Found("oracle", f"alone: {type(error).__name__} in {at.name}: {at.line} {error}") from error


def part(rng: random.Random, page: int) -> None:
    """Two long prompts that differ in one token are known to be alike up to there, wherever it stands. O(tokens)."""
    tree = Tree(page, 4 * page, Lru())
    tokens = np.array(rng.choices(range(3), k=rng.randint(600, 2400)), np.int32)
    scope, pages = tree.new_scope(), list(range(1, -(-len(tokens) // page) + 1))
    tree.publish(tree.root(scope), tokens, len(tokens), pages, StateId(1), Kind.ANSWER_END, 1)
    at = rng.randrange(len(tokens))
    tokens[at] += 1
    found = tree.match(scope, tokens, len(tokens) - 1, 2)
    assert (found.known, found.kv, found.depth) == (at, at, 0), f"{found} at {at}"


__all__ = ["part", "run"]
