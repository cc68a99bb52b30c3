"""Small situations to measure: each function builds one and returns what to call. Tokens are random but seeded.

Pages of 64 tokens; sizes are those of the targets: one edge or 8,192-token chunks of a 524,288-token prompt, 40,000
leaves of one page, a path of 128 nodes, 256 requests that decode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bench.null import NullExecutor
from bench.shared import Pair
from k3mem import Engine, Policy, Request, Shape
from k3mem.plan import Sampling
from k3mem.pool import Arena
from k3mem.radix import Kind, Lru, Tree
from k3mem.types import Int32, NodeId, ScopeId, StateId

PAGE = 64
LONG = 524_288
CHUNK = 8_192
LEAVES = 40_000
DEEP = 128
VOCAB = 160_000
SCOPE = ScopeId(0)
"""The one scope of `new_tree`."""

Call = Callable[[], object]


def tokens(n: int, seed: int = 0) -> Int32:
    """n token ids."""
    return np.random.default_rng(seed).integers(0, VOCAB, n, np.int32)


def new_tree() -> Tree:
    """An empty tree with one scope."""
    tree = Tree(PAGE, PAGE, Lru())
    tree.new_scope()
    return tree


class Edge(NamedTuple):
    """A match of one edge, and the least that it could cost."""

    match: Call
    memcmp: Call


def one_edge(length: int = LONG) -> Edge:
    """One node of `length` tokens; its match, and a memcmp of the same tokens in two other arrays."""
    tree, text = new_tree(), tokens(length)
    tree.publish(tree.root(SCOPE), text, length, np.arange(length // PAGE, dtype=np.int32), StateId(1))
    asked, other = text.copy(), text.copy()
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    a, b, size = asked.ctypes.data, other.ctypes.data, asked.nbytes
    if tree.match(SCOPE, asked).depth != length or memcmp(a, b, size):
        raise RuntimeError("the case is wrong: nothing to measure")

    def compare(_keep: object = (asked, other)) -> int:
        return int(memcmp(a, b, size))

    return Edge(lambda: tree.match(SCOPE, asked), compare)


class Publisher:
    """A prompt that is published chunk by chunk, each with a checkpoint, from the publisher's own last node."""

    def __init__(self, length: int = LONG, chunk: int = CHUNK) -> None:
        self.tree = new_tree()
        self.text = tokens(length)
        self.pages = np.arange(length // PAGE, dtype=np.int32)
        self.chunk = chunk
        self.node: NodeId = self.tree.root(SCOPE)
        self.depth = 0

    @property
    def left(self) -> int:
        """Tokens that are not published yet."""
        return len(self.text) - self.depth

    def publish(self) -> None:
        """The next chunk."""
        self.depth += self.chunk
        state = StateId(self.depth // self.chunk)
        self.node = self.tree.publish(self.node, self.text, self.depth, self.pages, state, Kind.CHUNK_END,
                                      self.depth).node


def leaves(count: int = LEAVES) -> Tree:
    """`count` cached leaves of one page below the root, each with a checkpoint: the worst case of metadata."""
    tree = new_tree()
    root, text = tree.root(SCOPE), tokens(count * PAGE).reshape(count, PAGE)
    pages = np.arange(count, dtype=np.int32).reshape(count, 1)
    for i in range(count):
        tree.publish(root, text[i], PAGE, pages[i], StateId(i), Kind.PROMPT_END, i)
    return tree


def lock_pair(depth: int = DEEP) -> Call:
    """Lock and unlock of the last node of a path of `depth` nodes, one page and one checkpoint each."""
    tree = new_tree()
    node, text, pages = tree.root(SCOPE), tokens(depth * PAGE), np.arange(depth, dtype=np.int32)
    for i in range(depth):
        node = tree.publish(node, text, (i + 1) * PAGE, pages, StateId(i), Kind.HINT, i).node

    def pair() -> None:
        tree.lock(node)
        tree.unlock(node)

    return pair


def arena_pair(pages: int = 128, states: int = 1) -> Call:
    """Take a prompt's pages and a state, and free them, in an arena half full."""
    shape = Shape.kimi_k3(tp=8)
    arena = Arena(capacity_bytes=64 << 30, page_bytes=shape.page_bytes, state_bytes=shape.state_bytes)
    arena.alloc(arena.room_pages() // 2, 0)

    def pair() -> None:
        got = arena.alloc(pages, states)
        assert got is not None
        arena.free_pages(got[0])
        arena.free_states(got[1])

    return pair


class Decoding:
    """An engine in which every request of a list decodes, on the null executor."""

    def __init__(self, requests: Sequence[Pair], capacity_bytes: int = 400 << 30) -> None:
        n = len(requests)
        self.executor = NullExecutor()
        policy = Policy(max_running=n, token_budget=1 << 17)
        self.engine = Engine(Shape.kimi_k3(tp=8), self.executor, capacity_bytes, policy)
        for i, (prompt, output) in enumerate(requests):
            self.engine.submit(Request(i, prompt, len(output), sampling=Sampling(script=output.tobytes())))
        while len(self.executor.rows) < 3 or self.executor.rows[-3:] != [(n, 0)] * 3:
            self.engine.step()
            if not self.engine.has_work:
                raise RuntimeError("the requests ended before all of them decoded: give them longer outputs")

    def step(self) -> None:
        """Plan N + 1, launch it, commit N. Every row commits one token."""
        self.engine.step()


def decoding_requests(count: int = 256, prompt: int = 2300, output: int = 600) -> list[Pair]:
    """Requests whose prompts end anywhere within a page, so that a few cross a page's end at each step."""
    text = tokens(count * (prompt + PAGE + output), 1).reshape(count, -1)
    return [(text[i, : prompt + i % PAGE].copy(), text[i, -output:].copy()) for i in range(count)]
