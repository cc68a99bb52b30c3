from __future__ import annotations

import pytest

from k3mem.errors import Corrupted
from k3mem.pool import ExtraBuffer
from k3mem.types import StateId


def started(*landed: int) -> ExtraBuffer:
    """A buffer in which states 1, 2, .. have landed at these depths."""
    buffer = ExtraBuffer()
    for state, depth in enumerate(landed, 1):
        buffer.begin(StateId(state), depth)
        buffer.landed()
    return buffer


def test_landing_hands_back_the_latest_before() -> None:
    buffer = started(64)
    buffer.begin(StateId(5), 128)
    buffer.check()
    assert buffer.landed() == 1
    assert (buffer.latest, buffer.depth, buffer.pending, buffer.pending_depth) == (5, 128, None, -1)


def test_a_miss_hands_back_the_target_and_keeps_the_latest() -> None:
    buffer = started(64)
    buffer.begin(StateId(5), 128)
    assert buffer.missed() == 5
    assert (buffer.latest, buffer.depth, buffer.pending) == (1, 64, None)
    buffer.begin(StateId(5), 128)


def test_the_latest_is_donated_while_the_next_one_is_in_flight() -> None:
    buffer = started(64)
    buffer.begin(StateId(5), 128)
    assert buffer.donate() == (1, 64)
    buffer.check()
    assert buffer.landed() is None
    assert buffer.donate() == (5, 128)


def test_depths_only_grow_even_after_a_donation() -> None:
    buffer = started(64)
    buffer.donate()
    for depth in (0, 64):
        with pytest.raises(Corrupted, match="deeper"):
            buffer.begin(StateId(5), depth)


def test_release_empties_the_pair_for_another_tenant() -> None:
    buffer = started(64)
    buffer.begin(StateId(5), 128)
    assert buffer.release() == [1, 5]
    assert buffer.release() == []
    buffer.begin(StateId(5), 0)


@pytest.mark.parametrize("state", [0, -1, 1])
def test_a_sink_no_state_or_the_latest_is_no_target(state: int) -> None:
    buffer = started(64)
    with pytest.raises(Corrupted, match="cannot be a target"):
        buffer.begin(StateId(state), 128)
    buffer.check()


def test_calls_out_of_turn_are_refused_and_change_nothing() -> None:
    buffer = ExtraBuffer()
    for call in (buffer.landed, buffer.missed, buffer.donate):
        with pytest.raises(Corrupted):
            call()
    buffer.begin(StateId(5), 64)
    with pytest.raises(Corrupted):
        buffer.begin(StateId(6), 128)
    assert (buffer.latest, buffer.pending, buffer.pending_depth) == (None, 5, 64)


@pytest.mark.parametrize(
    ("field", "value"), [("latest", 5), ("latest", 0), ("pending", None), ("pending_depth", 64), ("depth", 128)]
)
def test_check_sees_a_broken_pair(field: str, value: int | None) -> None:
    buffer = started(64)
    buffer.begin(StateId(5), 128)
    buffer.check()
    setattr(buffer, field, value)
    with pytest.raises(Corrupted):
        buffer.check()
