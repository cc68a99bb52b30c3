"""A whole step: plan, launch, commit; and a whole request of the cache alone."""

from __future__ import annotations

from typing import Any

import pytest

from bench import cases, shared
from bench.direct import Direct
from bench.serve import K3, same_bytes
from k3mem import Policy


def test_step_of_256_decoding(benchmark: Any) -> None:
    benchmark.pedantic(cases.Decoding(cases.decoding_requests()).step, rounds=400)


def test_whole_workload_of_the_cache_alone(benchmark: Any) -> None:
    try:
        pairs = shared.make_agentic()
    except shared.Absent as e:
        pytest.skip(str(e))
    benchmark.pedantic(lambda direct: direct.run(pairs, 4), rounds=3,
                       setup=lambda: ((Direct(K3, Policy(), same_bytes()),), {}))
