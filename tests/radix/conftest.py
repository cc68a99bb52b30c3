from __future__ import annotations

import pytest
from tree_writer import Writer


@pytest.fixture
def w() -> Writer:
    """A fresh tree under plain LRU."""
    return Writer()
