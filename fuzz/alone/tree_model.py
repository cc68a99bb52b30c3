"""Slow oracle of the token tree: a dict from prefix to entry, no nodes, no links, everything recomputed by scanning."""

from __future__ import annotations

from dataclasses import dataclass, field

from k3mem.radix import Kind
from k3mem.radix.kinds import PASSED

Key = tuple[int, tuple[int, ...]]
"""(scope, tokens from the root): where an edge ends."""


@dataclass
class End:
    """An edge's end. Its pages are those of the edge, one for every page it reaches into."""

    touch: int
    kv: bool = False
    pages: list[int] = field(default_factory=list)
    kv_stamp: int = -1
    state: int = -1
    kind: Kind = Kind.PROMPT_END
    stamp: int = -1
    lock: int = 0
    had: bool = False
    used: bool = False
    superseded: bool = False
    followed: int = 0
    """Lineages that went on from a tail."""


class Model:
    def __init__(self, page: int, classes: list[list[int]], ghost_tokens: int | None) -> None:
        self.page, self.classes, self.ghost_tokens = page, classes, ghost_tokens
        self.ends: dict[Key, End] = {}
        self.clock = 0

    # -- shape, from prefixes alone

    def parent(self, key: Key) -> Key:
        scope, tokens = key
        for n in range(len(tokens) - 1, 0, -1):
            if n % self.page == 0 and (scope, tokens[:n]) in self.ends:
                return scope, tokens[:n]
        return scope, ()

    def children(self, key: Key) -> list[Key]:
        return [k for k in self.ends if self.parent(k) == key]

    def path(self, key: Key) -> list[Key]:
        """Ends above `key`, deepest first, without the root."""
        out = []
        while (key := self.parent(key))[1]:
            out.append(key)
        return out

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def known(self, scope: int, prefix: tuple[int, ...]) -> bool:
        return any(k[0] == scope and k[1][: len(prefix)] == prefix for k in self.ends)

    def split(self, scope: int, prefix: tuple[int, ...]) -> None:
        if not prefix or (scope, prefix) in self.ends:
            return
        lower = min((k for k in self.ends if k[0] == scope and k[1][: len(prefix)] == prefix), key=lambda k: len(k[1]))
        start = len(self.parent(lower)[1])
        low, count = self.ends[lower], (len(prefix) - start) // self.page
        self.ends[scope, prefix] = End(low.touch, low.kv, low.pages[:count], low.kv_stamp)
        low.pages = low.pages[count:]

    # -- operations

    def match(self, scope: int, tokens: tuple[int, ...], limit: int, before: int) -> tuple[int, ...]:
        def same(k: Key) -> int:
            return next((i for i, (a, b) in enumerate(zip(k[1], tokens, strict=False)) if a != b),
                        min(len(k[1]), len(tokens)))

        mine = [k for k in self.ends if k[0] == scope]
        whole = [k for k in mine if same(k) == len(k[1])]
        full = [len(k[1]) for k in whole if self.ends[k].state >= 0 and self.ends[k].stamp < before]
        depth = max((d for d in full if d <= limit), default=0)
        state = self.ends[scope, tokens[:depth]].state if depth else -1
        evicted = max((len(k[1]) for k in whole if self.ends[k].had and self.ends[k].state < 0), default=0)
        known = max(map(same, mine), default=0)
        kv = max((same(k) for k in mine if self.ends[k].kv), default=0)
        for k in mine:  # a ghost below a KV node: the part of its path above the ghost is KV
            above = [p for p in self.path(k) if self.ends[p].kv]
            kv = max(kv, min(same(k), len(above[0][1]) if above else 0))
        return depth, state, known, kv, evicted, max(full, default=0)

    def publish(self, node: Key, tokens: tuple[int, ...], end: int, pages: list[int], state: int, kind: Kind,
                stamp: int) -> tuple[bool, int, list[list[int]], int]:
        scope, page, target = node[0], self.page, (node[0], tokens[:end])
        adopted, shared, replaced = end // page, -1, []
        if end > len(node[1]):
            at = len(node[1]) // page * page
            self.split(scope, tokens[:at])
            stop = max(n for n in range(0, end + 1, page) if n == 0 or self.known(scope, tokens[:n]))
            if target not in self.ends:
                self.split(scope, tokens[:stop])
                if target not in self.ends:
                    self.ends[target] = End(0)
            for key in sorted([target, *self.path(target)], key=lambda k: len(k[1])):
                if len(key[1]) <= at:
                    continue
                entry, first = self.ends[key], len(self.parent(key)[1]) // page
                if entry.kv:
                    replaced += [[first + i, entry.pages[i]] for i in range(len(key[1]) // page - first)
                                 if entry.pages[i] != pages[first + i]]
                    continue
                entry.kv, entry.kv_stamp, entry.touch = True, stamp, self.tick()
                entry.pages = pages[first : -(-len(key[1]) // page)]
                adopted = min(adopted, first)
                if len(key[1]) % page:
                    shared = pages[end // page]
        self.unmark_forks()
        if state < 0:
            return False, adopted, replaced, shared
        entry = self.ends[target]
        entry.touch = self.tick()
        if entry.state >= 0:
            return False, adopted, replaced, shared
        entry.state, entry.kind, entry.stamp, entry.had, entry.used = state, kind, stamp, False, False
        entry.followed = 0
        for above in self.path(target):
            if len(self.children(above)) != 1:
                break
            if self.ends[above].state >= 0:
                self.ends[above].superseded = self.ends[above].kind in PASSED
                break
        tail = self.ends.get(node)
        if tail is not None and node != target and len(node[1]) % self.page and tail.state >= 0:
            tail.followed += 1
            tail.superseded = tail.followed == 1 and tail.kind in PASSED
        return True, adopted, replaced, shared

    def unmark_forks(self) -> None:
        for key, entry in self.ends.items():
            if entry.superseded and len(key[1]) % self.page == 0:
                below = self.children(key)
                entry.superseded = len(below) == 1 and self.ends[below[0]].kv

    def touch(self, key: Key) -> None:
        self.ends[key].touch, self.ends[key].used = self.tick(), True

    def detach(self, key: Key, had: bool = True) -> int:
        entry = self.ends[key]
        state, entry.state, entry.stamp, entry.had, entry.superseded = entry.state, -1, -1, had, False
        return state

    def lose(self, key: Key) -> list[int]:
        entry = self.ends[key]
        pages, entry.pages, entry.kv, entry.kv_stamp = entry.pages, [], False, -1
        return pages

    def rank(self, key: Key) -> tuple[int, int]:
        entry = self.ends[key]
        return (self.classes[entry.kind][entry.superseded] if entry.state >= 0 else 0), entry.touch

    def kv_leaf(self, key: Key) -> bool:
        return self.ends[key].kv and not any(self.ends[k].kv for k in self.children(key))

    def retire(self, key: Key, protected: list[Key]) -> tuple[int, list[int], int]:
        state = self.detach(key) if self.ends[key].state >= 0 else -1
        pages: list[int] = []
        tokens = 0
        while key[1] and key not in protected and self.kv_leaf(key):
            if self.ends[key].state >= 0 or self.ends[key].lock:
                break
            above = self.parent(key)
            tokens += len(key[1]) - len(above[1])
            pages += self.lose(key)
            key = above
        self.unmark_forks()
        self.trim()
        return state, pages, tokens

    def victims(self, protected: list[Key]) -> list[Key]:
        return [k for k, e in self.ends.items()
                if not e.lock and k not in protected and (e.state >= 0 or self.kv_leaf(k))]

    def cap_victim(self, node: Key, limit: int) -> Key | None:
        path = self.path(node)
        held = [k for k in path if self.ends[k].state >= 0]
        open_ = [k for k in held if len(self.children(k)) < 2 and not self.ends[k].lock]
        if len(open_) <= limit:
            return None
        depth = [len(k[1]) for k in held] + [0]
        return min(open_, key=lambda k: (len(k[1]) - max(d for d in depth if d < len(k[1])), len(k[1])))

    def drop(self, stamp: int, rows: dict[int, int], states: set[int]) -> tuple[list[int], list[int]]:
        def damaged(key: Key) -> bool:
            entry, length = self.ends[key], len(key[1]) - len(self.parent(key)[1])
            used = [min(self.page, length - i * self.page) for i in range(len(entry.pages))]
            return entry.kv_stamp >= stamp or any(
                u > rows.get(p, 1 << 30) for u, p in zip(used, entry.pages, strict=True))

        own = {k for k, e in self.ends.items() if e.kv and damaged(k)}
        gone = {k for k, e in self.ends.items() if e.kv and (k in own or own & set(self.path(k)))}
        out_states, out_pages = [], []
        for key, entry in self.ends.items():
            unborn = entry.stamp >= stamp
            if entry.state >= 0 and (unborn or key in gone or entry.state in states):
                out_states.append(self.detach(key, had=not unborn))
        for key in gone:
            out_pages += self.lose(key)
        self.unmark_forks()
        self.trim()
        return out_states, out_pages

    def flush(self) -> tuple[list[int], list[int]]:
        kept = {k for k, e in self.ends.items() if e.lock}
        kept |= {p for k in kept for p in self.path(k)}
        out_states = [self.detach(k) for k, e in self.ends.items() if e.state >= 0 and not e.lock]
        out_pages = [p for k in self.ends if k not in kept for p in self.lose(k)]
        self.forget(0)
        return out_states, out_pages

    def forget(self, limit: int) -> None:
        while self.ghost_total() > limit:
            leaves = [k for k, e in self.ends.items() if not e.kv and not e.lock and not self.children(k)]
            if not leaves:
                break
            del self.ends[min(leaves, key=lambda k: self.ends[k].touch)]
        self.unmark_forks()

    def trim(self) -> None:
        if self.ghost_tokens is not None:
            self.forget(self.ghost_tokens)

    def ghost_total(self) -> int:
        return sum(len(k[1]) - len(self.parent(k)[1]) for k, e in self.ends.items() if not e.kv)
