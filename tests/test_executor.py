"""Executors are found by their entry point."""

from __future__ import annotations

import pytest

from k3mem.executor import Executor, find


@pytest.mark.parametrize("name", ["mock", "sim"])
def test_the_packages_own_executors_are_registered(name: str) -> None:
    assert isinstance(find(name)(), Executor)


def test_an_unknown_executor_is_named_beside_the_known_ones() -> None:
    with pytest.raises(LookupError, match="tpu.*mock.*sim"):
        find("tpu")
