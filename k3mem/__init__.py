"""k3mem: memory and scheduling for hybrid linear-attention language models.

The names below load their modules when first used: `import k3mem` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3mem.engine import Engine
    from k3mem.errors import (
        Corrupted,
        Effect,
        ExecutorFailed,
        InvalidRequest,
        InvalidShape,
        K3MemError,
        RequestTooLarge,
        StepFailed,
        UnknownRequest,
    )
    from k3mem.events import Event
    from k3mem.executor import Capabilities, Executor, Layout
    from k3mem.plan import Plan, Result, Sampling
    from k3mem.policy import Policy, SessionAdmission
    from k3mem.request import Hit, Output, Request
    from k3mem.shape import Shape
    from k3mem.spec import Draft, Drafter, NGram, VerifyPlanner

__all__ = [
    "Capabilities", "Corrupted", "Draft", "Drafter", "Effect", "Engine", "Event", "Executor", "ExecutorFailed", "Hit",
    "InvalidRequest", "InvalidShape", "K3MemError", "Layout", "NGram", "Output", "Plan", "Policy", "Request",
    "RequestTooLarge", "Result", "Sampling", "SessionAdmission", "Shape", "StepFailed", "UnknownRequest",
    "VerifyPlanner",
]  # fmt: skip

_HOMES = {
    "engine": ("Engine",),
    "events": ("Event",),
    "executor": ("Capabilities", "Executor", "Layout"),
    "plan": ("Plan", "Result", "Sampling"),
    "policy": ("Policy", "SessionAdmission"),
    "request": ("Hit", "Output", "Request"),
    "shape": ("Shape",),
    "spec": ("Draft", "Drafter", "NGram", "VerifyPlanner"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The public name `name`; what is not of another module is an error class."""
    if name not in __all__:
        raise AttributeError(f"module 'k3mem' has no attribute {name!r}")
    value = getattr(import_module(f"k3mem.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
