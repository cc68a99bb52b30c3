"""The arena: pages and states taken and given back."""

from __future__ import annotations

from typing import Any

import pytest

from bench import cases


@pytest.mark.parametrize("pages", [1, 128, 8192])
def test_take_and_free(benchmark: Any, pages: int) -> None:
    benchmark(cases.arena_pair(pages))
