"""Runs the executor contract suite."""

import pytest

pytest.register_assert_rewrite("tests.contract_executor")

from tests.contract_executor import *  # noqa: E402, F403
from tests.contract_executor import bench, executor_factory  # noqa: E402, F401
