"""The mock executor: shadow memory in place of tensors, made so that no known scheduler fault escapes it."""

from k3mem.executors.mock.audit import Entry
from k3mem.executors.mock.executor import MockExecutor, MockTicket
from k3mem.executors.mock.faults import Fault, Faults
from k3mem.executors.mock.fresh import FreshState, fresh_output, fresh_rows, fresh_state

__all__ = [
    "Entry", "Fault", "Faults", "FreshState", "MockExecutor", "MockTicket", "fresh_output", "fresh_rows", "fresh_state",
]
