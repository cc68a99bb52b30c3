"""What a commit returns is a list to whoever treats it as one, and arrays to whoever wants them."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem import Engine, Policy, Request, Sampling, Shape
from k3mem.executors.mock import MockExecutor
from k3mem.request import Output, Outputs

SHAPE = Shape("tiny", 640, 8, page_tokens=16, state_chunk=16, vocab_size=97, max_tokens=4096, align=1)


def made(ids: list[object], accepted: list[int], times: list[float] | None = None) -> Outputs:
    return Outputs([Output("gone", [], True, "abort")], np.array(ids, object), np.array(accepted, np.int32),
                   np.arange(sum(accepted), dtype=np.int32), times or [])


def test_rows_become_outputs_in_their_order() -> None:
    outs = made(["a", ("b", 1), "c", "d"], [1, 0, 2, 1], [0.5, 1.0])
    outs.put(3, Output("d", [3], True, "length", None, 0.5, 0.5))
    assert list(outs) == [
        Output("gone", [], True, "abort"), Output("a", [0], False, None, None, 0.5, 0.5),
        Output("c", [1, 2], False, None, None, 0.5, 1.0), Output("d", [3], True, "length", None, 0.5, 0.5),
    ]
    assert len(outs) == 4 and outs[-1].finished and [out.id for out in outs[1:3]] == ["a", "c"]


def test_a_row_may_have_no_output() -> None:
    outs = made(["a", "b"], [1, 1])
    assert len(outs) == 3
    outs.put(1, None)
    assert len(outs) == 2 and [out.id for out in outs] == ["gone", "a"] and len(outs) == 2


def test_it_compares_and_adds_like_a_list() -> None:
    outs, same = made(["a"], [1]), made(["a"], [1])
    one = Output("x", [7])
    assert outs == same and outs == list(outs) and outs != [one]
    assert outs + [one] == [*outs, one] and [one] + outs == [one, *outs]
    got: list[Output] = []
    got += outs
    assert got == list(outs) and outs[0] in outs
    nothing = Outputs([], np.empty(0, object), np.zeros(0, np.int32), np.zeros(0, np.int32), [])
    assert not nothing and nothing == []


def test_arrays_say_what_the_outputs_say() -> None:
    engine = Engine(SHAPE, MockExecutor(), 200 * 640, Policy(token_budget=64))
    for i, new in enumerate((5, 1, 9)):
        engine.submit(Request(i, [1 + i] * 20, new, stop=(lambda out: 3 if len(out) > 3 else None) if i == 2 else None))
    steps = 0
    while engine.has_work:
        outputs = engine.step()
        if not isinstance(outputs, Outputs):
            continue
        steps += 1
        rows, behind = outputs.rows(), 0
        again = list(rows.ends)
        for row, (id, count) in enumerate(zip(rows.ids.tolist(), rows.accepted.tolist(), strict=True)):
            behind += count
            one = rows.own.get(row, Output(id, rows.tokens[behind - count : behind].tolist()))
            again += [one] if count and one is not None else []
        assert again == outputs
    assert steps > 3


def test_outputs_outlive_the_executors_arrays_and_the_lanes_tenants() -> None:
    engine = Engine(SHAPE, MockExecutor(), 200 * 640, Policy(token_budget=64, max_running=1, steps_in_flight=0))
    for name in ("first", "second"):
        engine.submit(Request(name, [1] * 20, 3, sampling=Sampling(seed=1)))
    kept, total = [], 0
    while engine.has_work:
        plan = engine.plan()
        flight = engine.launch(plan) if plan is not None else engine.flights[0]
        assert flight is not None
        result = engine.collect(flight)
        outputs = engine.commit(flight, result)
        total += int(result.tokens.sum())
        for array in (result.tokens, result.accepted):
            array[:] = -1
        kept.append(outputs)
    read = [out for outputs in kept for out in outputs]
    assert [out.id for out in read] == ["first"] * 3 + ["second"] * 3, "though both had lane 0"
    assert sum(sum(out.tokens) for out in read) == total


@pytest.mark.parametrize("priority", [1 << 62, -(1 << 80)])
def test_a_priority_that_no_rank_can_hold_is_refused(priority: int) -> None:
    from k3mem.errors import InvalidRequest

    with pytest.raises(InvalidRequest, match="priority"):
        Request("a", [1], 1, priority=priority)
