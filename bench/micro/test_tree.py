"""The token tree: match, publish, evict, lock."""

from __future__ import annotations

from typing import Any

import pytest

from bench import cases, shared
from bench.direct import Direct
from bench.serve import K3, same_bytes
from k3mem import Policy


def test_match_one_long_edge(benchmark: Any) -> None:
    benchmark(cases.one_edge().match)


def test_memcmp_of_the_same_tokens(benchmark: Any) -> None:
    benchmark(cases.one_edge().memcmp)


def test_match_in_a_full_cache(benchmark: Any) -> None:
    """The prompt of median length of `make_agentic()`, after all of it was served."""
    try:
        pairs = shared.make_agentic()
    except shared.Absent as e:
        pytest.skip(str(e))
    direct = Direct(K3, Policy(), same_bytes())
    direct.run(pairs, 4)
    prompt = sorted((prompt for prompt, _ in pairs), key=len)[len(pairs) // 2]
    benchmark(direct.cache.match, direct.scope, prompt, len(prompt) - 1, 1 << 40)


@pytest.mark.parametrize("depth", [cases.CHUNK, cases.LONG], ids=["first", "last"])
def test_publish_a_chunk(benchmark: Any, depth: int) -> None:
    """8 K tokens that end at `depth`."""

    def fresh() -> tuple[tuple[cases.Publisher], dict[str, Any]]:
        case = cases.Publisher()
        while case.depth + case.chunk < depth:
            case.publish()
        return (case,), {}

    benchmark.pedantic(cases.Publisher.publish, setup=fresh, rounds=9)


def test_publish_a_long_prompt(benchmark: Any) -> None:
    def whole(case: cases.Publisher) -> None:
        while case.left:
            case.publish()

    benchmark.pedantic(whole, setup=lambda: ((cases.Publisher(),), {}), rounds=9)


def test_evict_among_many_leaves(benchmark: Any) -> None:
    tree = cases.leaves()
    benchmark.pedantic(tree.evict, rounds=2000)


def test_lock_and_unlock_deep(benchmark: Any) -> None:
    benchmark(cases.lock_pair())
