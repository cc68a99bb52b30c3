"""The sim executor: tokens, clock, costs, fast-forward, and the plans it refuses."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from k3mem.executor import Executor, Layout
from k3mem.executors.cost import nominal
from k3mem.executors.sim import SimExecutor
from k3mem.plan import PAGE, STATE, Done, Plan, Result, Row, Sampling, Seat, from_bytes, to_bytes
from k3mem.shape import Shape

SHAPE = Shape.kimi_k3(tp=8)
COST = nominal()


def sim(**options: Any) -> SimExecutor:
    executor = SimExecutor(**options)
    executor.attach(Layout(shape=SHAPE, capacity_bytes=1 << 36, state_top=1 << 36, page_ids=1000, state_ids=100,
                           lanes=8))
    return executor


def seat(lane: int = 0, *, depth: int = 0, prompt: int = 4, limit: int = 100, last: int = -1, generation: int = 1,
         script: list[int] | None = None, scope: bytes = b"s", **sampling: Any) -> Seat:
    data = None if script is None else np.array(script, "<i4").tobytes()
    return Seat(lane=lane, generation=generation, scope=scope, state=lane, depth=depth, prompt=prompt, limit=limit,
                last_token=last, sampling=Sampling(script=data, **sampling))


def prefill(lane: int, start: int, tokens: list[int], sample: bool = True, generation: int = 1) -> tuple[Any, ...]:
    return Row.PREFILL, lane, generation, start, len(tokens), sample, tokens


def decode(lane: int, start: int, generation: int = 1) -> tuple[Any, ...]:
    return Row.DECODE, lane, generation, start, 1, True, []


def verify(lane: int, start: int, drafts: list[int], generation: int = 1) -> tuple[Any, ...]:
    return Row.VERIFY, lane, generation, start, 1 + len(drafts), True, drafts


def plan(*rows: tuple[Any, ...], step: int = 1, snapshots: Any = (), **fields: Any) -> Plan:
    kind, lane, generation, start, length, sample, tokens = zip(*rows, strict=True) if rows else ((),) * 7
    ids = {key: np.array(fields.pop(key), np.int32) for key in ("moves", "restores", "page_copies") if key in fields}
    return Plan(
        step=step, kind=np.array(kind, np.uint8), lane=np.array(lane, np.int32),
        generation=np.array(generation, np.int32), start=np.array(start, np.int32), length=np.array(length, np.int32),
        sample=np.array(sample, np.bool_), token_offset=np.cumsum([0, *map(len, tokens)]).astype(np.int32),
        tokens=np.array([t for row in tokens for t in row], np.int32),
        snapshots=np.array(snapshots, np.int32).reshape(-1, 3), **ids, **fields,
    )


def run(executor: SimExecutor, *rows: tuple[Any, ...], **fields: Any) -> Result:
    return executor.collect(executor.launch(plan(*rows, **fields)))


def rows_of(result: Result) -> list[list[int]]:
    parts = np.split(result.tokens, np.cumsum(result.accepted)[:-1])
    return [part.tolist() for part in parts]


# -- tokens


def test_is_an_executor() -> None:
    assert isinstance(SimExecutor(), Executor)


def test_script_is_returned_token_by_token_until_the_limit() -> None:
    executor = sim()
    got = run(executor, prefill(0, 0, [9, 9], sample=False), seats=(seat(limit=7, script=[50, 51, 52]),))
    assert (got.accepted.tolist(), got.tokens.tolist()) == ([0], [])
    got = run(executor, prefill(0, 2, [9, 9]))
    assert (got.tokens.tolist(), got.done.tolist()) == ([50], [Done.NO])
    got = run(executor, decode(0, 4))
    assert (got.tokens.tolist(), got.done.tolist()) == ([51], [Done.NO])
    got = run(executor, decode(0, 5))
    assert (got.tokens.tolist(), got.done.tolist()) == ([52], [Done.LENGTH])
    got = run(executor, decode(0, 6))
    assert (got.accepted.tolist(), got.tokens.tolist(), got.done.tolist()) == ([0], [], [Done.LENGTH])


def test_script_goes_on_where_a_retracted_lane_resumes() -> None:
    executor = sim()
    resumed = seat(3, depth=4, generation=2, script=[50, 51, 52, 53])
    assert run(executor, prefill(3, 4, [50, 51], generation=2), seats=(resumed,)).tokens.tolist() == [52]
    assert run(executor, decode(3, 6, generation=2)).tokens.tolist() == [53]


@pytest.mark.parametrize("cuts", [[6], [1, 5], [2, 2, 2]])
def test_hashed_output_does_not_depend_on_chunking_batch_or_speculation(cuts: list[int]) -> None:
    prompt = [5, 6, 7, 8, 9, 10]
    alone = sim()
    run(alone, prefill(0, 0, prompt), seats=(seat(prompt=6),))
    want = [run(alone, decode(0, 6 + i), step=2 + i).tokens[0] for i in range(6)]

    executor, depth = sim(), 0
    run(executor, seats=(seat(1, prompt=6), seat(2, prompt=6, scope=b"t")))
    for cut in cuts:
        part = prompt[depth : depth + cut]
        last = depth + cut == 6
        first = run(executor, prefill(2, depth, part, last), prefill(1, depth, part, last))
        depth += cut
    other, mine = rows_of(first)
    drafts = [*want[:3], want[3] ^ 1]
    got = run(executor, verify(1, 6, drafts), decode(2, 6))
    assert got.accepted.tolist() == [4, 1]
    assert rows_of(got)[0] == want[:4]
    assert rows_of(run(executor, decode(1, 10), decode(2, 7)))[0] == want[4:5]
    assert other != mine


def test_hashed_output_depends_on_scope_seed_and_prompt() -> None:
    outputs = set()
    for scope, seed, token in ((b"a", 0, 1), (b"b", 0, 1), (b"a", 1, 1), (b"a", 0, 2)):
        executor = sim()
        run(executor, prefill(0, 0, [7, 7, 7, token]), seats=(seat(scope=scope, seed=seed),))
        outputs.add(tuple(run(executor, decode(0, 4 + i)).tokens[0] for i in range(4)))
    assert len(outputs) == 4


def test_vocab_bounds_hashed_tokens() -> None:
    executor = sim(vocab=3)
    run(executor, prefill(0, 0, [1] * 4), seats=(seat(),))
    assert set(run(executor, decode(0, 4), repeat=90).tokens.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("repeat", [1, 4])
def test_stop_id_ends_a_lane(repeat: int) -> None:
    executor = sim()
    run(executor, seats=(seat(0, depth=4, last=1, script=[1, 2, 3, 4, 5], stop_ids=(3, 8)),
                         seat(1, depth=4, last=1, script=[1, 2, 3, 4, 5])))
    got = [run(executor, decode(0, 4 + i), decode(1, 4 + i), repeat=repeat) for i in range(0, 4, repeat)]
    assert [sum((rows_of(r)[lane] for r in got), []) for lane in (0, 1)] == [[2, 3], [2, 3, 4, 5]]
    assert got[-1].done.tolist() == [Done.STOP, Done.NO]


def test_verify_accepts_right_drafts_and_one_more() -> None:
    script = list(range(50, 70))
    for drafts, accepted in (([51, 52, 53], 4), ([51, 0, 53], 2), ([0, 52, 53], 1), ([], 1)):
        executor = sim()
        run(executor, seats=(seat(depth=4, last=50, script=script),))
        got = run(executor, verify(0, 4, drafts))
        assert got.tokens.tolist() == script[1 : 1 + accepted]
        assert run(executor, verify(0, 99, [])).tokens.tolist() == [script[1 + accepted]]


def test_verify_is_clipped_at_limit_and_stop() -> None:
    for changes, want in (({"limit": 7}, ([51, 52], Done.LENGTH)), ({"stop_ids": (51,)}, ([51], Done.STOP))):
        executor = sim()
        run(executor, seats=(seat(depth=4, last=50, script=list(range(50, 70)), **changes),))
        got = run(executor, verify(0, 4, [51, 52, 53]))
        assert (got.tokens.tolist(), got.done[0]) == want
        assert run(executor, verify(0, 9, [1])).accepted.tolist() == [0]


@pytest.mark.parametrize("row", [decode(0, 4), verify(0, 4, [1]), prefill(0, 4, [1])])
@pytest.mark.parametrize("hashed", [False, True])
def test_lane_seated_at_its_limit_commits_nothing(row: tuple[Any, ...], hashed: bool) -> None:
    executor = sim()
    run(executor, seats=(seat(0, depth=4, last=1, limit=5, script=None if hashed else [1, 2, 3]),))
    got = run(executor, row)
    assert (got.accepted.tolist(), got.done.tolist()) == ([0], [Done.LENGTH])


def test_mixed_rows_keep_their_order() -> None:
    executor = sim()
    scripts = [[100 * lane + i for i in range(20)] for lane in range(5)]
    run(executor, seats=tuple(seat(i, depth=0 if i in (1, 4) else 4, last=-1 if i in (1, 4) else scripts[i][0],
                                   script=scripts[i], limit=6 if i == 3 else 100) for i in range(5)))
    run(executor, decode(3, 4))
    got = run(executor, decode(2, 4), prefill(1, 0, [1] * 4), decode(3, 5), verify(0, 4, [1, 2]),
              prefill(4, 0, [1, 2], sample=False))
    assert rows_of(got) == [[201], [100], [], [1, 2, 3], []]
    assert got.lane.tolist() == [2, 1, 3, 0, 4]
    assert got.done.tolist() == [Done.NO, Done.NO, Done.LENGTH, Done.NO, Done.NO]
    assert to_bytes(from_bytes(to_bytes(got))) == to_bytes(got)


def test_scripts_survive_many_tenants() -> None:
    executor = sim()
    rng = np.random.default_rng(1)
    held: dict[int, tuple[int, list[int], int]] = {}
    for step in range(300):
        lane = int(rng.integers(8))
        script = rng.integers(0, 1000, int(rng.integers(30, 200))).tolist()
        run(executor, step=step, seats=(seat(lane, depth=4, last=script[0], script=script, limit=10**6,
                                             generation=step),))
        held[lane] = (step, script, 0)
        lanes = sorted(held)
        got = run(executor, *(decode(i, 4 + held[i][2], generation=held[i][0]) for i in lanes))
        for i, tokens in zip(lanes, rows_of(got), strict=True):
            generation, script, at = held[i]
            if at + 1 < len(script):
                assert tokens == [script[at + 1]]
            held[i] = (generation, script, at + 1)


def test_resync_forgets_lanes_that_are_not_seated() -> None:
    executor = sim()
    run(executor, seats=(seat(0, depth=4, last=1), seat(1, depth=4, last=1)))
    run(executor, decode(1, 4), seats=(seat(1, depth=4, last=1),), resync=True)
    with pytest.raises(RuntimeError, match="lane 0: row of generation 1, seated is -1"):
        run(executor, decode(0, 4))


# -- time


def test_step_times_follow_the_cost_model_and_launches_queue_up() -> None:
    executor = sim(now=5.0)
    first = executor.launch(plan(prefill(0, 0, [1] * 4), prefill(1, 64, [1] * 8, sample=False),
                                 seats=(seat(0), seat(1, depth=64, prompt=90))))
    second = executor.launch(plan(decode(0, 4)))
    assert executor.now == 5.0
    end = 5.0 + COST.step_us(prefill_tokens=12, prefill_context=8 * 64, context_sum=0, copied_bytes=0) * 1e-6
    assert executor.collect(first).times.tolist() == [end]
    assert executor.now == executor.clock() == end
    end += COST.step_us(decode_rows=1, context_sum=4, copied_bytes=0) * 1e-6
    assert executor.collect(second).times.tolist() == [end]
    executor.idle(end + 1)
    executor.idle(end)
    assert executor.now == end + 1


def test_verify_costs_tiles_and_context() -> None:
    executor = sim()
    run(executor, seats=(seat(0, depth=40, last=1), seat(1, depth=50, last=1)))
    got = run(executor, verify(0, 45, [1, 2]), decode(1, 50))
    want = COST.step_us(decode_rows=1, verify_tokens=3, context_sum=90, copied_bytes=0) * 1e-6
    assert got.times[0] == want


def test_copies_cost_twice_their_bytes_and_only_written_snapshots_count() -> None:
    state, page = SHAPE.state_bytes, SHAPE.page_bytes
    cases: list[tuple[dict[str, Any], int]] = [
        ({"moves": [[0, PAGE, 1, 2], [0, PAGE, 3, 4], [1, STATE, 5, 6]]}, 2 * page + state),
        ({"restores": [[1, 2], [1, 3]]}, 2 * state),
        ({"page_copies": [[1, 2, 7]]}, page),
        ({"zero_pages": np.array([1], np.int32), "zero_states": np.array([1], np.int32)}, 0),
        ({"snapshots": [[0, 5, 9]]}, state),
        ({"snapshots": [[0, 6, 9]]}, 0),
    ]
    for fields, copied in cases:
        executor = sim()
        run(executor, seats=(seat(0, depth=4, last=1),))
        got = run(executor, decode(0, 4), **fields)
        assert got.times[0] == COST.step_us(decode_rows=1, context_sum=4, copied_bytes=2 * copied) * 1e-6
        assert got.written.tolist() == ([copied > 0] if "snapshots" in fields else [])


def test_plan_without_rows_costs_idle() -> None:
    executor = sim()
    got = run(executor, moves=[[0, PAGE, 1, 2]])
    assert (got.times.tolist(), got.accepted.tolist()) == ([0.0], [])


def many(executor: SimExecutor, hashed: bool = False) -> list[int]:
    """Four decoding lanes, one of which ends after 5 tokens. Returns their depths."""
    depths = [4, 70, 1000, 33]
    run(executor, seats=tuple(
        seat(i, depth=d, last=7, prompt=d, limit=d + 6 if i == 1 else d + 500,
             script=None if hashed else list(range(i * 1000, i * 1000 + 400))) for i, d in enumerate(depths)))
    return depths


@pytest.mark.parametrize("hashed", [False, True])
def test_repeat_equals_single_steps_bit_for_bit(hashed: bool) -> None:
    k, snapshots = 23, [[0, 4 + 9, 11], [1, 70 + 5, 12], [2, 1000 + 24, 13]]
    one, many_steps = sim(now=3.7), sim(now=3.7)
    depths = many(one, hashed)
    many(many_steps, hashed)
    fields: dict[str, Any] = {"restores": [[1, 2]], "snapshots": snapshots}
    whole = run(one, *(decode(i, d) for i, d in enumerate(depths)), repeat=k, **fields)
    single = [run(many_steps, *(decode(i, d + j) for i, d in enumerate(depths)), step=1 + j, snapshots=snapshots,
                  **({"restores": [[1, 2]]} if j == 0 else {})) for j in range(k)]
    assert whole.times.tolist() == [float(r.times[0]) for r in single]
    assert one.now == many_steps.now
    assert rows_of(whole) == [sum((rows_of(r)[i] for r in single), []) for i in range(4)]
    assert whole.done.tolist() == single[-1].done.tolist() == [0, Done.LENGTH, 0, 0]
    assert whole.written.tolist() == np.any([r.written for r in single], axis=0).tolist() == [True, True, False]
    assert (one._lanes.table == many_steps._lanes.table).all()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_fast_forward_permits_what_single_steps_would_plan_in_time(depth: int) -> None:
    limit = 40

    def start() -> tuple[SimExecutor, deque[Any]]:
        executor = sim(now=2.0)
        many(executor)
        flight: deque[Any] = deque()
        for j in range(2 * depth):
            flight.append(executor.launch(plan(decode(0, 4 + j), decode(2, 1000 + j))))
            if len(flight) > depth:
                executor.collect(flight.popleft())
        return executor, flight

    executor, flight = start()
    moments = []
    for j in range(limit):
        moments.append(executor.now)
        rows = [decode(0, 4 + 2 * depth + j), decode(1, 70 + j), decode(2, 1000 + 2 * depth + j)]
        flight.append(executor.launch(plan(*rows)))
        if len(flight) > depth:
            executor.collect(flight.popleft())

    asked, _ = start()
    now = asked.now
    first = plan(decode(0, 4 + 2 * depth), decode(1, 70), decode(2, 1000 + 2 * depth))
    for until in [0.0, *moments, *(np.array(moments) + 1e-9).tolist(), 1e9]:
        want = max(1, sum(m < until for m in moments))
        assert asked.fast_forward(first, limit, until, depth) == want
    assert asked.now == now
    assert asked.fast_forward(first, 7, 1e9, depth) == 7


def test_fast_forward_far_ahead_is_exact() -> None:
    executor = sim()
    run(executor, seats=(seat(depth=4, last=1, limit=10**6),))
    ends = COST.decode_times(1, 4, 5000)
    rows = plan(decode(0, 4))
    for want in (1, 2, 127, 128, 129, 1023, 1024, 1025, 4000):
        assert executor.fast_forward(rows, 5000, float(ends[want - 1]), depth=0) == want
    assert executor.fast_forward(rows, 5000, 1e9, depth=0) == 5000
    assert executor.fast_forward(rows, 1024, 1e9, depth=0) == 1024


def test_fast_forward_after_a_pause_counts_from_now() -> None:
    executor = sim()
    many(executor)
    executor.idle(50.0)
    rows = plan(decode(0, 4))
    step = COST.step_us(decode_rows=1, context_sum=4, copied_bytes=0) * 1e-6
    assert executor.fast_forward(rows, 10, 50.0 + step / 2, depth=1) == 2
    assert executor.fast_forward(rows, 10, 50.0, depth=1) == 1


def test_fast_forward_declines_where_the_end_is_unknown() -> None:
    executor = sim()
    run(executor, seats=(seat(0, depth=4, last=1, stop_ids=(3,)), seat(1, depth=4, last=1)))
    assert executor.fast_forward(plan(decode(0, 4)), 10, 1e9) == 1
    assert executor.fast_forward(plan(decode(1, 4)), 10, 1e9) == 10
    assert executor.fast_forward(plan(decode(1, 4), seats=(seat(1, depth=4, last=1),)), 10, 1e9) == 1


# -- refusals


def test_use_out_of_order_is_refused() -> None:
    with pytest.raises(RuntimeError, match="before attach"):
        SimExecutor().launch(plan())
    executor = sim()
    first, second = executor.launch(plan()), executor.launch(plan())
    with pytest.raises(RuntimeError, match="in flight"):
        executor.idle(1.0)
    with pytest.raises(RuntimeError, match="order"):
        executor.collect(second)
    executor.collect(first)
    with pytest.raises(RuntimeError, match="order"):
        executor.collect(first)


@pytest.mark.parametrize(
    ("fields", "rows", "reason"),
    [
        ({}, [decode(1, 4, generation=9)], "step 3: lane 1: row of generation 9, seated is 1"),
        ({}, [decode(5, 4)], "lane 5: row of generation 1, seated is -1"),
        ({}, [decode(8, 4)], "outside 0..7"),
        ({}, [decode(-1, 4)], "outside 0..7"),
        ({}, [decode(1, 4), decode(1, 4)], "two rows of one lane"),
        ({}, [decode(1, 3)], "lane 1: start 3 is behind its depth 4"),
        ({}, [decode(0, 0)], "lane 0: DECODE before its prompt is absorbed"),
        ({}, [prefill(0, 1, [1])], "lane 0: PREFILL of 1 .* from 1, its depth is 0"),
        ({}, [prefill(0, 0, [1, 2])], "lane 0: sampled at depth 2, inside its prompt of 4"),
        ({}, [verify(0, 0, [1])], "lane 0: VERIFY"),
        ({}, [verify(1, 4, [1] * 16)], "window 17 of at most 16"),
        ({"repeat": 2}, [prefill(0, 0, [1] * 4)], "repeat 2"),
        ({"snapshots": [[0, 0, 9]]}, [prefill(0, 0, [1] * 4)], "snapshot at 0"),
        ({"snapshots": [[0, 5, 9]]}, [prefill(0, 0, [1] * 4)], "snapshot at 5"),
        ({"seats": (seat(8),)}, [], "lane 8 is outside"),
        ({"seats": (seat(2, depth=3, last=1),)}, [], "inside its prompt of 4"),
    ],
)
def test_plans_that_do_not_fit_are_refused(fields: dict[str, Any], rows: list[Any], reason: str) -> None:
    executor = sim()
    run(executor, seats=(seat(0), seat(1, depth=4, last=1)))
    with pytest.raises(RuntimeError, match=reason):
        run(executor, *rows, step=3, **fields)


@pytest.mark.parametrize(("capture", "depths"), [("any", [5, 64, 70]), ("grid", [64, 70]), ("final", [70])])
def test_capture_profile_is_enforced(capture: Any, depths: list[int]) -> None:
    for depth in (5, 64, 70):
        executor = sim(capture=capture)
        assert executor.capabilities.capture == capture
        one = plan(prefill(0, 0, [1] * 70), seats=(seat(0),), snapshots=[[0, depth, 9]])
        if depth in depths:
            assert executor.launch(one).written.tolist() == [True]
        else:
            with pytest.raises(RuntimeError, match=f"snapshot at {depth}"):
                executor.launch(one)
