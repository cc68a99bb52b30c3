"""What a step of verify rows costs: microseconds over (rows, tokens, context), flat treads and risers between them.

    us |              ____        A kernel computes whole tiles, so a step of 65 tokens takes as long as one of 128.
       |         ____|            Only the last token count of a tread is worth considering: its `edges`.
       |    ____|
       |___|________________ tokens

`tokens` are those of all windows: each row's current token and the drafts that it verifies. `context` is the sum of
the rows' depths.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from k3mem.errors import K3MemError
from k3mem.types import Float64, Int64


class InvalidSurface(K3MemError, ValueError):
    """A surface's file that cannot be read, or a number in it that is missing, unknown or out of range."""


class Surface(Protocol):
    """Microseconds of a step. Must be positive; need not be monotone."""

    def step_us(self, rows: int, tokens: Int64, context: int) -> Float64:
        """[n] microseconds of a step of `rows` rows with tokens[i] tokens in all, at `context` tokens of context."""
        ...

    def edges(self, first: int, last: int) -> Int64:
        """Token counts from `first` to `last`, ascending, that end a tread; `last` is one of them. All counts where
        there are no treads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stairs:
    """bias + per_row x rows + per_token x (tokens rounded up to `tile`) + per_context x context / 1000. Raises
    InvalidSurface."""

    bias: float
    per_row: float = 0.0
    per_token: float
    tile: int = 1
    per_context: float = 0.0

    def __post_init__(self) -> None:
        for key in ("bias", "per_row", "per_token", "per_context"):
            _number(key, getattr(self, key))
        if isinstance(self.tile, bool) or not isinstance(self.tile, int) or self.tile < 1:
            raise InvalidSurface(f"tile must be a whole number >= 1, got {self.tile!r}")
        if self.bias + self.per_token <= 0:
            raise InvalidSurface("a step must take time: bias or per_token must be positive")

    def step_us(self, rows: int, tokens: Int64, context: int) -> Float64:
        whole = (-(-tokens // self.tile) * self.tile).astype(np.float64)
        return self.bias + self.per_row * rows + self.per_context * context / 1000 + self.per_token * whole

    def edges(self, first: int, last: int) -> Int64:
        inner = np.arange(-(-first // self.tile) * self.tile, last, self.tile, dtype=np.int64)
        return np.append(inner, last)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Treads:
    """A measured surface: a tread ends at `ends[i]` tokens and takes `levels[i]` microseconds, [treads] each; beyond
    the last one treads go on as they did. per_row and per_context as in `Stairs`. Raises InvalidSurface."""

    ends: Int64
    levels: Float64
    per_row: float = 0.0
    per_context: float = 0.0

    def __post_init__(self) -> None:
        if len(self.ends) < 1 or len(self.ends) != len(self.levels):
            raise InvalidSurface(f"{len(self.ends)} ends of treads and {len(self.levels)} levels: there must be one "
                                 "level a tread, and at least one tread")
        if self.ends[0] < 1 or (np.diff(self.ends) < 1).any():
            raise InvalidSurface("ends of treads must ascend from 1")
        if not (np.isfinite(self.levels).all() and (self.levels > 0).all()):
            raise InvalidSurface("levels must be finite and positive")
        for key in ("per_row", "per_context"):
            _number(key, getattr(self, key))

    def step_us(self, rows: int, tokens: Int64, context: int) -> Float64:
        at = np.searchsorted(self.ends, tokens, side="left")
        last = len(self.ends) - 1
        level = self.levels[np.minimum(at, last)]
        length, rise = self._beyond
        extra = np.maximum(0, -(-(tokens - self.ends[last]) // length))
        out: Float64 = level + rise * extra + self.per_row * rows + self.per_context * context / 1000
        return out

    def edges(self, first: int, last: int) -> Int64:
        length, top = self._beyond[0], int(self.ends[-1])
        begin = top + max(1, -(-(first - top) // length)) * length
        beyond = np.arange(begin, last, length, dtype=np.int64)
        known = self.ends[(self.ends >= first) & (self.ends < last)]
        return np.concatenate([known, beyond, np.array([last], np.int64)])

    @property
    def _beyond(self) -> tuple[int, float]:
        """Length and rise of treads after the last one that was measured."""
        n = len(self.ends)
        if n == 1:
            return int(self.ends[0]), 0.0
        length = max(1, round(float(self.ends[-1] - self.ends[0]) / (n - 1)))
        return length, max(0.0, float(self.levels[-1] - self.levels[0]) / (n - 1))


class Corrected:
    """A surface times what measured steps took more or less than it said, learned as they come.

    Ratios are kept by token count, four cells an octave, and smoothed over neighbours, so that treads stay treads and
    counts that never ran follow those that did. O(edges) a question, O(1) a measurement.
    """

    CELLS = 80
    """Up to 2^20 tokens."""
    MEMORY = 32.0
    """Steps that a cell remembers."""
    WILD = 8.0
    """A step that took so many times more or less says nothing of the surface."""

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self._count = np.zeros(self.CELLS)
        self._log = np.zeros(self.CELLS)
        self._factor = np.ones(self.CELLS)
        distance = np.subtract.outer(np.arange(self.CELLS), np.arange(self.CELLS))
        self._near = np.exp(-0.5 * (distance / 2.0) ** 2)

    def took(self, rows: int, tokens: int, context: int, us: float) -> None:
        """A step of this kind took `us` microseconds."""
        said = float(self.surface.step_us(rows, np.array([tokens]), context)[0])
        if not (us > 0 and 1 / self.WILD < us / said < self.WILD):
            return
        cell = int(round(float(self._cell(np.array([tokens]))[0])))
        self._count[cell] = min(self.MEMORY, self._count[cell] + 1)
        self._log[cell] += (math.log(us / said) - self._log[cell]) / self._count[cell]
        weight = self._near * self._count
        self._factor = np.exp((weight @ self._log) / (weight.sum(1) + 0.5))

    def step_us(self, rows: int, tokens: Int64, context: int) -> Float64:
        """As `Surface.step_us`."""
        factor = np.interp(self._cell(tokens), np.arange(self.CELLS), self._factor)
        out: Float64 = self.surface.step_us(rows, tokens, context) * factor
        return out

    def edges(self, first: int, last: int) -> Int64:
        """As `Surface.edges`."""
        return self.surface.edges(first, last)

    def _cell(self, tokens: Int64) -> Float64:
        out: Float64 = np.minimum(4 * np.log2(np.maximum(tokens, 1)), self.CELLS - 1)
        return out


_ASIDE = {"unit", "window", "draws", "name", "executor", "shape", "kind", "residual_us", "points"}
"""Keys of a file that are for its reader."""


def parse(data: Mapping[str, Any]) -> Stairs | Treads:
    """A surface from plain data: the fields of `Stairs`, or of `Treads` where it has `ends`. Raises InvalidSurface."""
    unit = data.get("unit", "us")
    if unit != "us":
        raise InvalidSurface(f"unit must be us, got {unit!r}")
    kind: type[Stairs] | type[Treads] = Treads if "ends" in data else Stairs
    known = {f.name for f in fields(kind)}
    given = {key: value for key, value in data.items() if key not in _ASIDE}
    if unknown := sorted(set(given) - known):
        raise InvalidSurface(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
    try:
        if kind is Treads:
            given["ends"] = np.asarray(given["ends"], np.int64)
            given["levels"] = np.asarray(given["levels"], np.float64)
        return kind(**given)
    except (TypeError, KeyError, OverflowError) as error:
        raise InvalidSurface(f"not a surface: {error}") from error
    except ValueError as error:
        if isinstance(error, InvalidSurface):
            raise
        raise InvalidSurface(f"not a surface: {error}") from error


def load(path: str | os.PathLike[str]) -> Stairs | Treads:
    """Read a surface's JSON file, such as `k3mem profile` writes. Raises InvalidSurface naming the file."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise InvalidSurface("not a JSON object")
        return parse(data)
    except OSError as error:
        raise InvalidSurface(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidSurface(f"{path}: {error}") from error


def dump(surface: Stairs | Treads, **aside: Any) -> str:
    """JSON that `load` reads; `aside`: more keys for its reader, out of `executor`, `shape`, `window`, ..."""
    if unknown := sorted(set(aside) - _ASIDE):
        raise InvalidSurface(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(_ASIDE))}")
    data = asdict(surface)
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in data.items()}
    return json.dumps({"unit": "us", **aside, **plain}, indent=1)


def _number(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise InvalidSurface(f"{key} must be a finite number >= 0, got {value!r}")
