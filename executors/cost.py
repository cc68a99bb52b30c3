"""The cost model of the `sim` executor: how long a step takes, from plain numbers.

The time of a step is one expression, `CostModel.step_us`, that takes integers or arrays of them. A run of steps is
the cumulative sum of that expression over an array, in the same order of floating-point operations, so that k steps
at once end at bit-identically the same times as one after another.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from k3mem.errors import K3MemError
from k3mem.types import Float64, Int64

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NOMINAL = Path(__file__).with_name("k3-tp8-nominal.toml")
"""The packaged default."""

N = TypeVar("N", int, Int64)


class InvalidCost(K3MemError, ValueError):
    """A cost file that cannot be read, or a key that is unknown, missing, no number, or out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Microseconds of one step, linear in what it does.

    The context c of a row is the number of tokens in KV before the row: its lane's absorbed depth when it starts.
    """

    name: str
    base: float
    """Every step with rows."""
    prefill_token: float
    prefill_context: float
    """Per thousand of sum(tokens x context) over PREFILL rows."""
    row: float
    """Per DECODE row."""
    context: float
    """Per thousand of sum(context) over DECODE and VERIFY rows."""
    verify_token: float
    """Per token of VERIFY windows, the sum rounded up to `verify_tile`."""
    verify_tile: int
    idle: float
    """A step without rows, whatever it copies."""
    copy_bytes_per_us: float
    """Bytes read plus bytes written."""
    host_link_bytes_per_us: float
    max_batch_tokens: int
    max_running: int

    def __post_init__(self) -> None:
        for key, kind in _NUMBERS.items():
            value = getattr(self, key)
            whole = kind == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise InvalidCost(f"{key} must be {'a whole number' if whole else 'a number'}, got {value!r}")
            if not math.isfinite(value) or value < 0:
                raise InvalidCost(f"{key} must be finite and >= 0, got {value}")
            if value == 0 and (whole or key.endswith("_bytes_per_us")):
                raise InvalidCost(f"{key} must be > 0")
        if not isinstance(self.name, str) or not self.name:
            raise InvalidCost(f"name must be a non-empty string, got {self.name!r}")

    @property
    def hash(self) -> str:
        """16 hex digits of SHA-256 over all numbers, sorted by key; the name and the file's layout do not count."""
        text = "".join(f"{key}={float(getattr(self, key))!r}\n" for key in sorted(_NUMBERS))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def step_us(
        self,
        *,
        prefill_tokens: int = 0,
        prefill_context: int = 0,
        decode_rows: int = 0,
        context_sum: N,
        verify_tokens: int = 0,
        copied_bytes: N,
    ) -> Any:
        """Microseconds of one step, or of each of k steps where `context_sum` and `copied_bytes` are int64 arrays.

        `prefill_context` is sum(tokens x context) over PREFILL rows, `context_sum` is sum(context) over DECODE and
        VERIFY rows, `verify_tokens` the sum of VERIFY windows, `copied_bytes` what is read plus what is written.
        """
        if not (prefill_tokens or decode_rows or verify_tokens):
            return self.idle
        tiles = -(-verify_tokens // self.verify_tile)
        return (
            self.base
            + self.prefill_token * prefill_tokens
            + self.prefill_context * prefill_context / 1000
            + self.row * decode_rows
            + self.context * context_sum / 1000
            + self.verify_token * (tiles * self.verify_tile)
            + copied_bytes / self.copy_bytes_per_us
        )

    def decode_times(
        self,
        rows: int,
        context_sum: int,
        k: int,
        *,
        start: float = 0.0,
        live: Int64 | None = None,
        copied: Int64 | None = None,
    ) -> Float64:
        """Ends, in seconds, of k DECODE steps of the same `rows` rows that begin at `start`. Shape [k], O(k).

        `context_sum` is the sum of contexts at the first step. Every step adds one token to each row, or to `live[j]`
        of the rows in step j (shape [k], rows of ended lanes add none). `copied` is each step's copied bytes [k].
        Bit-identical to k times `end += step_us(...) * 1e-6` from `end = start`.
        """
        if live is None:
            contexts = context_sum + rows * np.arange(k, dtype=np.int64)
        else:
            contexts = np.empty(k, np.int64)
            contexts[0] = context_sum
            np.cumsum(live[:-1], out=contexts[1:])
            contexts[1:] += context_sum
        none = np.zeros(k, np.int64) if copied is None else copied
        ends = np.empty(k + 1)
        ends[0] = start
        ends[1:] = self.step_us(decode_rows=rows, context_sum=contexts, copied_bytes=none) * 1e-6
        return np.add.accumulate(ends)[1:]

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> CostModel:
        """Raises InvalidCost naming the key that is unknown, missing or out of range."""
        known = {"name", *_NUMBERS}
        for key in data:
            if key not in known:
                raise InvalidCost(f"unknown key {key!r}")
        for key in sorted(known):
            if key not in data:
                raise InvalidCost(f"key {key!r} is missing")
        return cls(**data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostModel:
        """Read a TOML file. Raises InvalidCost naming the file and the reason."""
        try:
            return cls.from_mapping(tomllib.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise InvalidCost(f"{path}: {error.strerror or error}") from error
        except (InvalidCost, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidCost(f"{path}: {error}") from error


_NUMBERS = {f.name: str(f.type) for f in fields(CostModel) if f.name != "name"}


@cache
def nominal() -> CostModel:
    """The packaged K3 TP8 figures: a pinned yardstick, not a claim about any machine."""
    return CostModel.load(NOMINAL)
