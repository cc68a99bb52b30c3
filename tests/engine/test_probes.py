"""What a conversation finds in the cache: the behaviours that users of other engines miss. Page 64, grid 64."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.engine import Engine
from k3mem.executors.sim import SimExecutor
from k3mem.plan import Sampling
from k3mem.policy import Policy
from k3mem.request import Request
from k3mem.shape import Shape
from k3mem.types import Int32

SHAPE = Shape.kimi_k3(tp=8)


def tokens(count: int, seed: int) -> Int32:
    return np.random.default_rng(seed).integers(0, SHAPE.vocab_size, count, np.int32)


def engine(capacity: int = 16 << 30, **policy: object) -> Engine:
    executor = SimExecutor()
    return Engine(SHAPE, executor, capacity, Policy(**policy), clock=executor.clock)  # type: ignore[arg-type]


def turn(e: Engine, id: str, prompt: Int32, new: int, **options: object) -> Int32:
    """Run one request alone; prompt and answer."""
    answer = tokens(new, hash(len(prompt)) % 1000 + 7)
    e.submit(Request(id, prompt, new, sampling=Sampling(script=answer.tobytes()), **options))
    got = [token for out in e.run() for token in out.tokens]
    assert got == answer.tolist()
    e.check()
    return np.concatenate([prompt, answer])


def test_a_fork_s_own_next_turn_resumes_its_whole_previous_turn() -> None:
    e = engine()
    a = turn(e, "a", tokens(4096, 1), 100)
    prompt = np.concatenate([a[:2048], tokens(1000, 2)])
    assert e.probe(prompt).known == 2048
    b = turn(e, "b", prompt, 100)
    hit = e.probe(np.concatenate([b, tokens(50, 3)]))
    assert hit.hit == len(b) - 1  # all but the newest token, which nobody has absorbed
    # And whoever forks at the same place next finds what b left there.
    assert e.probe(np.concatenate([a[:2048], tokens(1000, 4)])).hit == 2048


@pytest.mark.parametrize(("length", "new"), [(1000, 200), (1024, 1), (63, 2), (64, 64), (8192, 10)])
def test_the_next_turn_resumes_the_whole_answer(length: int, new: int) -> None:
    e = engine()
    first = turn(e, "a", tokens(length, 1), new)
    hit = e.probe(np.concatenate([first, tokens(30, 2)]))
    assert hit.hit == length + new - 1
    turn(e, "b", np.concatenate([first, tokens(30, 2)]), 5)
    stats = e.stats()
    assert stats["hit_tokens"] == length + new - 1
    assert stats["prefill_tokens"] == length + 30 + 1


def test_the_same_prompt_twice_hits_the_largest_grid_depth_below_its_end() -> None:
    e = engine()
    prompt = tokens(1000, 1)
    turn(e, "a", prompt, 50)
    hit = e.probe(prompt)
    assert (hit.hit, hit.input, hit.causes) == (960, 1000, {"last_token": 1, "off_grid": 39})
    turn(e, "b", prompt, 50)
    assert e.stats()["hit_tokens"] == 960


def test_a_turn_on_the_grid_hits_one_grid_step_less() -> None:
    """A prompt's last token is computed: a checkpoint at its very end would be of no use to the same prompt."""
    e = engine()
    prompt = tokens(1024, 1)
    turn(e, "a", prompt, 50)
    assert e.probe(prompt).hit == 960


def test_with_the_only_state_of_a_session_goes_the_kv_that_only_it_needed() -> None:
    e = engine(prompt_ends=False, chunk_ends=False)
    first = turn(e, "a", tokens(3000, 1), 100)
    before = e.stats()
    assert (before["tree"]["checkpoints"], before["tree"]["kv_pages"]) == (1, -(-3099 // 64))
    victim = e.scheduler.core.cache.tree.evict()
    assert victim is not None
    assert (victim.depth, len(victim.pages)) == (3099, -(-3099 // 64))
    e.scheduler.core.cache.discard(victim)
    e.check()
    after = e.stats()
    assert (after["tree"]["checkpoints"], after["tree"]["kv_pages"], after["arena"]["live_pages"]) == (0, 0, 0)
    hit = e.probe(first)
    assert (hit.hit, hit.kv_match, hit.known) == (0, 0, 3099)
    assert hit.causes["kv_evicted"] > 3000


def test_a_ghost_remembers_the_fork() -> None:
    """Everything of a is evicted; b forks from it all the same at the depth where a is known, and c resumes there."""
    e = engine()
    a = turn(e, "a", tokens(4096, 1), 100)
    e.scheduler.core.cache.give_back(_evict_all(e))
    prompt = np.concatenate([a[:2048], tokens(1000, 2)])
    hit = e.probe(prompt)
    assert (hit.hit, hit.known) == (0, 2048)
    turn(e, "b", prompt, 10)
    assert e.probe(np.concatenate([a[:2048], tokens(1000, 3)])).hit == 2048


def _evict_all(e: Engine):  # type: ignore[no-untyped-def]
    """Evict everything, victim by victim; nothing is left to give back."""
    cache = e.scheduler.core.cache
    while (victim := cache.tree.evict()) is not None:
        cache.discard(victim)
    return cache.tree.drop(1 << 60)


def test_pressure_takes_the_stranded_state_and_its_kv_together() -> None:
    """Sessions of 2,000 tokens through an arena that holds few: what is live is always what checkpoints need."""
    e = engine(capacity=8 * SHAPE.state_bytes + 6000 * SHAPE.token_bytes)
    for i in range(12):
        turn(e, f"s{i}", tokens(2000, i), 40)
        tree = e.scheduler.core.cache.tree
        walk = tree.walk()
        covered = {int(p) for node, state in zip(walk.node, walk.state, strict=True) if state >= 0
                   for p in tree.pages(int(node)).tolist()}
        assert e.stats()["arena"]["live_pages"] == len(covered)
    assert e.stats()["evicted"] > 5
