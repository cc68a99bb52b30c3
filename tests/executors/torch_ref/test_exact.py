"""Whatever the cache and the scheduler did: tokens, final states, windows and KV are those of a lone cold pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from k3mem import Request, Sampling
from k3mem.executors.torch_ref import Model
from k3mem.plan import PAGE, STATE, Row
from tests.executors.torch_ref.conftest import golden
from tests.executors.torch_ref.world import Script, World, greedy, request, same, tokens

ModelOf = Callable[..., Model]
PAGES = (1, 16, 64)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("kind", ["tiny-k3", "tiny-kimi-linear"])
def test_a_cold_run(model_of: ModelOf, kind: str, page: int) -> None:
    World(model_of(kind), page_tokens=page).run(request(1, tokens(1, 150), 20)).check()


@pytest.mark.parametrize("name", ["mini-k3", "tiny-k3", "tiny-kimi-linear"])
def test_golden_models_under_the_engine(name: str) -> None:
    model = Model.from_pretrained(golden(name))
    world = World(model, token_budget=200, capacity=64 << 20)
    world.run(*[request(i, tokens(i, 70 + 30 * i), 8) for i in range(3)])
    world.run(request(9, [*world.prompts[2], *world.answers[2], 7], 5)).check()
    assert any(len(plan.restores) for plan in world.executor.plans)


def test_a_cold_run_in_float64(model_of: ModelOf) -> None:
    World(model_of(dtype=torch.float64)).run(request(1, tokens(1, 100), 10)).check()


@pytest.mark.parametrize("page", [7, 48, 100])
def test_pages_that_do_not_fit_the_tiles_of_attention(model: Model, page: int) -> None:
    World(model, page_tokens=page).run(request(1, tokens(1, 150), 12)).check()


@pytest.mark.parametrize("budget", [1, 37, 64, 100, 128])
def test_any_chunks(model: Model, budget: int) -> None:
    World(model, token_budget=budget).run(request(1, tokens(2, 200), 6)).check()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("shared", [64, 129, 255])
def test_hits_at_grid_depths(model: Model, shared: int, page: int) -> None:
    first, second = tokens(3, 256), [*tokens(3, shared), *tokens(4, 60)]
    world = World(model, page_tokens=page, interval=64).run(request(1, first, 4))
    assert world.engine.probe(second).hit == shared // 64 * 64
    world.run(request(2, second, 8)).check()


@pytest.mark.parametrize("page", PAGES)
def test_a_hit_at_the_end_of_an_answer(model: Model, page: int) -> None:
    world = World(model, page_tokens=page).run(request(1, tokens(5, 90), 13))
    second = [*world.prompts[1], *world.answers[1], *tokens(6, 20)]
    assert world.engine.probe(second).hit == 90 + 13 - 1
    world.run(request(2, second, 9), request(3, [*second, 5, 6], 5)).check()


def test_answers_keep_grid_depths_alone_where_the_policy_says_so(model: Model) -> None:
    world = World(model, deterministic=True).run(request(1, tokens(5, 90), 50))
    second = [*world.prompts[1], *world.answers[1], *tokens(6, 20)]
    assert world.engine.probe(second).hit == 128
    world.run(request(2, second, 9)).check()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_batches_of_any_lengths(model: Model, depth: int) -> None:
    many = [request(i, tokens(i, 3 + 29 * i), 5 + 3 * i) for i in range(8)]
    World(model, steps_in_flight=depth, token_budget=100).run(*many).check()


def test_more_rows_than_a_tile(model: Model) -> None:
    many = [request(i, tokens(i, 20 + i), 4) for i in range(35)]
    World(model, max_running=40).run(*many).check()


def test_latecomers_join_running_requests(model: Model) -> None:
    world = World(model, token_budget=70)
    for i in range(5):
        world.submit(request(i, tokens(i % 2, 60 + 40 * i), 15))
        for _ in range(4):
            world.step()
    world.run().check()


def small(model: Model, page: int, states: int, room: int) -> int:
    """Bytes for so many states and tokens, the sinks among them."""
    shape = model.shape(page)
    return states * shape.state_bytes + room * shape.token_bytes


@pytest.mark.parametrize("page", PAGES)
def test_retraction_and_resumption(model: Model, page: int) -> None:
    many = [request(i, tokens(i, 40), 90) for i in range(3)]
    world = World(model, page_tokens=page, capacity=small(model, page, 4, 250 + 2 * page)).run(*many)
    assert world.engine.stats()["retractions"] > 0
    world.check()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("eager", [False, True])
def test_moves(model: Model, eager: bool, page: int) -> None:
    world = World(model, page_tokens=page, capacity=small(model, page, 9, 700), eager=eager)
    for wave in range(3):
        world.submit(*[request(10 * wave + i, tokens(10 * wave + i, 30 + 40 * i), 30 - 9 * i) for i in range(4)])
        for _ in range(12):
            world.step()
    world.run()
    moved = {kind for plan in world.executor.plans for kind in plan.moves[:, 1].tolist()}
    assert moved & {PAGE, STATE} == moved and moved
    world.check()


@pytest.mark.parametrize("right", range(8))
def test_speculation(model: Model, right: int) -> None:
    prompts = [tokens(i, 50 + 11 * i) for i in range(3)]
    drafter = Script(model, prompts, 40, right)
    world = World(model, drafter=drafter, window=8, steps_in_flight=1)
    world.run(*[request(i, prompt, 40) for i, prompt in enumerate(prompts)]).check()
    verified = [plan for plan in world.executor.plans if (plan.kind == Row.VERIFY).any()]
    assert len(verified) >= 39 // (right + 1) - 1
    assert len(verified) <= -(-39 // (right + 1)) + 3


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("depth", [0, 2])
def test_speculation_leaves_checkpoints_inside_accepted_prefixes(model: Model, page: int, depth: int) -> None:
    prompt = tokens(9, 50)
    world = World(model, page_tokens=page, drafter=Script(model, [prompt], 100, 5), window=8, interval=64,
                  answer_ends=False, steps_in_flight=depth)
    world.run(request(1, prompt, 100)).check()
    text = prompt + world.answers[1]
    landed = [plan for plan in world.executor.plans if len(plan.snapshots) and (plan.kind == Row.VERIFY).any()]
    assert landed
    world.engine.scheduler.core.drafter = None
    for seed, cut in ((2, 70), (3, 135)):
        second = [*text[:cut], *tokens(seed, 10)]
        assert world.engine.probe(second).hit == cut // 64 * 64
        world.run(request(seed, second, 6)).check([seed])


def test_speculation_at_a_limit_and_at_a_stop_id(model: Model) -> None:
    prompt = tokens(3, 30)
    answer = greedy(model, prompt, 20)
    stop = answer[11]
    cut = answer.index(stop) + 1
    world = World(model, drafter=Script(model, [prompt], 20, 7), window=8)
    ends = Request(2, prompt, 20, sampling=Sampling(seed=2, stop_ids=(stop,)))
    world.run(request(1, prompt, 13), ends).check()
    assert world.answers == {1: answer[:13], 2: answer[:cut]}


def test_sampled_tokens_depend_on_nothing_but_seed_and_prefix(model: Model) -> None:
    prompt = tokens(8, 100)

    def sampled(seed: int, **options: Any) -> Request:
        return Request(seed, prompt, 24, sampling=Sampling(temperature=1.2, top_p=0.9, top_k=40, seed=seed), **options)

    alone = {}
    for seed in (5, 6):
        alone[seed] = World(model, caching=False).run(sampled(seed)).answers[seed]
    assert alone[5] != alone[6]
    assert World(model).run(sampled(5), sampled(6), request(1, tokens(1, 70), 30)).answers.items() >= alone.items()

    class Guess:
        def draft(self, request_id: Any, known: Any, limit: int) -> Any:
            at = len(known) - len(prompt)
            return np.array(alone[request_id][at : at + limit], np.int32)

    world = World(model, drafter=Guess(), window=4).run(sampled(5), sampled(6))
    assert world.answers == alone
    assert len(world.executor.plans) < 20, "drafts were accepted"


def test_a_failed_step_costs_no_token(model: Model) -> None:
    world = World(model)
    world.executor.breaks = [4, 9, 15]
    world.run(*[request(i, tokens(i, 60), 20) for i in range(3)]).check()
    assert not world.executor.breaks


def test_a_resize_keeps_requests(model: Model) -> None:
    world = World(model, steps_in_flight=0).submit(request(1, tokens(1, 60), 30))
    for _ in range(10):
        world.step()
    world.engine.resize(4 << 20)
    world.run().check()


def test_chunk_form_is_equal_for_cuts_at_multiples_of_64(model: Model) -> None:
    prompt = tokens(1, 320)
    whole = World(model, kda_mode="chunk").run(request(1, prompt, 1))
    for budget in (64, 128, 192):
        world = World(model, kda_mode="chunk", token_budget=budget).run(request(1, prompt, 1))
        assert [torch.equal(a, b) for a, b in zip(whole.executor.finals[1][1:], world.executor.finals[1][1:],
                                                  strict=True)] == [True] * 3
    hit = World(model, kda_mode="chunk").run(request(2, [*prompt[:300], *tokens(7, 50)], 1))
    assert hit.engine.probe(prompt).hit == 256 or hit.engine.probe(prompt).hit == 0
    logits, held = model.forward(prompt, kda_mode="chunk")
    same(model, whole.executor.finals[1], held)
    assert int(logits[-1].argmax()) == whole.answers[1][0]


def test_chunk_form_leaves_decode_and_speculation_alone(model: Model) -> None:
    prompts = [tokens(i, 70 + 30 * i) for i in range(3)]
    many = [request(i, prompt, 20) for i, prompt in enumerate(prompts)]
    plain = World(model, kda_mode="chunk", caching=False, max_running=1).run(*many)
    drafts = Script(model, prompts, 20, 3)
    drafts.texts = [(len(prompt), prompt + plain.answers[i]) for i, prompt in enumerate(prompts)]
    world = World(model, kda_mode="chunk", drafter=drafts, window=6).run(*many)
    assert world.answers == plain.answers
    for i in range(3):
        for mine, other in zip(world.executor.finals[i], plain.executor.finals[i], strict=True):
            assert torch.equal(torch.as_tensor(mine), torch.as_tensor(other))
    with pytest.raises(ValueError, match="recurrent or chunk"):
        World(model, kda_mode="other")
