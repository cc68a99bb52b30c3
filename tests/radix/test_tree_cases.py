"""Known failures of other systems, by case id, as far as a tree without a scheduler shows them. Grid 64."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.errors import Corrupted
from k3mem.radix import Kind, Lru, Match, Tree
from k3mem.types import Int32

A = np.arange(1000, 1400, dtype=np.int32)
B = np.arange(5000, 5400, dtype=np.int32)


class Cache:
    """What a scheduler would do: publish checkpoints of a prompt at given depths, match all but the last token."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.tree = Tree(page, 64, Lru(()))
        self.scope = self.tree.new_scope()
        self.ids = 0

    def run(self, tokens: Int32, *depths: int) -> list[int]:
        """Publish `tokens` from the node that a match resumes at; returns the checkpoints' nodes."""
        start = self.match(tokens)
        pages = self.tree.pages(start.node)[: start.depth // self.page].tolist()
        node, out = start.node, []
        for depth in depths:
            if depth <= start.depth:
                continue
            while len(pages) < -(-depth // self.page):
                self.ids += 1
                pages.append(self.ids)
            self.ids += 1
            got = self.tree.publish(node, tokens, depth, pages, self.ids, Kind.HINT, 1)
            for index, page in got.replaced:
                pages[index] = page
            node = got.node
            out.append(node)
        self.tree.check()
        return out

    def match(self, tokens: Int32) -> Match:
        got = self.tree.match(self.scope, tokens, len(tokens) - 1)
        assert self.tree.info(got.node).depth == got.depth
        assert self.tree.info(got.node).state == got.state
        return got

    def evict_all(self) -> None:
        while self.tree.evict():
            self.tree.check()


@pytest.fixture(params=[1, 16, 64])
def cache(request: pytest.FixtureRequest) -> Cache:
    return Cache(request.param)


def test_radix_1_a_state_is_never_filed_under_a_shorter_prefix(cache: Cache) -> None:
    cache.run(A, 64, 128)
    second = np.concatenate([A[:96], B[:96]])
    cache.run(second, 192)
    third = cache.match(np.concatenate([A[:96], B[200:210]]))
    assert (third.depth, third.known) == (64, 96)
    assert cache.tree.match(cache.scope, second).depth == 192
    assert {int(d) for d, s in zip(*cache.tree.walk()[1:3], strict=True) if s >= 0} == {64, 128, 192}


def test_radix_2_an_identical_prompt_resumes_below_its_end(cache: Cache) -> None:
    cache.run(A[:128], 64, 128)
    assert cache.match(A[:128]).depth == 64
    assert cache.match(np.concatenate([A[:128], B[:9]])).depth == 128
    assert cache.match(A[:127]).depth == 64


def test_radix_3_a_full_hit_leaves_at_least_one_token(cache: Cache) -> None:
    cache.run(A[:130], 64, 128)
    assert [cache.match(A[:n]).depth for n in (128, 64, 65)] == [64, 0, 64]
    assert [cache.match(A[:n]).full for n in (128, 64, 65)] == [128, 64, 64]


def test_radix_5_kv_without_a_checkpoint_is_no_hit(cache: Cache) -> None:
    nodes = cache.run(A[:256], 64, 128, 192, 256)
    for node in nodes:
        cache.tree.take(node)
    prompt = np.concatenate([A[:256], B[:8]])
    got = cache.match(prompt)
    assert (got.depth, got.state, got.kv, got.evicted) == (0, -1, 256, 256)
    assert cache.tree.publish(nodes[1], A, 128, cache.tree.pages(nodes[1]), 999, Kind.HINT, 2).taken
    got = cache.match(prompt)
    assert (got.depth, got.state, got.kv, got.evicted) == (128, 999, 256, 256)


def test_radix_7_unlock_undoes_exactly_one_lock_at_its_own_node(cache: Cache) -> None:
    top, deep = cache.run(A[:129], 64, 128)
    state = cache.tree.take(top)
    cache.tree.lock(top)
    cache.tree.lock(deep)
    assert cache.tree.publish(top, A, 64, cache.tree.pages(top), state, Kind.HINT, 2).taken
    cache.tree.lock(top)
    cache.tree.unlock(top)
    cache.tree.lock(deep)
    cache.tree.unlock(deep)
    assert (cache.tree.info(top).lock, cache.tree.info(deep).lock) == (1, 1)
    assert cache.tree.evict() is None
    cache.tree.unlock(top)
    cache.tree.unlock(deep)
    with pytest.raises(Corrupted, match="below"):
        cache.tree.unlock(top)
    cache.evict_all()
    count = cache.tree.counters()
    assert (count.checkpoints, count.kv_pages, count.locks) == (0, 0, 0)


def test_radix_8_a_branch_checkpoint_serves_all_that_share_the_prompt(cache: Cache) -> None:
    prompts = [np.concatenate([A[:150], B[70 * i : 70 * (i + 1)] if i < 5 else A[180 + i : 250 + i]])
               for i in range(8)]
    cache.run(prompts[0], 192)
    second = cache.match(prompts[1])
    assert (second.kv, second.depth) == (150, 0)
    cache.run(prompts[1], 128, 192)
    assert [cache.match(p).depth for p in prompts[2:]] == [128] * 6


def test_radix_12_a_branch_takes_nothing_from_another(cache: Cache) -> None:
    cache.run(A[:200], 64, 128, 192)
    second, fourth = np.concatenate([A[:150], B[:50]]), np.concatenate([A[:70], B[:90]])
    assert cache.match(second).depth == 128
    cache.run(second, 192)
    assert cache.match(A[:200]).depth == 192
    assert cache.match(fourth).depth == 64
    cache.run(fourth, 128)
    assert cache.match(A[:200]).depth == 192
    assert cache.match(np.concatenate([second, B[:1]])).depth == 192
