"""The explorer visits every order of a small scope, the same ones each time, and finds planted bugs in it."""

from __future__ import annotations

import msgspec
import pytest

from k3mem.fuzz.explorer import Explorer, explore, fingerprint, scopes
from k3mem.fuzz.mutants import BY_NAME
from k3mem.fuzz.runner import replay
from k3mem.fuzz.world import World

SMALL = ("donated_and_freed", "states_are_not_zeroed", "freed_before_the_last_reader")


def test_a_scope_is_visited_whole_and_alike_each_time() -> None:
    config = msgspec.structs.replace(scopes()[0], in_flight=0)
    out = explore(60.0, [config])
    assert out.complete and out.found is None
    assert out.states > 1000 and out.orders > 100 and out.pruned > 100


@pytest.mark.parametrize("name", SMALL)
def test_a_planted_bug_is_found_with_the_order_that_shows_it(name: str) -> None:
    with BY_NAME[name].plant():
        out = explore(30.0)
        assert out.found is not None and out.script is not None
        assert replay(out.script).found is not None


def test_worlds_in_different_states_have_different_fingerprints() -> None:
    config = scopes()[0]
    seen = set()
    world = World(config)
    explorer = Explorer(config, explore(0.0, []), 0.0)
    for _ in range(5):
        seen.add(fingerprint(world))
        explorer._do(world, explorer._choices(world)[0])
    assert len(seen) == 5
