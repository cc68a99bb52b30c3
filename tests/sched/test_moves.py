"""Moves of a plan: what is carried is what somebody still needs, whatever was evicted after it was planned."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from k3mem.plan import PAGE, STATE
from k3mem.pool import Arena, Fit
from k3mem.sched import moves
from k3mem.sched.builder import Builder
from k3mem.sched.flags import Flags

PAGE_BYTES, STATE_BYTES = 10, 70
Place = tuple[int, int]
"""(kind, place)."""


class Scene:
    """An arena whose entries come, are written, go and move, as far as one plan sees it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.arena = Arena(capacity_bytes=rng.randint(600, 1500), page_bytes=PAGE_BYTES, state_bytes=STATE_BYTES,
                           align=1)
        shape = SimpleNamespace(page_bytes=PAGE_BYTES, state_bytes=STATE_BYTES)
        self.core: Any = SimpleNamespace(cache=SimpleNamespace(arena=self.arena), reserved=Flags.of_both(),
                                         shape=shape, move_left=1 << 30)
        self.live: list[Place] = []
        """(kind, id)."""
        self.written: set[Place] = set()
        while self.take(rng.randint(1, 9), rng.randrange(2)):
            pass
        self.write(0.9)
        self.memory = {self.place_of(entry): entry for entry in self.written}
        self.builder = Builder(1)

    def take(self, pages: int, states: int) -> bool:
        got = self.arena.alloc(pages, states)
        if got is None:
            return False
        for kind, ids in enumerate(got):
            self.core.reserved[kind].set(ids, True)
            self.live += [(kind, int(i)) for i in ids]
        return True

    def write(self, share: float) -> None:
        for kind, id in self.live:
            if self.rng.random() < share:
                self.core.reserved[kind].set(np.array([id], np.int32), False)
                self.written.add((kind, id))

    def free(self, share: float) -> None:
        for entry in [e for e in self.live if self.rng.random() < share]:
            kind, id = entry
            (self.arena.free_pages if kind == PAGE else self.arena.free_states)([id])
            self.live.remove(entry)
            self.written.discard(entry)

    def move(self) -> None:
        arena, rng = self.arena, self.rng
        if rng.random() < 0.5:
            pages, states = rng.randint(1, max(1, arena.room_pages(moves=True))), 0
        else:
            pages, states = 0, rng.randint(1, max(1, arena.room_states(moves=True)))
        if arena.fits(pages, states) == Fit.MOVES:
            moves.add(self.core, self.builder, arena.make_room(pages, states, rng.randint(1, 200)))

    def place_of(self, entry: Place) -> Place:
        kind, id = entry
        places = self.arena.page_places if kind == PAGE else self.arena.state_places
        return kind, int(places([id])[0])


def played(seed: int) -> Scene:
    """A scene up to the end of its plan."""
    rng = random.Random(seed)
    scene = Scene(rng)
    scene.free(rng.choice((0.2, 0.5)))
    for _ in range(rng.randint(1, 9)):
        scene.move()
        if rng.random() < 0.5:
            scene.free(rng.choice((0.05, 0.3)))
        if rng.random() < 0.5:
            scene.take(rng.randint(0, 4), rng.randrange(2))
    return scene


def needed(scene: Scene) -> list[list[int]]:
    """What `drop_dead` leaves, with sets: batches from the last to the first, a place's content before each."""
    dead: set[Place] = set()
    known: set[Place] = set()
    kept: list[list[list[int]]] = []
    here = {scene.place_of(entry): entry for entry in scene.live}
    for batch in reversed(scene.builder.moves):
        kept.insert(0, [])
        for move in batch.tolist():
            source, destination = (move[1], move[2]), (move[1], move[3])
            gone = destination in dead if destination in known else here.get(destination) not in scene.written
            known |= {source, destination}
            dead.add(destination)
            (dead.add if gone else dead.discard)(source)
            if not gone:
                kept[0].append(move)
    return [move for batch in kept for move in batch]


@pytest.mark.parametrize("seed", range(150))
def test_what_is_carried_is_what_somebody_needs(seed: int) -> None:
    scene = played(seed)
    if not scene.builder.moves:
        return
    batches = np.concatenate(scene.builder.moves)[:, 0]
    assert (np.diff(batches) >= 0).all()
    want = needed(scene)
    moves.drop_dead(scene.core, scene.builder)
    carried = scene.builder.moves[0]
    assert carried.tolist() == want
    for batch in dict.fromkeys(carried[:, 0].tolist()):
        part = carried[carried[:, 0] == batch]
        read = [(kind, to, scene.memory.get((kind, source))) for _, kind, source, to in part.tolist()]
        for kind, to, entry in read:
            scene.memory[kind, to] = entry  # type: ignore[assignment]
    for entry in scene.written:
        assert scene.memory[scene.place_of(entry)] == entry
    pages = int((carried[:, 1] == PAGE).sum())
    assert moves.bytes_of(scene.core, carried) == pages * PAGE_BYTES + (len(carried) - pages) * STATE_BYTES


def test_the_moves_of_many_seeds_are_of_every_sort() -> None:
    """Otherwise the test above would hold for nothing."""
    several = dropped = states = 0
    for seed in range(150):
        scene = played(seed)
        planned = sum(map(len, scene.builder.moves))
        several += len(scene.builder.moves) > 1
        dropped += planned > len(needed(scene))
        states += any((batch[:, 1] == STATE).any() for batch in scene.builder.moves)
    assert several > 20 and dropped > 20 and states > 20


def test_a_flag_of_an_id_beyond_the_table_makes_it_grow() -> None:
    pages, states = Flags.of_both()
    pages.set(np.array([3, 70_000], np.int32), True)
    table = np.array([[9, 3], [9, 200_000]], np.int32)
    pages.set_column(table, 1, True)
    states.set_one(5_000, True)
    assert pages.get(np.array([3, 4, 70_000, 200_000, 1 << 30], np.int32)).tolist() == [True, False, True, True, False]
    assert states.get(np.array([3, 5_000], np.int32)).tolist() == [False, True]
    pages.set_column(table[:, ::-1], 0, False)
    assert pages.get(np.array([3, 70_000, 200_000], np.int32)).tolist() == [False, True, False]
