from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest

from k3mem import plan
from k3mem.errors import Corrupted, InvalidShape
from k3mem.fuzz.alone.arena_model import Model
from k3mem.pool import PAGE, STATE, Arena, Fit

ALL = 2**60


def units(capacity: int = 100, page: int = 1, state: int = 20, **kw: float) -> Arena:
    """An arena whose bytes are units, with `capacity` of them beside the sinks."""
    return Arena(capacity_bytes=capacity + page + state, page_bytes=page, state_bytes=state, align=1, **kw)


def full_of_pages(n: int = 90) -> tuple[Arena, list[int]]:
    arena = units()
    got = arena.alloc(n, 0)
    assert got is not None
    return arena, got[0].tolist()


# -- geometry


def test_kinds_are_those_of_plans() -> None:
    assert (PAGE, STATE) == (plan.PAGE, plan.STATE)


def test_the_region_is_cut_to_the_byte() -> None:
    arena = Arena(capacity_bytes=1000, page_bytes=7, state_bytes=31, scratch_bytes=90, align=128)
    assert arena.state_top == 896
    assert (arena.page_ids, arena.state_ids) == (128, 28)
    u = arena.usage()
    assert (u.fixed, u.pad, u.gap, u.live) == (7 + 31 + 90, 14, 896 - 38, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity_bytes": 41},
        {"capacity_bytes": 2**61 + 1},
        {"page_bytes": 0},
        {"state_bytes": -1},
        {"align": 0},
        {"scratch_bytes": -1},
        {"scratch_bytes": 59},
        {"split": 0.0},
        {"split": 1.0},
        {"split": 0.39},
        {"split": 0.99},
        {"capacity_bytes": 63, "align": 64},
    ],
)
def test_what_cannot_hold_a_page_and_a_state_is_refused(wrong: dict[str, float]) -> None:
    right = {"capacity_bytes": 100, "page_bytes": 1, "state_bytes": 20, "align": 1}
    Arena(**right)
    with pytest.raises(InvalidShape):
        Arena(**(right | wrong))


@pytest.mark.parametrize("split", [None, 0.25, 0.9, 0.999])
@pytest.mark.parametrize(("align", "scratch"), [(1, 0), (128, 0), (128, 100)])
def test_what_is_too_small_is_told_the_least_size(split: float | None, align: int, scratch: int) -> None:
    sizes: dict[str, Any] = {"page_bytes": 10, "state_bytes": 101, "align": align, "scratch_bytes": scratch,
                             "split": split}
    with pytest.raises(InvalidShape, match="capacity_bytes 1 is too small: give at least") as error:
        Arena(capacity_bytes=1, **sizes)
    least = int(str(error.value).split("at least ")[1].split()[0])
    pages, states = Arena(capacity_bytes=least, **sizes).alloc(1, 1) or ([], [])
    assert (len(pages), len(states)) == (1, 1)
    with pytest.raises(InvalidShape, match=f"capacity_bytes {least - 1} is too small"):
        Arena(capacity_bytes=least - 1, **sizes)


def test_the_smallest_arena_holds_one_page_and_one_state() -> None:
    arena = units(21)
    assert arena.alloc(1, 1) is not None
    assert arena.fits(1, 0) == arena.fits(0, 1) == Fit.NO
    assert arena.usage().gap == 0


def test_unlimited_capacity_costs_nothing() -> None:
    tracemalloc.start()
    arena = Arena(capacity_bytes=2**60, page_bytes=1, state_bytes=3)
    assert arena.alloc(1000, 1000) is not None
    arena.check()
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert (arena.page_ids, arena.state_ids) == (2**31 - 1, 2**31 - 1)
    assert sum(len(arena._table(name)) for name in arena._table_names()) < 20_000


def test_places_never_outgrow_int32() -> None:
    arena = Arena(capacity_bytes=2**60, page_bytes=1, state_bytes=3)
    assert arena.room_pages() == 2**31 - 2
    assert arena.fits(2**31 - 2, 5) == Fit.NOW
    assert arena.fits(2**31 - 1, 0) == arena.fits(2**70, 2**70) == Fit.NO
    assert not arena.capacity_for(2**31 - 1, 0)
    assert arena.alloc(2**31 - 1, 0) is None


def test_a_negative_demand_is_an_error() -> None:
    for call in (units().fits, units().alloc, units().capacity_for):
        with pytest.raises(ValueError, match="negative"):
            call(-1, 0)


# -- cases of the field


def test_pool_1_free_ids_are_not_capacity() -> None:
    """POOL-1: 90 cached pages under a gap of 10 units, a state of 20: bytes are short though ids are not."""
    arena, pages = full_of_pages()
    assert arena.usage().gap == 10
    assert arena.room_states() == arena.room_states(moves=True) == 0
    assert arena.fits(2, 1) == Fit.NO
    assert arena.alloc(2, 1) is None
    evicted = 0
    while arena.fits(2, 1) == Fit.NO:  # leaves of one page, from the middle
        arena.free_pages([pages[30 + evicted]])
        evicted += 1
    assert evicted == 12, "no more than the need"
    assert arena.fits(2, 1) == Fit.MOVES
    moves = arena.make_room(2, 1, ALL)
    assert moves.tolist() == [[0, PAGE, 90 - i, 31 + i] for i in range(10)]
    assert arena.fits(2, 1) == Fit.NOW
    got = arena.alloc(2, 1)
    assert got is not None
    assert arena.usage().gap == 0
    arena.check()


def test_pool_4_bytes_change_roles_without_overlap() -> None:
    """POOL-4: freed state bytes become pages and pages a state; every hand-out is a fresh, unshared range."""
    arena = units(40)
    model = Model(arena)
    for n in ((0, 2), (40, 0), (0, 2), (20, 1)):
        got = arena.alloc(*n)
        assert got is not None
        for kind, ids in enumerate(got):
            model.allocated(kind, ids.tolist())
        model.compare()
        for kind, free in enumerate((arena.free_pages, arena.free_states)):
            free(got[kind])
            model.freed(kind, got[kind].tolist(), 0)
        model.compare()


@pytest.mark.parametrize("kind", [PAGE, STATE])
@pytest.mark.parametrize("route", ["make_room", "compact", "undo"])
def test_pool_5_nothing_leased_moves_by_any_route(kind: int, route: str) -> None:
    """POOL-5: capacity is without the holes behind a lease, and with them the moment it ends."""
    arena = units(100, 10, 10)
    fill, other = ((10, 0), (0, 1)) if kind == PAGE else ((0, 10), (1, 0))
    got = arena.alloc(*fill)
    assert got is not None
    ids = got[kind].tolist()
    (arena.free_pages, arena.free_states)[kind](ids[2:5])
    room = (arena.room_states, arena.room_pages)[kind]
    places = (arena.page_places, arena.state_places)[kind]
    assert (room(), room(moves=True), arena.fits(*other)) == (0, 3, Fit.MOVES)
    if route == "undo":
        moves = arena.make_room(*other, ALL)
        moved = int(moves[0, 3])
        (at,) = [i for i in ids[:2] + ids[5:] if places([i])[0] == moved]
        arena.lease(kind, at)
        with pytest.raises(Corrupted, match="leases"):
            arena.undo(moves)
        assert places([at])[0] == moved
        arena.unlease(kind, at)
        arena.undo(moves)
        return
    for _ in range(2):
        arena.lease(kind, ids[-1])
    before = places(ids[5:]).tolist()
    assert (room(), room(moves=True), arena.fits(*other)) == (0, 0, Fit.NO)
    compaction = (lambda: arena.make_room(*other, ALL)) if route == "make_room" else (lambda: arena.compact(ALL))
    assert len(compaction()) == 0
    arena.unlease(kind, ids[-1])
    assert len(compaction()) == 0, "one of two leases is left"
    assert places(ids[5:]).tolist() == before
    arena.check()
    arena.unlease(kind, ids[-1])
    assert (room(), room(moves=True), arena.fits(*other)) == (0, 3, Fit.MOVES)
    assert len(compaction()) == (1 if route == "make_room" else 3)
    arena.check()


def test_pool_6_handles_are_the_callers_own() -> None:
    """POOL-6: ids kept by a caller do not change when later calls rewrite the free stack."""
    arena, rng = units(300), random.Random(3)
    kept: list[tuple[np.ndarray, list[int]]] = []
    for _ in range(200):
        got = arena.alloc(rng.randint(0, 5), rng.randint(0, 1))
        for ids in got or ():
            assert ids.flags.owndata
            kept.append((ids, ids.tolist()))
        if got is None or rng.random() < 0.5:
            ids = kept.pop(rng.randrange(len(kept)))[0]
            live = [i for i in ids.tolist() if arena.refs(i)]
            assert arena.free_pages(live).tolist() == live
    assert all(ids.tolist() == then for ids, then in kept)


@pytest.mark.parametrize("split", [None, 0.6])
def test_acc_2_what_is_advertised_can_be_had(split: float | None) -> None:
    """ACC-2: room, fits and alloc are one function; at the maximum all succeed, and one more waits."""
    for kind in (PAGE, STATE):
        arena = units(300, 7, 31, **({} if split is None else {"split": split}))
        n = (arena.room_pages, arena.room_states)[kind]()
        demand = (n, 0) if kind == PAGE else (0, n)
        more = (n + 1, 0) if kind == PAGE else (0, n + 1)
        assert arena.capacity_for(*demand)
        assert not arena.capacity_for(*more)
        assert arena.alloc(*more) is None
        assert arena.alloc(*demand) is not None
        assert (arena.room_pages, arena.room_states)[kind]() == 0


# -- ids and references


def test_a_shared_page_is_freed_by_its_last_owner() -> None:
    arena, pages = full_of_pages(3)
    arena.ref(pages[0])
    assert arena.refs(pages[0]) == 2
    assert arena.free_pages(pages).tolist() == pages[1:]
    assert arena.free_pages(np.array(pages[:1], np.int32)).tolist() == pages[:1]
    assert arena.refs(pages[0]) == 0


@pytest.mark.parametrize("bad", [[0], [-1], [91], [4, 4], [7, 8, 8], [2**31 - 1], [2**32 + 5], [3]])
def test_a_wrong_free_changes_nothing(bad: list[int]) -> None:
    arena, pages = full_of_pages(20)
    arena.free_pages([3])
    arena.ref(5)
    before = arena.usage()
    with pytest.raises(Corrupted, match="ids"):
        arena.free_pages([5, *bad, 6])
    assert arena.usage() == before
    assert arena.refs(5) == 2
    arena.check()


def test_a_leased_entry_is_not_freed_but_loses_other_owners() -> None:
    arena, pages = full_of_pages(3)
    arena.ref(pages[1])
    arena.lease(PAGE, pages[1])
    assert arena.free_pages([pages[1]]).tolist() == []
    with pytest.raises(Corrupted, match="leases"):
        arena.free_pages([pages[0], pages[1]])
    assert arena.refs(pages[0]) == 1
    with pytest.raises(Corrupted):
        arena.ref(0)
    with pytest.raises(ValueError, match="kind"):
        arena.lease(2, pages[0])


def test_pending_places_are_neither_reused_nor_moved_until_settled() -> None:
    arena, pages = full_of_pages(100)
    arena.settle(4)
    arena.free_pages(pages[:20], after=4)
    arena.free_pages(pages[60:80], after=6)
    u = arena.usage()
    assert (u.holes, u.pending, u.gap) == (20, 20, 0)
    assert arena.room_pages() == 20
    assert arena.fits(0, 1) == Fit.MOVES
    assert arena.fits(0, 2) == arena.fits(1, 1) == Fit.NO
    assert not np.isin(arena.make_room(0, 1, ALL)[:, 2:], range(61, 81)).any()
    arena.settle(5)
    assert arena.usage().pending == 20
    arena.settle(3)
    arena.settle(6)
    u = arena.usage()
    assert (u.pending, u.holes, u.gap) == (0, 0, 40), "the frontier falls over what was pending"
    arena.check()


def test_freeing_the_frontier_shrinks_it_over_trailing_holes() -> None:
    arena, pages = full_of_pages(10)
    arena.free_pages(pages[5:9])
    assert arena.usage().frontier_pages == 11
    arena.free_pages(pages[9:])
    assert (arena.usage().frontier_pages, arena.usage().holes) == (6, 0)


# -- moves


@pytest.mark.parametrize(("budget", "sizes"), [(0, [1] * 10), (1, [1] * 10), (4, [4, 4, 2]), (ALL, [10])])
def test_room_is_made_within_the_budget_of_each_step(budget: int, sizes: list[int]) -> None:
    arena, pages = full_of_pages()
    arena.free_pages(pages[10:25])
    seen = []
    while arena.fits(0, 1) == Fit.MOVES:
        seen.append(len(arena.make_room(0, 1, budget)))
        arena.check()
    assert seen == sizes
    assert (arena.moves_count, arena.moved_bytes) == (10, 10)
    assert arena.usage().hole_pages == 5
    assert len(arena.make_room(0, 1, ALL)) == 0


def test_no_moves_for_what_moves_cannot_give() -> None:
    arena, pages = full_of_pages()
    arena.free_pages(pages[10:15])
    assert arena.fits(0, 1) == Fit.NO
    assert len(arena.make_room(0, 1, ALL)) == 0
    assert len(arena.compact(ALL)) == 5


def test_a_fixed_split_keeps_each_kind_on_its_side() -> None:
    arena = units(100, split=0.5)  # states may use 60 of 121 bytes: 3 places
    assert (arena.room_states(), arena.room_pages()) == (2, 60)
    got = arena.alloc(60, 1)
    assert got is not None
    arena.free_pages(got[0][::2])
    assert arena.fits(0, 1) == Fit.NOW
    assert arena.fits(0, 2) == arena.fits(31, 0) == Fit.NO
    assert arena.fits(30, 1) == Fit.NOW
    assert arena.room_states(moves=True) == 1
    u = arena.usage()
    assert u.fixed + u.live + u.holes + u.pending + u.gap + u.pad == 121
    assert arena.alloc(30, 1) is not None
    arena.check()


def test_undo_refuses_what_is_not_as_the_moves_left_it_and_changes_nothing() -> None:
    arena, pages = full_of_pages()
    arena.free_pages(pages[10:25])
    moves = arena.make_room(0, 1, ALL)
    after = arena.tables()[0].tolist()
    wrong = {
        "no entry there": np.array([[0, PAGE, 95, 24]], np.int32),
        "source beyond everything": np.array([[0, PAGE, 2**31 - 1, 11]], np.int32),
        "source in use": np.array([[0, PAGE, 30, 11]], np.int32),
        "a sink": np.array([[0, PAGE, 95, 0]], np.int32),
        "onto a sink": np.array([[0, PAGE, 0, 11]], np.int32),
        "twice": np.concatenate([moves[:1], moves]),
        "no kind": np.array([[0, 2, 95, 11]], np.int32),
    }
    for what, rows in wrong.items():
        with pytest.raises(Corrupted):
            arena.undo(rows)
        assert arena.tables()[0].tolist() == after, what
        arena.check()
    assert arena.alloc(0, 1) is not None
    with pytest.raises(Corrupted):
        arena.undo(moves)
    assert arena.tables()[0].tolist() == after
    assert arena.moves_count == 10


# -- tables


def test_drain_names_each_changed_mapping_once() -> None:
    arena, pages = full_of_pages(5)
    arena.alloc(0, 1)
    arena.free_pages(pages[1:2])
    table, states = arena.drain()
    assert sorted(table.tolist()) == [[1, 1], [3, 3], [4, 4], [5, 5]]
    assert states.tolist() == [[1, 1]]
    arena.compact(ALL)
    assert [t.tolist() for t in arena.drain()] == [[[5, 2]], []]
    arena.redirty([5, 2, 5], [])
    assert [t.tolist() for t in arena.drain()] == [[[5, 2]], []]
    with pytest.raises(Corrupted):
        arena.redirty([77], [])
    assert [len(t) for t in arena.drain()] == [0, 0]
    assert [t.tolist() for t in arena.tables()] == [[[0, 0], [1, 1], [3, 3], [4, 4], [5, 2]], [[0, 0], [1, 1]]]


def test_places_are_of_live_ids_only() -> None:
    arena, pages = full_of_pages(5)
    assert arena.page_places(pages).dtype == np.int32
    assert arena.page_places([0, 3]).tolist() == [0, 3]
    assert arena.state_places(np.zeros(0, np.int32)).tolist() == []
    arena.free_pages(pages[2:3])
    for bad in (3, 6, -1):
        with pytest.raises(Corrupted):
            arena.page_places([1, bad])


def busy() -> Arena:
    """Every table of both kinds in use."""
    arena = Arena(capacity_bytes=3000, page_bytes=10, state_bytes=15, align=1)
    got = arena.alloc(80, 70)
    assert got is not None
    for kind, free in enumerate((arena.free_pages, arena.free_states)):
        ids = got[kind]
        free(ids[10:14])
        free(ids[20:24], after=3)
        arena.lease(kind, ids[40])
        arena.lease(kind, ids[41])
    arena.ref(got[0][0])
    return arena


@pytest.mark.parametrize("name", busy()._table_names())
def test_check_names_the_table_of_one_wrong_word(name: str) -> None:
    arena = busy()
    words = arena._table(name)
    assert len(words) > 0
    for at in sorted({0, 1, 11, 21, 31, 41, len(words) // 2, len(words) - 1} & set(range(len(words)))):
        right = words[at].item()
        bits = [0, 1, 6, 40] if words.dtype == np.uint64 else [0, 1, 6, 30]
        for wrong in [right ^ 1 << bit for bit in bits] + ([] if words.dtype == np.uint64 else [-7, -2, -1, 0, 1]):
            if wrong == right:
                continue
            words[at] = wrong
            with pytest.raises(Corrupted, match=name):
                arena.check()
            words[at] = right
    arena.check()
