"""The situations that are measured are what they say."""

from __future__ import annotations

import numpy as np
import pytest

from bench import cases, heap, ours
from bench.cases import Decoding, Publisher
from k3mem.radix import Kind, Match


def test_publishing_goes_on_from_the_last_chunk() -> None:
    case = Publisher(4 * 128, 128)
    for left in (384, 256, 128, 0):
        case.publish()
        assert case.left == left
    case.tree.check()
    assert case.tree.counters()[:3] == (5, 4, 8)


def test_leaves_have_a_page_and_a_checkpoint_each() -> None:
    tree = cases.leaves(50)
    count = tree.counters()
    assert (count.nodes, count.checkpoints, count.kv_pages) == (51, 50, 50)
    victim = tree.evict()
    assert victim is not None and len(victim.pages) == 1


def test_an_edge_matches_whole_and_equals_its_copy() -> None:
    case = cases.one_edge(256)
    assert case.memcmp() == 0
    found = case.match()
    assert isinstance(found, Match) and found.depth == found.kv == 256


def test_all_requests_decode_and_one_step_commits_a_token_of_each() -> None:
    case = Decoding(cases.decoding_requests(8, 100, 40), 4 << 30)
    before = case.engine.stats()["output_tokens"]
    case.step()
    assert case.executor.rows[-1] == (8, 0)
    assert case.engine.stats()["output_tokens"] == before + 8
    case.engine.run()
    case.engine.check()
    assert case.engine.stats()["output_tokens"] == 8 * 40


def test_requests_too_short_to_decode_together_are_refused() -> None:
    with pytest.raises(RuntimeError, match="longer outputs"):
        Decoding(cases.decoding_requests(4, 100, 2), 4 << 30)


def test_a_planted_prompt_has_its_checkpoints() -> None:
    tree = cases.new_tree()
    prompt, output = cases.tokens(1000), cases.tokens(30, 1)
    page = ours.plant(tree, prompt, output, 0)
    assert page == 17
    found = tree.match(cases.SCOPE, np.concatenate([prompt, output]))
    assert (found.depth, tree.info(found.node).kind) == (1029, Kind.ANSWER_END)
    tree.check()


def test_metadata_of_one_page_nodes_is_below_the_target() -> None:
    got = ours.overhead(lambda: cases.leaves(5000))
    assert got["counted"] <= 100
    if heap.in_use() is None:
        pytest.skip("this C library does not tell what its heap holds")
    assert 0 < got["real"] <= 100
