"""Root causes of known faults in matching, publishing and locking. See `plants`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from k3mem.fuzz.patching import Plant, all_of, matching, patched, plans
from k3mem.plan import Plan, Row
from k3mem.radix import Kind, Match
from k3mem.sched import admit, anchors, close
from k3mem.sched.builder import Builder
from k3mem.sched.cache import Cache
from k3mem.sched.core import Core
from k3mem.sched.job import Seated
from k3mem.types import NO_STATE, Int32, NodeId, ScopeId


def published_at_most(depth: int) -> Plant:
    """An insert is trimmed to this many tokens, with the state of the whole."""

    def make(old: Any) -> Any:
        def keep(self: Cache, node: NodeId, tokens: Int32, end: int, *rest: Any) -> Any:
            most = max(min(end, depth), self.tree.info(node).depth + 1)
            return old(self, node, tokens, min(end, most), *rest)
        return keep

    return patched(Cache, "keep", make)


def no_anchor(kind: Kind) -> Plant:
    """Prefill leaves no checkpoint of this kind."""

    def make(old: Any) -> Any:
        def planned(*a: Any) -> dict[int, Kind]:
            return {depth: k for depth, k in old(*a).items() if k != kind}
        return planned

    return patched(anchors, "planned", make)


def anchors_from_the_resume_depth() -> Plant:
    """Anchors lie on a grid that is counted from the matched prefix, not from token 0."""

    def make(old: Any) -> Any:
        def planned(core: Core, request: Any, target: int, found: Match) -> dict[int, Kind]:
            grid, base = core.shape.grid, found.depth
            last = base + (target - 1 - base) // grid * grid
            return {last: Kind.PROMPT_END} if last > base else {}
        return planned

    return patched(anchors, "planned", make)


def whole_prompt_hits() -> Plant:
    """A prompt may be matched to its very end: nothing is left to compute."""

    def make(old: Any) -> Any:
        def match(self: Cache, scope: ScopeId, tokens: Int32, limit: int, before_step: int) -> Match:
            return old(self, scope, tokens, len(tokens), before_step)  # type: ignore[no-any-return]
        return match

    return patched(Cache, "match", make)


def hit_reduced_for_kv_only() -> Plant:
    """A whole-prompt hit is reduced by one token, but its state still contains that token."""

    def change(cache: Cache, scope: ScopeId, tokens: Int32, limit: int, found: Match) -> Match:
        full = cache.tree.match(scope, tokens)
        return full._replace(depth=limit) if full.depth == len(tokens) > 1 else found

    return matching(change)


def kv_hit_without_state() -> Plant:
    """Whatever KV is there is a hit; where no state stands the restore is left out."""

    def deepest(cache: Cache, tokens: Int32, limit: int, found: Match) -> Match:
        walk = cache.tree.walk()
        for node, depth in sorted(zip(walk.node.tolist(), walk.depth.tolist(), strict=True), key=lambda e: -e[1]):
            if found.depth < depth <= min(limit, found.kv) and depth % cache.shape.page_span == 0 and \
                    np.array_equal(cache.tree.path_tokens(node), tokens[:depth]):
                return found._replace(node=node, depth=depth, state=cache.tree.info(node).state)
        return found

    def no_restore(plan: Plan) -> Plan:
        bare = plan.restores[:, 0] == NO_STATE
        zero = np.concatenate([plan.zero_states, plan.restores[bare, 1]])
        return replace(plan, restores=plan.restores[~bare], zero_states=zero)

    return all_of(matching(lambda cache, scope, tokens, limit, found: deepest(cache, tokens, limit, found)),
                  plans(no_restore))


def loose_match() -> Plant:
    """A checkpoint counts as valid when it lies on a path that *begins* like the prompt."""

    def change(cache: Cache, scope: ScopeId, tokens: Int32, limit: int, found: Match) -> Match:
        walk = cache.tree.walk()
        for node, depth, state in zip(walk.node.tolist(), walk.depth.tolist(), walk.state.tolist(), strict=True):
            if state >= 0 and found.depth < depth <= limit and np.array_equal(
                    cache.tree.path_tokens(node)[:16], tokens[:16]):
                found = found._replace(node=node, depth=depth, state=state)
        return found

    return matching(change)


def resume_deletes_deeper() -> Plant:
    """Resuming from a checkpoint deletes every deeper one, on whatever branch."""

    def make(old: Any) -> Any:
        def seat(core: Core, b: Builder, job: Any, found: Match) -> bool:
            tree = core.cache.tree
            walk = tree.walk()
            for node, depth, state in zip(walk.node.tolist(), walk.depth.tolist(), walk.state.tolist(), strict=True):
                if found.depth and depth > found.depth and state >= 0 and not tree.info(node).lock:
                    core.cache.arena.free_states(np.array([tree.take(node)], np.int32))
            return old(core, b, job, found)  # type: ignore[no-any-return]
        return seat

    return patched(admit, "_seat", make)


def packed_grid() -> Plant:
    """Boundary states are indexed on one grid over the packed batch, not on each row's own."""

    def change(plan: Plan) -> Plan:
        snapshots = plan.snapshots.copy()
        for i, (row, depth, _) in enumerate(snapshots.tolist()):
            if plan.kind[row] == Row.PREFILL:
                shift = int(plan.token_offset[row]) % 64
                snapshots[i, 1] = max(int(plan.start[row]) + 1, depth - shift)
        return replace(plan, snapshots=snapshots)

    return plans(change)


def unlocks_to_the_root() -> Plant:
    """Whoever leaves releases the lock of every ancestor, not only the one it took."""

    def make(old: Any) -> Any:
        def release(core: Core, seat: Seated) -> None:
            tree, node = core.cache.tree, seat.node
            old(core, seat)
            while tree.info(node).parent >= 0:
                node = tree.info(node).parent
                if tree.info(node).lock:
                    tree.unlock(node)
        return release

    return patched(close, "release", make)


def refused_keeps_its_lock() -> Plant:
    """A match that was not admitted keeps the lock it took for the attempt."""

    def make(old: Any) -> Any:
        def seat(core: Core, b: Builder, job: Any, found: Match) -> bool:
            admitted = old(core, b, job, found)
            if not admitted:
                core.cache.tree.lock(found.node)
            return admitted  # type: ignore[no-any-return]
        return seat

    return patched(admit, "_seat", make)


def only_the_joint_hit() -> Plant:
    """A miss is a miss: nobody asks what was found and thrown away."""
    return patched(Cache, "explain", lambda old: lambda self, scope, tokens, found, hit, limit: (
        {"never_seen": len(tokens) - hit} if len(tokens) > hit else {}))
