"""Happens-before: phases, streams and events, against a search over the same commands."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest

from k3mem.fuzz.race import order
from k3mem.fuzz.race.order import Command, Order
from k3mem.fuzz.race.space import ranges

Log = order._Log


def found(commands: list[Command]) -> set[frozenset[str]]:
    """Pairs of names that `Order` finds."""
    out: set[frozenset[str]] = set()
    judge = Order(lambda pair: out.add(frozenset((
        pair.first if isinstance(pair.first, str) else pair.first.name, pair.second.name))))
    for command in commands:
        judge.put(command)
    assert not judge.finish()
    return out


def one(stream: str, name: str, *, reads: tuple[int, int] | None = None, writes: tuple[int, int] | None = None,
        waits: tuple[int, ...] = (), signals: tuple[int, ...] = (), phase: object = None) -> Command:
    return Command(stream, name, ranges([reads] if reads else []), ranges([writes] if writes else []), waits, signals,
                   phase)  # type: ignore[arg-type]


def pairs(*names: str) -> set[frozenset[str]]:
    return {frozenset(name) for name in names}


def test_a_stream_orders_its_commands() -> None:
    assert not found([one("f", "a", writes=(0, 8)), one("f", "b", reads=(4, 6)), one("f", "c", writes=(0, 8))])


def test_a_phase_does_not() -> None:
    commands = [one("f", "a", writes=(0, 8), phase=1), one("f", "b", reads=(4, 6), phase=1),
                one("f", "c", reads=(8, 9), phase=1), one("f", "d", writes=(7, 9), phase=2)]
    assert found(commands) == pairs("ab")


def test_two_reads_are_no_race() -> None:
    assert not found([one("f", "a", reads=(0, 8), phase=1), one("f", "b", reads=(0, 8), phase=1),
                      one("g", "c", reads=(0, 8))])


def test_streams_are_ordered_by_events_only() -> None:
    write, read = one("f", "a", writes=(0, 8), signals=(1,)), one("g", "b", reads=(7, 9))
    assert found([write, read]) == pairs("ab")
    assert not found([write, read._replace(waits=(1,))])


def test_an_event_covers_all_before_it_on_its_stream_and_nothing_after() -> None:
    commands = [one("f", "a", writes=(0, 8)), one("f", "b", signals=(1,)), one("f", "c", writes=(0, 8)),
                one("g", "d", waits=(1,)), one("g", "e", reads=(0, 8))]
    assert found(commands) == pairs("ce")


def test_events_chain_over_streams() -> None:
    commands = [one("f", "a", writes=(0, 8), signals=(1,)), one("g", "b", waits=(1,), signals=(2,)),
                one("h", "c", reads=(0, 8), waits=(2,), signals=(3,)), one("f", "d", writes=(0, 8), waits=(3,))]
    assert not found(commands)
    assert found([*commands[:3], commands[3]._replace(waits=())]) == pairs("cd")


def test_a_command_may_be_put_before_the_event_it_waits_for_is_signalled() -> None:
    assert not found([one("g", "b", reads=(0, 8), waits=(1,)), one("f", "a", writes=(0, 8), signals=(1,))])


def test_a_command_that_waits_for_ever_is_named() -> None:
    judge = Order(lambda pair: None)
    judge.put(one("g", "b", waits=(1,)))
    judge.put(one("g", "c"))
    assert [command.name for command in judge.finish()] == ["b"]


def test_a_phase_may_be_larger_than_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "NAMES", 2)
    wide = [one("f", str(n), writes=(n, n + 1 + (n == 3)), phase=1) for n in range(9)]
    assert found(wide) == pairs("34")
    late = [*wide, one("g", "x", reads=(0, 1))]
    assert found(late) == {frozenset("34"), frozenset(("an earlier command (0)", "x"))}


def world(rng: Random, count: int) -> list[Command]:
    """Random commands on three streams; events only from earlier commands, so that nothing is stuck."""
    out: list[Command] = []
    phase = 0
    for n in range(count):
        phase += rng.random() < 0.5
        spots = [(low, low + rng.randint(1, 3)) for low in rng.sample(range(0, 40, 2), rng.randint(1, 3))]
        events = [e for c in out for e in c.signals]
        out.append(Command(
            rng.choice("fgh"), str(n), ranges(spots[1:]), ranges(spots[:1] if rng.random() < 0.6 else []),
            tuple(rng.sample(events, min(len(events), rng.choice([0, 0, 1, 2])))),  # type: ignore[arg-type]
            (n,) if rng.random() < 0.5 else (), phase if rng.random() < 0.7 else None))
    return out


def before(commands: list[Command]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[i, j] whether i comes before j, by closure over stream order and event edges."""
    n = len(commands)
    edge = np.zeros((n, n), np.bool_)
    for name in "fgh":
        chain = [i for i, c in enumerate(commands) if c.stream == name]
        group: list[int] = []
        earlier: list[int] = []
        for at, i in enumerate(chain):
            c, last = commands[i], commands[chain[at - 1]] if at else None
            if last and (c.phase is None or c.phase != last.phase or c.waits or last.signals):
                earlier, group = earlier + group, []
            edge[earlier, i] = True
            group.append(i)
    for j, c in enumerate(commands):
        for event in c.waits:
            source = commands[event]  # type: ignore[call-overload]
            for i, other in enumerate(commands[: event + 1]):  # type: ignore[operator]
                edge[i, j] |= other.stream == source.stream
            for k in range(j, n):
                edge[:, k] |= edge[:, j] & (commands[k].stream == c.stream)
    for k in range(n):
        edge |= edge[:, k : k + 1] & edge[k : k + 1]
    return edge


def truth(commands: list[Command]) -> dict[frozenset[str], set[int]]:
    """The addresses at which each pair races."""
    ordered, out = before(commands), {}
    for (i, a), (j, b) in combinations(enumerate(commands), 2):
        shared = {at for x, y in ((a.writes, b.writes), (a.writes, b.reads), (a.reads, b.writes))
                  for p in x for q in y for at in range(max(p[0], q[0]), min(p[1], q[1]))}
        if shared and not ordered[i, j]:
            out[frozenset((a.name, b.name))] = shared
    return out


@pytest.mark.parametrize("seed", range(60))
def test_every_pair_without_an_order_is_found_and_no_other(seed: int) -> None:
    commands = world(Random(seed), 30)
    assert found(commands) == set(truth(commands))


@pytest.mark.parametrize("seed", range(40))
def test_a_log_that_forgets_still_shows_every_place_that_is_raced_for(seed: int,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "LOG_SLACK", 4)
    monkeypatch.setattr(order, "_Log", lambda blocks: Log(blocks, 0, 4))
    commands = world(Random(seed), 40)
    real, seen = truth(commands), found(commands)
    assert seen <= set(real)
    assert set().union(*(real[pair] for pair in seen)) == set().union(*real.values())
