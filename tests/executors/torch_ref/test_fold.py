"""VERIFY rows: what they read, keep and leave; the fold is decoding to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from k3mem.executors.torch_ref import Model, TorchExecutor
from k3mem.plan import STATE, Done
from tests.executors.torch_ref.bench import LIMIT, PROMPT, Bench, drafts_of
from tests.executors.torch_ref.world import tokens
from tests.plans import layout_of, run


@pytest.mark.parametrize("right", range(17))
def test_the_fold_of_n_tokens_is_n_decodes(model: Model, right: int) -> None:
    bench, plain = Bench(model), Bench(model)
    (result,) = run(bench.executor, bench.host.plan().verify(1, len(PROMPT), drafts_of(model, right, 16)))
    assert result.tokens.tolist() == plain.decode(right + 1)
    assert torch.equal(bench.slot(bench.state), plain.slot(plain.state))
    assert bench.decode(3) == plain.decode(3)
    assert torch.equal(bench.slot(bench.state), plain.slot(plain.state))


def test_padding_and_lanes_that_have_ended_touch_nothing(model: Model) -> None:
    bench = Bench(model)
    bench.seat(2, tokens(2, 33))
    arena, tables = bench.executor.arena, bench.executor.tables
    tables.lane(2).done = int(Done.STOP)
    before = arena.raw.clone()
    plan = bench.host.plan().verify(1, len(PROMPT), drafts_of(model, 7)).verify(2, 33, [5, 6])

    (result,) = run(bench.executor, plan)

    assert result.accepted.tolist() == [8, 0]
    places = tables.page_places(1, tables.lane(1), -(-(len(PROMPT) + 8) // arena.page_tokens))
    own = arena.rows_of(places, len(PROMPT) + 8)[len(PROMPT) :]
    now = arena.raw.clone()
    for view in (before, now):  # blank what the row may write
        items = view[: arena.top].view(model.dtype)
        rows = items[: len(arena.pages) * arena.pages.shape[1]].view(-1, model.config.kv_row)
        for layer in range(arena.page_rows // arena.page_tokens):
            rows[own + layer * arena.page_tokens] = 0
        slot = arena.top - (tables.place(STATE, bench.state) + 1) * arena.state_bytes
        view[slot : slot + arena.state_bytes] = 0
    assert torch.equal(now, before)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_conditional_snapshot_is_the_state_at_its_depth(model: Model, at: int) -> None:
    bench, plain = Bench(model), Bench(model)
    plan = bench.host.plan()
    target = bench.host.new_state(plan)
    plan.verify(1, len(PROMPT) + 2, drafts_of(model, 5)).snapshot(len(PROMPT) + at, target)  # a worst case
    (result,) = run(bench.executor, plan)
    assert result.written.tolist() == [at <= 6]
    plain.decode(at if at <= 6 else 0)
    expected = plain.slot(plain.state) if at <= 6 else torch.zeros_like(plain.slot(plain.state))
    assert torch.equal(bench.slot(target), expected)


def test_verify_leaves_the_state_alone_before_the_fold(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(model)
    states = bench.executor.arena.slots[-16:]
    before = states.clone()
    monkeypatch.setattr(bench.executor, "_fold", lambda *_: None)
    run(bench.executor, bench.host.plan().verify(1, len(PROMPT), drafts_of(model, 3)))
    assert torch.equal(states, before)


def test_rows_of_one_step_fold_apart(model: Model) -> None:
    bench = Bench(model)
    plain = Bench(model)
    other = tokens(2, 33)
    states = [(b.state, b.seat(2, other), b.seat(3, PROMPT), b.seat(4, tokens(4, 9))) for b in (bench, plain)]
    plan = bench.host.plan()
    plan.verify(1, len(PROMPT), drafts_of(model, 2)).verify(2, len(other), [5, 6]).decode(3, len(PROMPT))
    plan.verify(4, 9, [])
    (result,) = run(bench.executor, plan)
    assert result.accepted.tolist()[0] == 3 and result.accepted.tolist()[2:] == [1, 1]
    for lane, count in enumerate(result.accepted.tolist(), 1):
        plain.decode(count, lane)
    for mine, his in zip(*states, strict=True):
        assert torch.equal(bench.slot(mine), plain.slot(his))


def test_records_lie_in_the_scratch_where_the_layout_has_some(model: Model) -> None:
    bench = Bench(model)
    shape = model.shape(16, window=8)
    layout = layout_of(shape, pages=64, states=16)
    scratch = 8 * shape.record_bytes
    roomy = replace(layout, capacity_bytes=layout.state_top + scratch + 64)
    bench.executor.attach(roomy)
    records = bench.executor.arena.records(torch.arange(8))
    assert records.u.untyped_storage().data_ptr() == bench.executor.arena.raw.untyped_storage().data_ptr()
    used = sum(t.numel() * t.element_size() for t in (records.u, records.key, records.decay, records.row))
    assert used == scratch
    records.row.fill_(1)
    assert not bench.executor.arena.raw[: layout.state_top].any()


def test_a_plan_for_another_tenant_is_refused(model: Model) -> None:
    bench = Bench(model)
    with pytest.raises(RuntimeError, match="lane 1.*generation 7"):
        run(bench.executor, bench.host.plan().decode(1, len(PROMPT), generation=7))
    with pytest.raises(RuntimeError, match="lane 5.*nobody"):
        run(bench.executor, bench.host.plan().decode(5, 3))


def test_a_row_whose_page_is_missing_is_refused(model: Model) -> None:
    bench = Bench(model)
    bench.executor.tables.lane(1).pages[1] = -1
    with pytest.raises(RuntimeError, match="lane 1 needs 2 pages"):
        bench.decode(1)


def test_a_shape_of_another_model_is_refused(model: Model) -> None:
    from k3mem import Shape
    from k3mem.errors import InvalidShape

    with pytest.raises(InvalidShape, match=r"use model\.shape\(\)"):
        TorchExecutor(model).attach(layout_of(Shape.kimi_linear_48b()))


def test_results_are_collected_in_order(model: Model) -> None:
    bench = Bench(model)
    first = bench.executor.launch(bench.host.plan().decode(1, len(PROMPT)).build())
    second = bench.executor.launch(bench.host.plan().decode(1, len(PROMPT) + 1).build())
    with pytest.raises(RuntimeError, match="order"):
        bench.executor.collect(second)
    assert bench.executor.collect(first) is first and bench.executor.collect(second) is second


def test_media_are_refused(model: Model) -> None:
    bench = Bench(model)
    plan = bench.host.plan()
    bench.host.seat(plan, 2, prompt=3, limit=LIMIT)
    with pytest.raises(RuntimeError, match="token 512 is outside the vocabulary"):
        run(bench.executor, plan.prefill(2, 0, [1, 512, 3], True))


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
def test_snapshots_inside_a_chunk_are_the_states_at_their_depths(model: Model, mode: str) -> None:
    text = tokens(5, 200)
    bench = Bench(model, kda_mode=mode)
    plan = bench.host.plan()
    bench.host.seat(plan, 2, prompt=len(text), limit=len(text) + 9)
    plan.prefill(2, 0, text[:10], False)
    run(bench.executor, plan)
    plan = bench.host.plan()
    depths = (74, 138, 200) if mode == "chunk" else (11, 12, 64, 74, 130, 200)
    targets = [bench.host.new_state(plan) for _ in depths]
    plan.prefill(2, 10, text[10:], True)
    for depth, target in zip(depths, targets, strict=True):
        plan.snapshot(depth, target)
    (result,) = run(bench.executor, plan)
    assert result.written.all()
    for depth, target in zip(depths, targets, strict=True):
        held = model.forward(text[:depth])[1]
        window, matrix = bench.executor.arena.parts(bench.slot(target).unsqueeze(0))
        for n, i in enumerate(model.config.kda_layers):
            if mode == "recurrent":
                assert torch.equal(matrix[0, n].transpose(1, 2), held[f"state.{i}"])
                assert torch.equal(window[0, n], held[f"conv.{i}"])
            else:
                assert torch.allclose(matrix[0, n].transpose(1, 2), held[f"state.{i}"], atol=1e-5)
                assert torch.allclose(window[0, n], held[f"conv.{i}"], atol=1e-5)
