"""What a tree tells: results and facts, as plain tuples; and who chooses victims in Python."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from k3mem.radix.kinds import Kind
from k3mem.types import Int32, Int64, NodeId, ScopeId, StateId


class Match(NamedTuple):
    """What is known of a prompt. All but `node` and `state` are token counts."""

    node: NodeId
    """Node of the deepest usable checkpoint, else the scope's root."""
    depth: int
    """Its depth, 0 for the root."""
    state: StateId
    """Its state, -1 for the root."""
    known: int
    """Leading tokens on some known path, ghosts included."""
    kv: int
    """Leading tokens on paths with KV."""
    evicted: int
    """Depth of the deepest matched node that has lost its checkpoint, else 0."""
    full: int
    """Depth of the deepest matched checkpoint, whatever the limit, else 0."""


class Published(NamedTuple):
    """What became of a publisher's state and pages."""

    node: NodeId
    """The node that ends at the published depth."""
    taken: bool
    """The state now belongs to the tree; else the caller keeps it."""
    adopted_from: int
    """Pages with indexes adopted_from .. end // page_tokens - 1 now belong to the tree."""
    replaced: Int32
    """[n, 2] (index, the tree's page id): whole pages that the tree has already; the publisher's are duplicates."""
    shared_page: int
    """Page id whose leading rows a new tail references (one reference more), else -1."""


class Evicted(NamedTuple):
    """One victim."""

    node: NodeId
    """It stays as tombstone or ghost, unless the ghost limit has removed it by now."""
    kind: Kind
    """Of the checkpoint; without meaning when there was none."""
    state: StateId
    """The checkpoint's state, or -1 where only KV went."""
    pages: Int32
    """Page ids let go: of the node and of every ancestor that nothing needs any more; nearest the leaf first."""
    tokens: int
    """Tokens whose KV went."""
    unused: bool
    """A checkpoint that nobody has touched since it was attached."""
    depth: int
    """Depth of the victim."""


class Dropped(NamedTuple):
    """All that went at once."""

    states: Int32
    pages: Int32


class Info(NamedTuple):
    """One node. Depths in tokens; `stamp` and `kv_stamp` are steps, -1 without a checkpoint or KV."""

    depth: int
    start: int
    parent: NodeId
    state: StateId
    kind: Kind
    stamp: int
    lock: int
    has_kv: bool
    children: int
    """0, 1, or 2 for more."""
    superseded: bool
    is_tail: bool
    had_state: bool
    kv_stamp: int
    scope: ScopeId
    unused: bool
    """A checkpoint that nobody has touched since it was attached."""
    note: int
    """What was last said of its next use (`Note`)."""
    turn: int
    """Ends and forks of earlier prompts above it."""
    value: float
    """By which it is ordered within its rank; 0 where the tree has no values."""


class Counters(NamedTuple):
    """Sizes. Roots count as nodes; `kv_pages` counts page references held."""

    nodes: int
    checkpoints: int
    kv_pages: int
    kv_tokens: int
    ghost_tokens: int
    locks: int
    edge_tokens: int
    metadata_bytes: int


class Walk(NamedTuple):
    """All KV nodes but the roots, as arrays of equal length."""

    node: Int32
    depth: Int32
    state: Int32
    stamp: Int64
    scope: Int32


class Picker(Protocol):
    """Who chooses victims in Python. Told of what happens to checkpoints; what goes it notices when it picks."""

    def used(self, node: NodeId) -> None:
        """A checkpoint was attached or used."""
        ...

    def changed(self, node: NodeId) -> None:
        """What is known of its next use changed."""
        ...

    def pick(self, protect: NodeId) -> Evicted | None:
        """Remove one from the tree (`Tree.remove`); None if none may go."""
        ...
