"""Seeded random actors against the oracle, with check() and a whole comparison after every operation."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from k3mem.fuzz.alone.tree_model import Key, Model
from k3mem.radix import Kind, Lru, Tree

NONE = 2**31 - 1


class World:
    """One tree and its oracle, driven by one random generator."""

    def __init__(self, seed: int, page: int, ghosts: int | None, superseded: bool) -> None:
        self.rng = random.Random(seed)
        policy = Lru((Kind.CHUNK_END, Kind.PROMPT_END) if superseded else ())
        self.page = page
        self.tree: Any = Tree(page, 4 * page, policy, ghosts)
        self.model = Model(page, policy.classes().tolist(), ghosts)
        self.scopes = [self.tree.new_scope() for _ in range(2)]
        self.ids: dict[Key, int] = {(s, ()): self.tree.root(s) for s in self.scopes}
        self.locks: list[tuple[Key, int]] = []
        self.next_page = self.next_state = 1
        self.step = 1

    # -- choices

    def tokens(self, n: int) -> tuple[int, ...]:
        """Few distinct tokens, so that paths meet often, also inside pages."""
        return tuple(self.rng.choice((0, 0, 0, 1, 2)) for _ in range(n))

    def length(self) -> int:
        return self.rng.choice((1, self.page, 2 * self.page, self.rng.randint(1, 4 * self.page + 2)))

    def any_node(self) -> Key | None:
        keys = [k for k in self.ids if k[1]]
        return self.rng.choice(keys) if keys else None

    # -- actors

    def publish(self) -> None:
        key = self.rng.choice(list(self.ids))
        tokens = key[1] + self.tokens(self.length())
        end = self.rng.choice((len(tokens), len(tokens), len(tokens) // self.page * self.page, len(key[1])))
        if end < max(1, len(key[1])):
            return
        pages = self.tree.pages(self.ids[key]).tolist()
        whole = {p for k, e in self.model.ends.items() for p in e.pages[: (len(k[1]) - len(self.model.parent(k)[1]))
                                                                        // self.page]}
        if len(key[1]) % self.page and (pages[-1] in whole or self.rng.random() < 0.5):
            pages.pop()
        if self.rng.random() < 0.1:
            key, pages = (key[0], ()), []
        while len(pages) < -(-len(tokens) // self.page):
            pages.append(self.next_page)
            self.next_page += 1
        state = -1
        if self.rng.random() < 0.7:
            state, self.next_state = self.next_state, self.next_state + 1
        kind = Kind(self.rng.randrange(len(Kind)))
        got = self.tree.publish(self.ids[key], tokens, end, pages, state, kind, self.step)
        want = self.model.publish(key, tokens, end, pages, state, kind, self.step)
        assert (got.taken, got.adopted_from, got.replaced.tolist(), got.shared_page) == want
        assert tuple(self.tree.path_tokens(got.node)) == tokens[:end]

    def match(self) -> None:
        base = self.any_node() or (self.scopes[0], ())
        cut = self.rng.randint(0, len(base[1]))
        tokens = base[1][:cut] + self.tokens(self.rng.randint(0, 2 * self.page))
        for limit, before in ((len(tokens) - 1, self.step), (self.rng.randint(0, len(tokens)), self.step + 1)):
            got = self.tree.match(base[0], tokens, limit, before)
            assert tuple(got[1:]) == self.model.match(base[0], tokens, limit, before)
            assert self.tree.info(got.node).depth == got.depth

    def touch(self) -> None:
        if key := self.any_node():
            self.tree.touch(self.ids[key])
            self.model.touch(key)

    def lock(self) -> None:
        if (key := self.any_node()) and len(self.locks) < 4:
            self.tree.lock(self.ids[key])
            self.model.ends[key].lock += 1
            self.locks.append((key, self.ids[key]))

    def unlock(self) -> None:
        if self.locks:
            key, node = self.locks.pop(self.rng.randrange(len(self.locks)))
            self.tree.unlock(node)
            self.model.ends[key].lock -= 1
            self.model.trim()

    def take(self) -> None:
        keys = [k for k in self.ids if k[1] and self.model.ends[k].state >= 0]
        if keys:
            key = self.rng.choice(keys)
            assert self.tree.take(self.ids[key]) == self.model.detach(key)

    def evict(self) -> None:
        for _ in range(self.rng.choice((1, 1, 4))):
            safe = self.any_node() if self.rng.random() < 0.5 else None
            protected = [safe, *self.model.path(safe)] if safe else []
            victims = self.model.victims(protected)
            got = self.tree.evict(self.ids[safe] if safe else -1)
            if got is None:
                assert not victims
                return
            best = min(victims, key=self.model.rank)
            entry = self.model.ends[best]
            unused = entry.state >= 0 and not entry.used
            assert (got.node, got.depth, got.unused) == (self.ids[best], len(best[1]), unused)
            state, pages, tokens = self.model.retire(best, protected)
            assert (got.state, got.pages.tolist(), got.tokens) == (state, pages, tokens)
            self.compare()

    def cap(self) -> None:
        if key := self.any_node():
            limit = self.rng.randint(0, 2)
            got, want = self.tree.cap(self.ids[key], limit), self.model.cap_victim(key, limit)
            assert (got is None) == (want is None)
            if got and want:
                assert got.depth == len(want[1])
                assert (got.state, got.pages.tolist(), got.tokens) == self.model.retire(want, [])

    def drop(self) -> None:
        stamp = self.step - self.rng.randint(-1, 1)
        rows: dict[int, int] = {}
        states: set[int] = set()
        if self.rng.random() < 0.7:
            pages = [p for e in self.model.ends.values() for p in e.pages]
            rows = {p: self.rng.randint(0, self.page) for p in self.rng.sample(pages, min(1, len(pages)))}
            states = {e.state for e in self.model.ends.values() if e.state >= 0 and self.rng.random() < 0.1}
        by_page = np.full(self.next_page, NONE, np.int32)
        by_page[list(rows)] = list(rows.values())
        by_state = np.zeros(self.next_state, np.uint8)
        by_state[list(states)] = 1
        got, want = self.tree.drop(stamp, by_page, by_state), self.model.drop(stamp, rows, states)
        assert (sorted(got.states.tolist()), sorted(got.pages.tolist())) == (sorted(want[0]), sorted(want[1]))

    def flush(self) -> None:
        got, want = self.tree.flush(), self.model.flush()
        assert (sorted(got.states.tolist()), sorted(got.pages.tolist())) == (sorted(want[0]), sorted(want[1]))

    def forget(self) -> None:
        self.tree.forget_ghosts()
        self.model.forget(0)

    # -- comparison

    def compare(self) -> None:
        self.tree.check()
        walk = self.tree.walk()
        self.ids = {(s, ()): self.tree.root(s) for s in self.scopes}
        for node, depth, scope in zip(walk.node, walk.depth, walk.scope, strict=True):
            key = (int(scope), tuple(self.tree.path_tokens(node).tolist()))
            assert len(key[1]) == depth
            self.ids[key] = int(node)
        alive = {k: e for k, e in self.model.ends.items() if e.kv}
        assert set(alive) == {k for k in self.ids if k[1]}
        for key, e in alive.items():
            i, above = self.tree.info(self.ids[key]), self.model.parent(key)
            assert (i.parent, i.start, i.children) == (
                self.ids[above], len(above[1]), min(2, len(self.model.children(key))))
            assert (i.state, i.stamp, i.kv_stamp, i.lock, i.had_state, i.superseded) == (
                e.state, e.stamp, e.kv_stamp, e.lock, e.had, e.superseded)
            assert i.state < 0 or i.kind == e.kind
            assert self.tree.pages(self.ids[key]).tolist()[i.start // self.page :] == e.pages
        count = self.tree.counters()
        assert (count.nodes, count.checkpoints, count.ghost_tokens) == (
            len(self.model.ends) + 2, sum(e.state >= 0 for e in alive.values()), self.model.ghost_total())

    def run(self, steps: int) -> None:
        actors = (self.publish, self.match, self.touch, self.lock, self.unlock, self.take, self.evict, self.cap,
                  self.drop, self.flush, self.forget)
        weights = (30, 20, 8, 5, 5, 2, 12, 4, 1.5, 0.3, 0.5)
        for _ in range(steps):
            self.rng.choices(actors, weights)[0]()
            self.step += self.rng.random() < 0.5
            self.compare()
