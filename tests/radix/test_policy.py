"""Policies as data."""

from __future__ import annotations

import numpy as np
import pytest

from k3mem.radix import EvictionPolicy, Kind, Lru, Tree
from k3mem.types import UInt8


class Wrong:
    """A policy with a table of its own."""

    def __init__(self, table: UInt8) -> None:
        self.table = table

    def classes(self) -> UInt8:
        return self.table


def test_superseded_kinds_have_the_first_class() -> None:
    table = Lru((Kind.CHUNK_END, Kind.PROMPT_END)).classes()
    assert {(int(k), int(s)) for k, s in np.argwhere(table == 0)} == {(Kind.CHUNK_END, 1), (Kind.PROMPT_END, 1)}


def test_plain_lru_knows_one_class() -> None:
    assert len(np.unique(Lru(()).classes())) == 1


def test_lru_is_a_policy() -> None:
    assert isinstance(Lru(), EvictionPolicy)


@pytest.mark.parametrize("table", [np.zeros((3, 2), np.uint8), np.full((len(Kind), 2), 255, np.uint8)])
def test_a_table_of_another_form_is_refused(table: UInt8) -> None:
    with pytest.raises(ValueError, match="classes"):
        Tree(4, 4, Wrong(table))
