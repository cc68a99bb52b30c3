"""Speculation: who drafts, what drafts are worth, and which of them a step verifies."""

from k3mem.spec.calibrate import Calibration
from k3mem.spec.draft import Draft, Drafter, Scripted
from k3mem.spec.ngram import NGram
from k3mem.spec.surface import Corrected, InvalidSurface, Stairs, Surface, Treads
from k3mem.spec.verify import Best, Planner, VerifyPlanner, assign, best_budget, survivals

__all__ = [
    "Best", "Calibration", "Corrected", "Draft", "Drafter", "InvalidSurface", "NGram", "Planner", "Scripted", "Stairs",
    "Surface", "Treads", "VerifyPlanner", "assign", "best_budget", "survivals",
]
