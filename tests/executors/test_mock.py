"""The mock computes what a cache-free run computes, however a sequence was cut, resumed, moved or speculated."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from k3mem.executors.mock import MockExecutor, fresh_output, fresh_rows, fresh_state
from k3mem.plan import Done, Sampling
from tests.plans import Host, PlanBuilder, layout_of, run, run_overlapped, small_shape, tokens_of

SCOPE = b"scope"
PROMPT = [5, 3, 8, 1, 9, 2, 7, 7, 4, 6, 1]
SEEDS = range(4)


def attached(seed: int = 0, page_tokens: int = 4, **options: object) -> tuple[MockExecutor, Host]:
    executor = MockExecutor(seed, **options)  # type: ignore[arg-type]
    layout = layout_of(small_shape(page_tokens))
    executor.attach(layout)
    return executor, Host(layout)


def expected(count: int, prompt: list[int] = PROMPT, sampling: Sampling | None = None) -> list[int]:
    return fresh_output(SCOPE, prompt, sampling or Sampling(), count, vocab_size=1000)


def chunks(host: Host, cuts: list[int], limit: int = 24) -> list[PlanBuilder]:
    """Plans that prefill PROMPT in lane 1, cut at these depths."""
    edges = [0, *cuts, len(PROMPT)]
    plans = []
    for begin, end in zip(edges, edges[1:], strict=False):
        plan = host.plan()
        if begin == 0:
            host.seat(plan, 1, prompt=len(PROMPT), limit=limit)
        plans.append(plan.prefill(1, begin, PROMPT[begin:end], end == len(PROMPT)))
    return plans


@pytest.mark.parametrize("page_tokens", [1, 3, 4, 16])
@pytest.mark.parametrize("cuts", [[], [1], [4], [3, 4, 5], list(range(1, len(PROMPT)))])
def test_chunking_does_not_change_the_tokens(cuts: list[int], page_tokens: int) -> None:
    executor, host = attached(page_tokens=page_tokens)
    decodes = [host.plan for _ in range(5)]
    plans = chunks(host, cuts)
    plans += [make().decode(1, len(PROMPT) + k) for k, make in enumerate(decodes)]
    assert tokens_of(run_overlapped(executor, *plans), 1) == expected(6)
    assert executor.violations == []


@pytest.mark.parametrize("reads", ["digest", "all"])
def test_both_ways_of_reading_the_context_agree(reads: str) -> None:
    executor, host = attached(context_reads=reads)
    plans = [*chunks(host, [5]), *[host.plan().decode(1, len(PROMPT) + k) for k in range(8)]]
    assert tokens_of(run(executor, *plans), 1) == expected(9)


@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.5), Sampling(seed=7), Sampling(top_k=3), Sampling(top_p=0.9),
])
def test_tokens_depend_on_every_sampling_parameter(sampling: Sampling) -> None:
    executor, host = attached()
    plan = host.plan()
    host.seat(plan, 1, prompt=len(PROMPT), limit=20, sampling=sampling)
    plans = [plan.prefill(1, 0, PROMPT, True), *[host.plan().decode(1, len(PROMPT) + k) for k in range(3)]]
    tokens = tokens_of(run(executor, *plans), 1)
    assert tokens == expected(4, sampling=sampling)
    assert tokens != expected(4)


def test_tokens_depend_on_the_scope_and_the_order() -> None:
    assert fresh_output(b"a", PROMPT, Sampling(), 4) != fresh_output(b"b", PROMPT, Sampling(), 4)
    assert expected(4) != expected(4, [3, 5, *PROMPT[2:]])
    assert fresh_state(b"a", PROMPT) != fresh_state(b"a", PROMPT[::-1])
    assert fresh_rows(b"a", PROMPT)[:3] == fresh_rows(b"a", PROMPT[:3])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("depth", [4, 5, 7, 8])
def test_a_checkpoint_and_a_copied_tail_resume_the_prefix(depth: int, seed: int) -> None:
    executor, host = attached(seed)
    first = host.plan()
    host.seat(first, 1, prompt=len(PROMPT), limit=20)
    pages = [entry[2] for entry in first.entries["lane_pages"]]
    target = host.new_state(first, zero=False)
    first.prefill(1, 0, PROMPT, True).snapshot(depth, target)
    second = host.plan()
    full, rest = divmod(depth, 4)
    host.seat(second, 2, prompt=len(PROMPT), limit=20, depth=depth, checkpoint=target, shared=pages[:full],
              tail=(pages[full], rest) if rest else None)
    second.prefill(2, depth, PROMPT[depth:], True).decode(1, len(PROMPT))
    third = host.plan().decode(1, len(PROMPT) + 1).decode(2, len(PROMPT))
    results = run_overlapped(executor, first, second, third)
    assert tokens_of(results, 1) == expected(3)
    assert tokens_of(results, 2) == expected(2)
    assert executor.violations == []
    assert executor.audit([(SCOPE, np.array(PROMPT, np.int32), depth, target, pages)]) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_every_interior_snapshot_is_the_state_at_its_depth(seed: int) -> None:
    executor, host = attached(seed)
    plan = host.plan()
    host.seat(plan, 1, prompt=len(PROMPT), limit=20)
    pages = [entry[2] for entry in plan.entries["lane_pages"]]
    plan.prefill(1, 0, PROMPT, True)
    targets = {depth: host.new_state(plan, zero=False) for depth in range(1, len(PROMPT) + 1)}
    for depth, target in targets.items():
        plan.snapshot(depth, target)
    (result,) = run(executor, plan)
    assert result.written.all()
    assert executor.audit([(SCOPE, PROMPT, depth, target, pages) for depth, target in targets.items()]) == []
    assert len(executor.audit([(SCOPE, PROMPT, 4, targets[5], pages)])) == 2
    assert executor.violations == []


@pytest.mark.parametrize("right", range(5))
@pytest.mark.parametrize("wrong", range(3))
@pytest.mark.parametrize("snapshot", [0, 1, 3])
def test_verify_equals_plain_decoding(right: int, wrong: int, snapshot: int) -> None:
    executor, host = attached(seed=right)
    tokens = expected(12)
    first = host.plan()
    host.seat(first, 1, prompt=len(PROMPT), limit=24)
    pages = [entry[2] for entry in first.entries["lane_pages"]]
    target = host.new_state(first)
    depth = len(PROMPT)
    drafts = tokens[1 : 1 + right] + [(token + 1) % 1000 for token in tokens[1 + right : 1 + right + wrong]]
    verify = host.plan().verify(1, depth, drafts)
    if snapshot and snapshot <= 1 + len(drafts):
        verify.snapshot(depth + snapshot, target)
    later = [host.plan().decode(1, depth + right + 1 + k) for k in range(3)]
    results = run_overlapped(executor, first.prefill(1, 0, PROMPT, True), verify, *later)
    assert results[1].accepted.tolist() == [right + 1]
    assert tokens_of(results, 1) == tokens[: right + 5]
    assert results[1].written.tolist() == ([snapshot <= right + 1] if verify.entries["snapshots"] else [])
    if results[1].written.any():
        assert executor.audit([(SCOPE, PROMPT + tokens, depth + snapshot, target, pages)]) == []
    assert executor.violations == []


def test_verify_is_cut_at_a_stop_id_and_the_state_absorbs_no_more() -> None:
    executor, host = attached()
    tokens = expected(5)
    first = host.plan()
    state = host.seat(first, 1, prompt=len(PROMPT), limit=24, sampling=Sampling(stop_ids=(tokens[2],)))
    pages = [entry[2] for entry in first.entries["lane_pages"]]
    results = run(executor, first.prefill(1, 0, PROMPT, True), host.plan().verify(1, len(PROMPT), tokens[1:5]))
    assert tokens_of(results, 1) == tokens[:3]
    assert results[1].done.tolist() == [Done.STOP]
    assert executor.audit([(SCOPE, PROMPT + tokens, len(PROMPT) + 2, state, pages)]) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_moved_entries_keep_their_content(seed: int) -> None:
    executor, host = attached(seed)
    first = host.plan()
    state = host.seat(first, 1, prompt=len(PROMPT), limit=20)
    pages = [entry[2] for entry in first.entries["lane_pages"]]
    moves = host.plan().decode(1, len(PROMPT))
    moves.add("moves", (0, 0, pages[0], 30), (0, 0, pages[1], 31), (0, 1, state, 9), (1, 0, 30, pages[1]))
    moves.add("page_table", (pages[0], pages[1]), (pages[1], 31)).add("state_table", (state, 9))
    results = run_overlapped(executor, first.prefill(1, 0, PROMPT, True), moves, host.plan().decode(1, len(PROMPT) + 1))
    assert tokens_of(results, 1) == expected(3)
    assert executor.violations == []
    line = PROMPT + expected(3)
    places = {pages[0]: pages[1], pages[1]: 31, pages[2]: pages[2]}
    assert executor.audit([(SCOPE, line, len(PROMPT) + 2, state, pages)], places.items(), [(state, 9)]) == []
    assert executor.audit([], [(pages[0], pages[0])]) != []


@pytest.mark.parametrize("seed", range(20))
def test_random_cuts_overlap_and_speculation_give_the_oracles_tokens(seed: int) -> None:
    rng = Random(seed)
    executor, host = attached(seed, page_tokens=rng.choice([1, 2, 4, 8]), context_reads=rng.choice(["digest", "all"]))
    prompt = [rng.randrange(1000) for _ in range(rng.randrange(1, 30))]
    tokens = expected(20, prompt)
    limit = len(prompt) + 20
    plans: list[PlanBuilder] = []
    depth = 0
    while depth < len(prompt):
        plan = host.plan()
        if depth == 0:
            host.seat(plan, 1, prompt=len(prompt), limit=limit)
        length = rng.randrange(1, len(prompt) - depth + 1)
        plans.append(plan.prefill(1, depth, prompt[depth : depth + length], depth + length == len(prompt)))
        depth += length
    out = 1
    while out < 20:
        true = rng.randrange(0, 4) if rng.random() < 0.5 else 0
        drafts = [*tokens[out : out + true], rng.randrange(1000)]
        slack = rng.randrange(3)
        worst = min(depth + slack, limit - 2)
        plans.append(host.plan().verify(1, worst, drafts) if true else host.plan().decode(1, worst))
        accepted = 1
        if true:
            for draft, token in zip(drafts, tokens[out:], strict=False):
                if draft != token:
                    break
                accepted += 1
        accepted = min(accepted, 20 - out)
        out, depth = out + accepted, depth + accepted
    results = run_overlapped(executor, *plans)
    assert tokens_of(results, 1) == tokens
    assert results[-1].done.tolist() == [Done.LENGTH]
    assert executor.violations == []
