"""The cache: one tree over one arena. What a prefix can resume from, what must go to make room, what is kept.

Only this module (and the scheduler above it) sees tree and pool together. Arrival-order replay drives it directly.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

import numpy as np

from k3mem.errors import Corrupted
from k3mem.events import EventLog
from k3mem.metrics import Metrics
from k3mem.policy import Policy
from k3mem.pool import Arena, Fit
from k3mem.radix import Dropped, Evicted, Kind, Match, Note, Prices, Tree
from k3mem.shape import Shape
from k3mem.types import NO_NODE, NO_STATE, Int32, NodeId, ScopeId, StateId

ScopeKey = tuple["str | bytes", str, str]
NONE = 0
"""The sink page: in a writer's page list, a page that only the tree has."""
EMPTY = np.zeros(0, np.int32)
NAMES = {kind: kind.name.lower() for kind in Kind}
MAX_SCOPES_EXPLAINED = 64
"""A miss is blamed on another scope only among so many scopes; beyond, it counts as never seen."""


class Kept(NamedTuple):
    """What `Cache.keep` did."""

    node: NodeId
    """Where the writer stands now."""
    taken: bool
    """The state belongs to the tree now; else the caller still owns it."""
    changed: Int32
    """Entries of the writer's page list that changed ..."""
    pages: Int32
    """... and the tree's pages that stand there now (the writer's duplicates were freed)."""


class Cache:
    """Tree and arena of one engine, and the counters of what happens to them. `draft_version`: of the drafter whose KV
    lies in the pages, part of every scope's digest."""

    def __init__(self, shape: Shape, policy: Policy, capacity_bytes: int, scratch_bytes: int = 0,
                 draft_version: str = "") -> None:
        self.shape = shape
        self.policy = policy
        self.metrics = Metrics()
        self.log = EventLog(policy.event_log)
        self.arena = self._arena(capacity_bytes, scratch_bytes)
        self.tree = Tree(shape.page_span, shape.grid, policy.eviction, policy.ghost_tokens)
        self.keeper = policy.eviction.keeper(self.tree, Prices(shape.state_bytes, shape.token_bytes, capacity_bytes))
        self.holds: Counter[NodeId] = Counter()
        """Locks of others than running requests and pins, by node: a transfer's, say."""
        self._draft_version = draft_version
        self._scopes: dict[ScopeKey, ScopeId] = {}
        self._digests: list[bytes] = []

    def _arena(self, capacity_bytes: int, scratch_bytes: int) -> Arena:
        shape = self.shape
        return Arena(capacity_bytes=capacity_bytes, page_bytes=shape.page_bytes, state_bytes=shape.state_bytes,
                     scratch_bytes=scratch_bytes, align=shape.align, split=self.policy.split)

    def empty(self, capacity_bytes: int | None = None) -> None:
        """Every page and state is gone, and the arena is a new one, of another size if one is given. What was known
        stays as ghosts. Nobody may hold a lock. Raises InvalidShape, with nothing changed, if it is too small."""
        scratch = self.arena.scratch_bytes
        fresh = self._arena(self.arena.capacity_bytes if capacity_bytes is None else capacity_bytes, scratch)
        self.tree.drop(0)
        self.arena = fresh
        self.keeper.resized(fresh.capacity_bytes)

    # -- scopes

    def scope(self, key: ScopeKey) -> ScopeId:
        """The interned scope of a key; made on first use."""
        found = self._scopes.get(key)
        if found is None:
            digest = _digest((*key, self._draft_version) if self._draft_version else key)
            found = self.tree.new_scope()
            self._scopes[key] = found
            self._digests.append(digest)
        return found

    def known_scope(self, key: ScopeKey) -> ScopeId | None:
        """The scope of a key if it was made already. Changes nothing."""
        return self._scopes.get(key)

    def digest(self, scope: ScopeId) -> bytes:
        """32 bytes that name the scope outside this process."""
        return self._digests[scope]

    # -- looking

    def match(self, scope: ScopeId, tokens: Int32, limit: int, before_step: int) -> Match:
        """What `tokens` could resume from at `limit` or below, for a plan numbered `before_step`. Changes nothing."""
        return self.tree.match(scope, tokens, limit, before_step)

    def explain(self, scope: ScopeId | None, tokens: Int32, found: Match, hit: int, limit: int) -> dict[str, int]:
        """Why the tokens beyond `hit` were no hit: tokens by cause; hit + sum == len(tokens), exactly. `limit`: the
        deepest depth that could have been resumed at (at least one token is computed). `scope` None: a new one."""
        n = len(tokens)
        known = max(found.known, hit)
        elsewhere = known
        others = len(self._digests) - (scope is not None)
        if known < n and 0 < others < MAX_SCOPES_EXPLAINED:
            scopes = (ScopeId(s) for s in range(len(self._digests)) if s != scope)
            elsewhere = max(known, max(self.tree.match(s, tokens, 0, 1 << 60).known for s in scopes))
        causes = {"other_scope": elsewhere - known, "never_seen": n - elsewhere}
        if found.full > limit:
            causes["last_token"] = known - hit
        else:
            end = min(known, limit)
            causes["last_token"] = known - end if known > hit else 0
            causes |= _split_known(hit, max(hit, end), found, self.shape.grid)
        return {cause: count for cause, count in causes.items() if count}

    def noted(self, node: NodeId, note: int, ticket: int, now: float) -> None:
        """This is known now of the next use of a node's checkpoint, which the request of that ticket left. O(log n);
        O(1) where it would change nothing."""
        if not self.keeper.heeds and note != Note.OVER:
            return
        self.tree.time(now)
        self.tree.note(node, note)
        self.keeper.finished(ticket, note)

    # -- making room

    def room(self, pages: int, states: int, protect: NodeId = NO_NODE) -> Fit:
        """Evict, in the policy's order, until the joint demand fits, now or after moves; NO if it cannot.

        Nothing on the path to `protect` is evicted. O(log n) a victim.
        """
        fit = self.arena.fits(pages, states)
        while fit == Fit.NO:
            victim = self.tree.evict(protect)
            if victim is None:
                return Fit.NO
            self.discard(victim)
            fit = self.arena.fits(pages, states)
        return fit

    def cheap_room(self, pages: int, states: int) -> Fit:
        """`room`, but only what the policy puts first goes: KV without a checkpoint, superseded checkpoints."""
        fit = self.arena.fits(pages, states)
        while fit == Fit.NO and self.tree.next_class() == 0:
            victim = self.tree.evict()
            assert victim is not None
            self.discard(victim)
            fit = self.arena.fits(pages, states)
        return fit

    def discard(self, victim: Evicted) -> None:
        """Give back what the tree let go."""
        if len(victim.pages):
            self.arena.free_pages(victim.pages)
        if victim.state != NO_STATE:
            self.arena.free_state(victim.state)
            self.metrics.evicted += 1
            self.metrics.evicted_unused += victim.unused
            self.log.add("evict", depth=victim.depth, detail=NAMES[victim.kind])
        self.metrics.events["victim"] += 1

    def let_go(self, node: NodeId) -> None:
        """Take a checkpoint out of the tree, locked or not, and free its state; its KV stays. Counted like an eviction.
        Raises Corrupted where there is none. O(log n)."""
        info = self.tree.info(node)
        self.discard(Evicted(node, info.kind, self.tree.take(node), EMPTY, 0, info.unused, info.depth))

    def give_back(self, gone: Dropped) -> None:
        """Free what left the tree in bulk (a failed step, a flush)."""
        self.arena.free_pages(gone.pages)
        self.arena.free_states(gone.states)

    def hold(self, node: NodeId) -> None:
        """Keep a node's checkpoint and its path's KV until `unhold`. O(log n)."""
        self.tree.lock(node)
        self.holds[node] += 1

    def unhold(self, node: NodeId) -> None:
        """End one hold. Raises Corrupted if there is none. O(log n)."""
        if self.holds[node] < 1:
            raise Corrupted(f"node {node} is not held: unhold what hold() was given, once")
        self.holds[node] -= 1
        self.tree.unlock(node)

    # -- keeping

    def keep(
        self, node: NodeId, tokens: Int32, end: int, pages: Int32, state: StateId, kind: Kind, stamp: int
    ) -> Kept:
        """Publish tokens[:end] from the writer's own node on, with the checkpoint `state` at `end` (or KV alone).

        Whole pages pass to the tree; where the tree has them already the writer's duplicates are freed and its list
        `pages` is changed in place; NONE stands where the writer relies on the tree to have the page. A tail's
        partial page gains a reference. O(new tokens).
        """
        done = self.tree.publish(node, tokens, end, pages, state, kind, stamp)
        index, theirs = EMPTY, EMPTY
        if len(done.replaced):
            index, theirs = done.replaced[:, 0].copy(), done.replaced[:, 1].copy()
            mine = pages[index]
            differ = mine != theirs
            index, theirs, mine = index[differ], theirs[differ], mine[differ]
            pages[index] = theirs
            self.arena.free_pages(mine[mine != NONE])
        if done.shared_page >= 0:
            self.arena.ref(done.shared_page)
        if done.taken:
            name = NAMES[kind]
            self.metrics.created[name] += 1
            self.log.checkpoint(stamp, end, name)
            self.metrics.events["donate"] += 1
            if self.policy.path_cap is not None:
                surplus = self.tree.cap(done.node, self.policy.path_cap)
                if surplus is not None:
                    self.discard(surplus)
        elif state != NO_STATE:
            self.metrics.duplicates += 1
        return Kept(done.node, done.taken, index, theirs)

    # -- checking

    def check(self) -> None:
        """Every invariant of tree and arena, and of the two together. Raises Corrupted. O(everything)."""
        self.arena.check()
        self.tree.check()


def _split_known(hit: int, end: int, found: Match, grid: int) -> dict[str, int]:
    """Causes of [hit, end): known tokens that no checkpoint stood close enough below.

        hit ....... evicted ....... floor(end) ....... end
            gone: had a state         never had     off the grid
    """
    floor = max(hit, end // grid * grid)
    evicted = min(max(found.evicted, hit), floor)
    gone = max(0, evicted - max(hit, min(found.kv, evicted)))
    return {"off_grid": end - floor, "kv_evicted": gone, "no_state": floor - hit - gone}


def _digest(key: tuple[str | bytes, ...]) -> bytes:
    h = hashlib.blake2b(digest_size=32, person=b"k3mem.scope")
    for part in key:
        raw = part if isinstance(part, bytes) else part.encode()
        kind = b"b" if isinstance(part, bytes) else b"s"
        h.update(kind + len(raw).to_bytes(8, "little") + raw)
    return h.digest()
