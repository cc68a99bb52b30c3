"""One state at a time is what an array of one state is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from k3mem.errors import Corrupted
from k3mem.pool import Arena


def arena() -> Arena:
    return Arena(capacity_bytes=1000, page_bytes=7, state_bytes=31, align=1)


@pytest.mark.parametrize("seed", range(10))
def test_states_one_by_one_and_in_arrays_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    one, many = arena(), arena()
    live: list[int] = []
    for _ in range(200):
        if rng.random() < 0.6 or not live:
            state, got = one.alloc_state(), many.alloc(0, 1)
            assert state == (None if got is None else int(got[1][0]))
            live += [] if state is None else [int(state)]
        else:
            state = live.pop(rng.randrange(len(live)))
            one.free_state(state)
            many.free_states(np.array([state], np.int32))
        assert one.usage() == many.usage()
        assert [table.tolist() for table in one.drain()] == [table.tolist() for table in many.drain()]
    one.check()
    assert live


def test_a_state_that_is_not_live_cannot_be_freed() -> None:
    one = arena()
    state = one.alloc_state()
    assert state is not None
    one.free_state(state)
    before = one.usage()
    for wrong in (state, 0, 99):
        with pytest.raises(Corrupted):
            one.free_state(wrong)
    assert one.usage() == before


def test_without_room_there_is_no_state() -> None:
    one = arena()
    while one.alloc_state() is not None:
        pass
    assert one.alloc(0, 1) is None and one.room_states() == 0
