"""Shared by the tree's tests: publishers with fresh ids on a tree of one scope, pages of 4 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3mem.radix import Evicted, EvictionPolicy, Kind, Lru, Published, Tree

P = 4
A = np.arange(100, 164, dtype=np.int32)


class Writer:
    """A tree with one scope, and publishers that count fresh page and state ids for it."""

    def __init__(self, policy: EvictionPolicy | None = None, ghost_tokens: int | None = None) -> None:
        self.tree = Tree(P, P, policy or Lru(()), ghost_tokens)
        self.scope = self.tree.new_scope()
        self.root = self.tree.root(self.scope)
        self.pages = self.states = 0

    def fresh(self, n: int) -> list[int]:
        self.pages += n
        return list(range(self.pages - n, self.pages))

    def put(self, node: int, tokens: Any, end: int, kind: Kind = Kind.HINT, stamp: int = 1, state: int | None = None,
            pages: list[int] | None = None) -> Published:
        """Publish with fresh pages for what lies past `node`'s whole pages."""
        if pages is None:
            pages = self.tree.pages(node).tolist()[: self.tree.info(node).depth // P]
            pages += self.fresh(-(-end // P) - len(pages))
        if state is None:
            state, self.states = self.states, self.states + 1
        got = self.tree.publish(node, tokens, end, pages, state, kind, stamp)
        self.tree.check()
        return got

    def hit(self, tokens: Any, limit: int | None = None, before: int | None = None) -> int:
        return self.tree.match(self.scope, tokens, limit, before).depth

    def evict(self, protect: int = -1) -> Evicted:
        got = self.tree.evict(protect)
        self.tree.check()
        assert got is not None
        return got


def other(at: int, n: int = 64) -> Any:
    """A's first `at` tokens, then others."""
    return np.concatenate([A[:at], np.arange(900, 900 + n - at, dtype=np.int32)])
