"""State machines of the tree and the arena alone, as Hypothesis draws and shrinks them.

`ArenaMachine` and `TreeMachine` put the rules of the two stress tests (`tests/pool`, `tests/radix`) under Hypothesis'
hand, against their slow models. `PrefixMachine` shares nothing with those: its oracle is a dict of prefixes and a
count of owners, and it knows of no nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from k3mem.fuzz.alone.arena import GEOMETRIES, Actor
from k3mem.fuzz.alone.price import Priced
from k3mem.fuzz.alone.tree import World
from k3mem.radix import Kind, Lru, Tree
from k3mem.types import NodeId, ScopeId

CHOICES = st.randoms(use_true_random=False)
"""A random generator whose every choice Hypothesis draws, and shrinks towards the first."""


class ArenaMachine(RuleBasedStateMachine):
    """The arena against a byte map and a memory that moves as an executor would move it."""

    @initialize(name=st.sampled_from(sorted(set(GEOMETRIES) - {"k3"})))
    def build(self, name: str) -> None:
        self.actor = Actor(0, GEOMETRIES[name])

    @rule(rng=CHOICES, what=st.sampled_from(["alloc", "alloc", "alloc", "free", "free", "ref", "lease", "unlease",
                                             "make_room", "make_room", "compact", "cancel", "settle", "drain",
                                             "breach"]))
    def act(self, rng: Random, what: str) -> None:
        self.actor.rng = rng
        getattr(self.actor, what)()

    @rule(rng=CHOICES, what=st.sampled_from(["lease_twice", "strand", "free_leased"]))
    def lease_in_the_way(self, rng: Random, what: str) -> None:
        self.actor.rng = rng
        getattr(self.actor, what)()

    @invariant()
    def agrees(self) -> None:
        self.actor.model.compare()

    @invariant()
    def room_is_what_the_other_kind_leaves(self) -> None:
        self.actor.room_is_what_the_other_kind_leaves()


class TreeMachine(RuleBasedStateMachine):
    """The tree against the oracle that knows its nodes, order of eviction included."""

    @initialize(page=st.sampled_from([1, 2, 3, 4, 16]), ghosts=st.sampled_from([None, 0, 7, 40]),
                superseded=st.booleans())
    def build(self, page: int, ghosts: int | None, superseded: bool) -> None:
        self.world = World(0, page, ghosts, superseded)

    @rule(rng=CHOICES, what=st.sampled_from(["publish", "publish", "publish", "publish", "match", "match", "touch",
                                             "lock", "unlock", "take", "evict", "evict", "cap", "drop", "flush",
                                             "forget"]))
    def act(self, rng: Random, what: str) -> None:
        self.world.rng = rng
        getattr(self.world, what)()
        self.world.compare()

    @rule()
    def next_step(self) -> None:
        self.world.step += 1


Prefix = tuple[int, tuple[int, ...]]
"""(scope, tokens from the root)."""


@dataclass
class Kept:
    """A checkpoint in the tree."""

    state: int
    stamp: int
    touch: int


@dataclass
class Session:
    """Who publishes: holds a lock on the node that ends at `depth`."""

    scope: ScopeId
    tokens: tuple[int, ...]
    node: NodeId
    depth: int
    pages: list[int]
    own_from: int
    """Pages before this index are the tree's; the others its own."""


@dataclass
class Books:
    """What the tree reported, kept without any idea of nodes."""

    kept: dict[Prefix, Kept] = field(default_factory=dict)
    rows: dict[int, list[Prefix | None]] = field(default_factory=dict)
    """page id -> what its rows were computed from; None: not written, or lost."""
    owners: Counter[int] = field(default_factory=Counter)
    """page id -> references that the tree has."""


class PrefixMachine(RuleBasedStateMachine):
    """The tree against a dict of prefixes: a hit is the deepest one kept, its pages hold exactly its rows."""

    @initialize(page=st.sampled_from([1, 2, 4]), ghosts=st.sampled_from([None, 0, 9]))
    def build(self, page: int, ghosts: int | None) -> None:
        self.page = page
        self.tree = Tree(page, page, Lru(()), ghosts)
        self.scopes = [self.tree.new_scope() for _ in range(2)]
        self.books = Books()
        self.sessions: list[Session] = []
        self.next_page = self.next_state = 1
        self.step, self.clock = 1, 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # -- prompts: continuations of what somebody computed

    def base(self, choice: int, cut: int) -> tuple[int, ...]:
        known = sorted({prefix for _, prefix in self.books.kept})
        return known[choice % len(known)][:cut] if known else ()

    def write(self, session: Session, start: int) -> None:
        """Fresh pages from own_from on; rows below `start` copied, the others computed."""
        count = -(-len(session.tokens) // self.page)
        for _ in range(len(session.pages), count):
            session.pages.append(self.next_page)
            self.books.rows[self.next_page] = [None] * self.page
            self.next_page += 1
        for at in range(session.own_from * self.page, len(session.tokens)):
            row = (int(session.scope), session.tokens[: at + 1])
            self.books.rows[session.pages[at // self.page]][at % self.page] = row

    def look(self, scope: ScopeId, tokens: tuple[int, ...], limit: int, before: int) -> tuple[NodeId, int]:
        got = self.tree.match(scope, tokens, limit, before)
        fit = {len(p): k for (s, p), k in self.books.kept.items()
               if s == scope and tokens[: len(p)] == p and k.stamp < before}
        depth = max((d for d in fit if d <= limit), default=0)
        assert (got.depth, got.full) == (depth, max(fit, default=0))
        assert got.depth <= got.kv <= got.known <= len(tokens)
        assert got.state == (fit[depth].state if depth else -1)
        pages = self.tree.pages(got.node).tolist()
        for at in range(depth):
            assert self.books.rows[pages[at // self.page]][at % self.page] == (int(scope), tokens[: at + 1])
        return got.node, depth

    # -- rules

    @rule(scope=st.integers(0, 1), choice=st.integers(0, 99), cut=st.sampled_from([99, 99, 8, 5, 4, 2, 0]),
          more=st.lists(st.integers(0, 1), max_size=9))
    def start(self, scope: int, choice: int, cut: int, more: list[int]) -> None:
        at, tokens = self.scopes[scope], (*self.base(choice, cut), *more)
        if len(self.sessions) == 4 or not 0 < len(tokens) <= 40:
            return
        node, depth = self.look(at, tokens, len(tokens) - 1, self.step)
        if depth:
            self.tree.touch(node)
            self.books.kept[scope, tokens[:depth]].touch = self.tick()
        self.tree.lock(node)
        own = depth // self.page
        session = Session(at, tokens, node, depth, self.tree.pages(node).tolist()[:own], own)
        self.write(session, depth)
        self.sessions.append(session)

    @precondition(lambda self: self.sessions)
    @rule(who=st.integers(0, 3), more=st.lists(st.integers(0, 1), max_size=6))
    def grow(self, who: int, more: list[int]) -> None:
        session = self.sessions[who % len(self.sessions)]
        start = len(session.tokens)
        if start + len(more) <= 40:
            session.tokens += tuple(more)
            self.write(session, start)

    @precondition(lambda self: self.sessions)
    @rule(who=st.integers(0, 3), back=st.integers(0, 6), keep=st.booleans(), kind=st.sampled_from(list(Kind)))
    def publish(self, who: int, back: int, keep: bool, kind: Kind) -> None:
        session = self.sessions[who % len(self.sessions)]
        end = len(session.tokens) if not back else (len(session.tokens) - back) // self.page * self.page
        if end <= session.depth:
            return
        state = self.next_state if keep else -1
        self.next_state += keep
        got = self.tree.publish(session.node, session.tokens, end, session.pages, state, kind, self.step)
        whole = end // self.page
        adopted = range(min(got.adopted_from, whole), whole)
        assert [i for i, _ in got.replaced.tolist()] == list(range(session.own_from, adopted.start))
        self.books.owners.update(session.pages[i] for i in adopted)
        for i, page in got.replaced.tolist():
            session.pages[i] = page
        if got.shared_page >= 0:
            assert end % self.page and got.shared_page == session.pages[whole]
            self.books.owners[got.shared_page] += 1
        key = (int(session.scope), session.tokens[:end])
        if keep:
            assert got.taken == (key not in self.books.kept)
            if got.taken:
                self.books.kept[key] = Kept(state, self.step, 0)
            self.books.kept[key].touch = self.tick()
        self.tree.lock(got.node)
        self.tree.unlock(session.node)
        session.node, session.depth, session.own_from = got.node, end, whole

    @precondition(lambda self: self.sessions)
    @rule(who=st.integers(0, 3))
    def leave(self, who: int) -> None:
        self.tree.unlock(self.sessions.pop(who % len(self.sessions)).node)

    def gone(self, states: list[int], pages: list[int]) -> None:
        for state in states:
            (key,) = (k for k, kept in self.books.kept.items() if kept.state == state)
            del self.books.kept[key]
        self.books.owners.subtract(pages)
        assert min(self.books.owners.values(), default=0) >= 0, "a page left twice"

    def locked(self) -> set[Prefix]:
        return {(int(s.scope), s.tokens[: s.depth]) for s in self.sessions}

    @rule(who=st.integers(0, 7))
    def evict(self, who: int) -> None:
        safe = self.sessions[who] if who < len(self.sessions) else None
        path = set()
        if safe:
            path = {(int(safe.scope), safe.tokens[:n]) for n in range(safe.depth + 1)}
        could = {k: kept.touch for k, kept in self.books.kept.items() if k not in self.locked() | path}
        got = self.tree.evict(safe.node if safe else NodeId(-1))
        assert got or not could
        if got and got.state >= 0:
            assert self.books.kept[min(could, key=lambda k: could[k])].state == got.state, "not the least recent"
        if got:
            self.gone([got.state] if got.state >= 0 else [], got.pages.tolist())

    @precondition(lambda self: self.sessions)
    @rule(who=st.integers(0, 3), limit=st.integers(0, 2))
    def cap(self, who: int, limit: int) -> None:
        session = self.sessions[who % len(self.sessions)]
        got = self.tree.cap(session.node, limit)
        if got:
            assert (int(session.scope), session.tokens[: got.depth]) not in self.locked()
            self.gone([got.state], got.pages.tolist())

    @rule(choice=st.integers(0, 99))
    def take(self, choice: int) -> None:
        free = sorted(set(self.books.kept) - self.locked())
        if free:
            scope, tokens = free[choice % len(free)]
            node, depth = self.look(self.scopes[scope], tokens, len(tokens), self.step + 1)
            assert depth == len(tokens)
            self.gone([self.tree.take(node)], [])

    @precondition(lambda self: self.step % 4 == 3)  # rarely, so that something grows between
    @rule(back=st.integers(0, 1), page=st.integers(0, 60), row=st.integers(0, 3), choice=st.integers(0, 9))
    def fail(self, back: int, page: int, row: int, choice: int) -> None:
        """Steps >= stamp fail; rows of one page and one state are damaged besides. What stays is whole."""
        stamp = self.step - back
        rows = [2**31 - 1] * self.next_page
        if page in self.books.rows and row < self.page:
            rows[page] = row
            self.books.rows[page][row:] = [None] * (self.page - row)
        kept = sorted(k.state for k in self.books.kept.values())
        hit = kept[choice : choice + 1]
        damaged = [s in hit for s in range(self.next_state)]
        got = self.tree.drop(stamp, rows, damaged)
        self.gone(got.states.tolist(), got.pages.tolist())
        left = self.books.kept.values()
        assert all(k.stamp < stamp and k.state not in hit for k in left)
        while self.sessions:
            self.tree.unlock(self.sessions.pop().node)

    @precondition(lambda self: self.step % 8 == 4)
    @rule()
    def flush(self) -> None:
        got = self.tree.flush()
        self.gone(got.states.tolist(), got.pages.tolist())
        assert set(self.books.kept) <= self.locked()

    @rule()
    def next_step(self) -> None:
        self.step += 1

    # -- always

    @invariant()
    def everything_kept_is_found(self) -> None:
        self.tree.check()
        count = self.tree.counters()
        assert count.checkpoints == len(self.books.kept) and count.locks == len(self.sessions)
        held = self.tree.page_refs(self.next_page)
        assert {p: n for p, n in enumerate(held.tolist()) if n} == {p: n for p, n in self.books.owners.items() if n}
        for (scope, tokens), kept in self.books.kept.items():
            _, depth = self.look(self.scopes[scope], tokens, len(tokens), self.step + 1)
            assert depth == len(tokens) and kept.state > 0

    @invariant()
    def sessions_keep_their_rows(self) -> None:
        for s in self.sessions:
            assert self.tree.info(s.node).depth == s.depth
            pages = self.tree.pages(s.node).tolist()
            for at in range(s.depth):
                row = self.books.rows[pages[at // self.page]][at % self.page]
                assert row == (int(s.scope), s.tokens[: at + 1])


MACHINES = (ArenaMachine, TreeMachine, PrefixMachine)
__all__ = ["GEOMETRIES", "MACHINES", "Actor", "ArenaMachine", "PrefixMachine", "Priced", "TreeMachine", "World"]
