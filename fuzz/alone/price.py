"""Checkpoints in order of value, against an oracle that works every value out from the paths."""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt

from k3mem.radix import Kind, Lru, Note, Tree
from k3mem.radix.tree import AGES
from k3mem.types import NodeId, StateId

EDGES = np.concatenate(([0.0], 0.001 * 2.0 ** np.arange(AGES - 1)))
STATE_TOKENS = 5.0
CLASSES = 3 * 2 * 3


def class_of(structure: int, note: int, turn: int) -> int:
    return structure * 6 + (note == Note.TOOL) * 3 + min(turn, 2)


def class_table() -> npt.NDArray[np.uint16]:
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
                self.tree.publish(found.node, tokens, end, pages, StateId(self.states), kind, self.step)

    def note(self) -> None:
        nodes = self.tree.walk().node
        if len(nodes):
            node = NodeId(int(self.rng.choice(nodes)))
            self.tree.note(node, self.rng.choice((Note.TOOL, Note.TOOL, Note.END, Note.OVER)))

    def oracle(self) -> dict[NodeId, tuple[int, float]]:
        """node -> (rank, value) of each checkpoint, at the present moment."""
        walk, out = self.tree.walk(), {}
        touch = self.tree._table("touch")
        infos = {node: self.tree.info(node) for node in map(NodeId, walk.node.tolist())}
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
            assert _near(self.tree.info(node).value, value), (node, self.tree.info(node))
        for _ in range(self.rng.choice((1, 1, 3))):
            gone = self.tree.evict()
            assert gone is not None or not order
            if gone is None or gone.state < 0:
                continue
            rank, value = order[gone.node]
            least = min(order.values())
            assert rank == least[0]
            assert rank == 0 or _near(value, least[1])
            self.tree.values(self.values)
            order = self.oracle()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choices((self.request, self.note, self.tick, self.evict), (10, 6, 4, 4))[0]()
            self.tree.check()


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)
