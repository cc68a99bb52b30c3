"""Comparison of what the tree believes with what the shadow memory holds, hit or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from k3mem.executors.mock.compiled import CompiledDevice
from k3mem.executors.mock.device import Device
from k3mem.executors.mock.fresh import Walk
from k3mem.executors.mock.tables import KIND, NOWHERE
from k3mem.plan import PAGE, STATE
from k3mem.types import Int32


class Entry(NamedTuple):
    """One prefix that the tree holds."""

    scope: bytes
    tokens: Int32 | Sequence[int]
    """At least `depth` tokens from the sequence's begin."""
    depth: int
    state: int
    """Id of the checkpoint at `depth`, or -1."""
    pages: Sequence[int] | Int32
    """Page ids of tokens [0, depth). Rows of the last one beyond `depth` are not looked at: they are the writer's, and
    may be damaged while the prefix is not."""


class Auditor:
    """Recomputes prefixes, one walk a scope, so that neighbours in the tree share their common prefix."""

    def __init__(self, device: Device | CompiledDevice) -> None:
        self.device = device
        self.walks: dict[bytes, Walk] = {}
        self.compiled_walks: dict[bytes, Any] = {}

    def _is_right(self, entry: Entry) -> bool:
        """Whether the compiled device finds nothing wrong with a prefix; False says nothing."""
        device, scope, tokens = self.device, entry.scope, np.asarray(entry.tokens, np.int32)[: entry.depth]
        if not isinstance(device, CompiledDevice) or len(tokens) != entry.depth:
            return False
        walk = self.compiled_walks.get(scope)
        if walk is None:
            walk = self.compiled_walks[scope] = device.walk(scope)
        return device.holds(walk, tokens, int(entry.state), np.asarray(entry.pages, np.int32))

    def differences(self, entry: Entry) -> Iterator[str]:
        """What of one prefix is not as a fresh computation has it. O(depth)."""
        if self._is_right(entry):
            return
        scope, tokens, depth, state, pages = entry
        walk = self.walks.setdefault(scope, Walk(scope, self.device.groups, self.device.kv_groups))
        walk.become([int(token) for token in tokens[:depth]])
        name = f"prefix of {depth} tokens"
        if len(walk.tokens) < depth:
            yield f"{name}: only {len(walk.tokens)} tokens given"
            return
        if state >= 0:
            yield from self._state(walk, int(state), name)
        span = self.device.span
        if len(pages) * span < depth:
            yield f"{name}: {len(pages)} pages of {span} do not hold it"
        for index in range(min(len(pages), -(-depth // span))):
            yield from self._page(walk, int(pages[index]), index, min(span, depth - index * span), name)

    def _place(self, kind: int, entry: int) -> tuple[int, str]:
        """Place of an id, and what is wrong with it, if anything."""
        tables = self.device.tables
        places = tables.places[kind]
        if not 0 < entry < len(places) or places[entry] == NOWHERE:
            return NOWHERE, f"{KIND[kind]} id {entry} has no place"
        place = places[entry]
        if tables.owners[kind][place] != entry:
            return NOWHERE, f"{KIND[kind]} id {entry} maps to place {place}, owned by {tables.owners[kind][place]}"
        return place, ""

    def _state(self, walk: Walk, state: int, name: str) -> Iterator[str]:
        place, wrong = self._place(STATE, state)
        if wrong:
            yield f"{name}: {wrong}"
            return
        matrix, window, _ = walk.states[-1]
        memory = self.device.memory
        if memory.matrix[place] != matrix:
            yield f"{name}: matrix of state id {state} at place {place} differs"
        if memory.window[place] != window:
            yield f"{name}: window of state id {state} at place {place} differs"

    def _page(self, walk: Walk, page_id: int, index: int, rows: int, name: str) -> Iterator[str]:
        place, wrong = self._place(PAGE, page_id)
        page = self.device.memory.pages[place] if place != NOWHERE else None
        if wrong or page is None:
            yield f"{name}: entry {index}: {wrong or f'page id {page_id} at place {place} is poison'}"
            return
        span = self.device.span
        expected = walk.rows[index * span : index * span + rows]
        for k, values in enumerate(page.rows):
            if list(values)[:rows] != [row[k] for row in expected]:
                bad = [r for r in range(rows) if values[r] != expected[r][k]]
                yield f"{name}: entry {index}, group {k}: rows {bad} of page id {page_id} at place {place} differ"

    def table_differences(self, kind: int, expected: Iterable[tuple[int, int]]) -> Iterator[str]:
        """Ids whose place is not the one that the host believes in."""
        for entry, place in expected:
            found = self.device.tables.places[kind][entry]
            if found != place:
                yield f"{KIND[kind]} id {entry}: the host has place {place}, the device {found}"
