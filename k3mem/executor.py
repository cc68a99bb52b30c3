"""The executor protocol: everything k3mem asks of whoever runs the model.

An executor obeys plans and decides nothing. It sees `Layout` once, then plans; never requests, tree or pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from k3mem.plan import Plan, Result
from k3mem.shape import Shape

Ticket = Any
"""Whatever an executor's `launch` returns for its `collect`."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an executor can do; checked when the engine is made."""

    capture: Literal["any", "grid", "final"] = "any"
    """Which depths inside a PREFILL row a snapshot may name. `any`: every depth. `grid`: depths d with
    (d - start) % state_chunk == 0, and the row's end. `final`: the row's end only."""
    verify: bool = True
    """Runs VERIFY rows: records each row's inputs and folds exactly the accepted prefix."""
    max_window: int = 16
    """Largest VERIFY window (1 + drafts)."""
    fast_forward: bool = False
    """Has `fast_forward` and runs plans with repeat > 1."""
    same_bits: bool = True
    """Prefill and decode of the same tokens leave the same bits in states and KV. Where they do not,
    `Policy.deterministic` keeps checkpoints that prefill made, and no others."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The arena's geometry and the sizes of all tables. Places count from 0; see `k3mem.types`."""

    shape: Shape
    capacity_bytes: int
    """All bytes that the executor owns for pages, states and scratch."""
    state_top: int
    """States grow down from this byte; [state_top, capacity_bytes) is scratch and padding."""
    page_ids: int
    """Page ids are 0 .. page_ids - 1. Id 0 is the sink page at place 0: padding rows may write there."""
    state_ids: int
    """State ids are 0 .. state_ids - 1. Id 0 is the sink state at place 0."""
    lanes: int
    """Lanes are 0 .. lanes - 1."""


@runtime_checkable
class Executor(Protocol):
    """Runs plans in the order of their launch."""

    @property
    def capabilities(self) -> Capabilities: ...

    def attach(self, layout: Layout) -> None:
        """Called once by the engine before the first plan, and again after `resize`. Contents are undefined."""
        ...

    def launch(self, plan: Plan) -> Ticket:
        """Start a plan and return at once. Raises StepFailed."""
        ...

    def collect(self, ticket: Ticket) -> Result:
        """Wait for a launched plan; called in launch order. Raises StepFailed for it; later tickets are then dropped
        and the next plan launched is a resync."""
        ...


def find(name: str) -> type[Executor]:
    """The executor registered as `name` under the entry-point group `k3mem.executors`, by whichever package.

    Raises LookupError naming what is registered.
    """
    from importlib.metadata import entry_points

    known = {point.name: point for point in entry_points(group="k3mem.executors")}
    if name not in known:
        raise LookupError(f"no executor {name!r} is registered under k3mem.executors; there are {sorted(known)}")
    found: type[Executor] = known[name].load()
    return found
