"""Exceptions. Pressure is a return value; these are for the impossible, the wrong and the broken."""

from __future__ import annotations

from enum import Enum


class K3MemError(Exception):
    """Base of all errors of k3mem."""


class InvalidShape(K3MemError, ValueError):
    """A shape that no arena can hold: negative or unaligned sizes, a page outside 1..512 tokens, and so on."""


class InvalidRequest(K3MemError, ValueError):
    """A request that is wrong in itself: token ids out of range, a duplicate id in flight, negative lengths."""


class RequestTooLarge(K3MemError, ValueError):
    """A request that could never fit, even alone in an empty arena."""


class UnknownRequest(K3MemError, KeyError):
    """No request with this id is waiting or running."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Corrupted(K3MemError, RuntimeError):
    """An invariant is broken. Latched: the engine refuses everything after it."""


class Effect(str, Enum):
    """What a failed step did to the device's bytes."""

    NO_EFFECT = "no_effect"
    """The bytes are as they were before the step; only its results are lost."""
    UNKNOWN = "unknown"
    """Everything the step writes, moves, zeroes, restores or snapshots into may hold anything."""
    CONTENTS_LOST = "contents_lost"
    """Every page, state and checkpoint is gone."""


class StepFailed(K3MemError, RuntimeError):
    """Raised by an executor's `launch` or `collect`: this step, and all launched after it, did not complete."""

    def __init__(self, message: str, effect: Effect = Effect.UNKNOWN) -> None:
        super().__init__(message)
        self.effect = effect


class ExecutorFailed(K3MemError, RuntimeError):
    """Three failed steps without a commit between: the executor does not recover; every request was reported."""
