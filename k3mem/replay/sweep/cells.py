"""The cells of a sweep, and how one is run: by the same functions as a replay alone."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

from k3mem.errors import K3MemError
from k3mem.executors.cost import CostModel, nominal
from k3mem.replay.options import ReplayOptions
from k3mem.replay.report import build
from k3mem.replay.run import run
from k3mem.replay.trace import Trace, load
from k3mem.shape import Shape
from k3mem.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What all cells of a sweep share; plain values, so that any process can take them up. Paths are absolute."""

    paths: tuple[str, ...]
    skip_bad: bool = False
    limit: int | None = None
    tokenizer: str | None = None
    block: int | None = None
    shape: str = "kimi-k3"
    config: str | None = None
    tp: int = 8
    page: int = 64
    cost: str | None = None

    def trace(self) -> Trace:
        """Read once a process. Raises BadTrace, OSError."""
        return _trace(self)

    def geometry(self) -> Shape:
        """Raises InvalidShape, OSError."""
        if self.config is not None:
            return Shape.from_config(Path(self.config), self.tp, page_tokens=self.page)
        return Shape.preset(self.shape, self.tp, page_tokens=self.page)

    def cost_model(self) -> CostModel:
        """Raises BadCostModel, OSError."""
        return nominal() if self.cost is None else CostModel.load(Path(self.cost))

    def digest(self) -> str:
        """Names the inputs by their contents and the code that reads them: results of other contents, or by other code,
        are results of something else. O(bytes)."""
        found = hashlib.blake2b(digest_size=16)
        files = [*self.paths, *(path for path in (self.tokenizer, self.config, self.cost) if path is not None)]
        for path in (*files, *_code()):
            with open(path, "rb") as file:
                found.update(hashlib.sha256(file.read()).digest())
        about = {**asdict(self), "paths": [Path(path).name for path in self.paths], "tokenizer": None, "config": None,
                 "cost": self.cost_model().hash, "geometry": asdict(self.geometry())}
        found.update(json.dumps(about, sort_keys=True, default=str).encode())
        return found.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One replay, or (`mode` bound) one clairvoyant bound. Fields as in `ReplayOptions`."""

    mode: Literal["arrival", "timed", "bound"]
    pool_bytes: int
    policy: str = ""
    concurrency: int | None = None
    admission: Literal["off", "on", "auto"] | None = None
    admission_bound: float | None = None
    gap_cap: float | None = None
    series: int = 0
    seed: int = 0

    @property
    def label(self) -> str:
        """For people: unlike that of any other cell of a sweep."""
        facts = [self.policy if self.mode != "bound" else "bound",
                 format_size(self.pool_bytes) if self.pool_bytes else "unlimited",
                 *([f"{self.concurrency} at once"] if self.concurrency is not None else []),
                 *([f"admission {self.admission}"] if self.admission is not None else [])]
        return ", ".join(facts)

    def key(self, digest: str) -> str:
        """Names the cell of these inputs."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(f"{digest} {text}".encode(), digest_size=16).hexdigest()

    def options(self, inputs: Inputs) -> ReplayOptions:
        """Raises BadOption."""
        chosen = {name: getattr(self, name) for name in ("concurrency", "admission", "admission_bound", "gap_cap")}
        return ReplayOptions(
            mode="timed" if self.mode == "timed" else "arrival", pool_bytes=self.pool_bytes, page_tokens=inputs.page,
            policy=self.policy or ReplayOptions().policy, limit=inputs.limit, seed=self.seed, series=self.series,
            cost=inputs.cost_model() if self.mode == "timed" else None,
            **{name: value for name, value in chosen.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a cell: a report (that of `k3mem replay` or `k3mem bound`), or why there is none."""

    cell: Cell
    report: dict[str, Any] | None
    error: str | None = None
    cpu_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self.cell), "error": self.error, "cpu_seconds": round(self.cpu_seconds, 3),
                "report": self.report}


def grid(mode: Literal["arrival", "timed"], pools: Sequence[int], policies: Sequence[str],
         concurrency: Sequence[int] = (), admission: Sequence[Literal["off", "on", "auto"]] = (), *,
         bound: bool = True, series: int = 0, gap_cap: float | None = None, admission_bound: float | None = None,
         seed: int = 0) -> list[Cell]:
    """Every combination once, the largest pools first (they tend to be the quickest, so something shows soon); in
    arrival order with `bound` the clairvoyant bound of each limited pool too."""
    pools = sorted(set(pools), key=lambda pool: (pool == 0, pool), reverse=True)
    if mode == "arrival":
        cells = [Cell(mode=mode, pool_bytes=pool, policy=policy, seed=seed)
                 for pool, policy in product(pools, dict.fromkeys(policies))]
        return cells + [Cell(mode="bound", pool_bytes=pool) for pool in pools if bound and pool]
    return [
        Cell(mode=mode, pool_bytes=pool, policy=policy, concurrency=many, admission=held, series=series,
             gap_cap=gap_cap, admission_bound=None if held == "off" else admission_bound, seed=seed)
        for pool, policy, many, held in product(pools, dict.fromkeys(policies), sorted(set(concurrency)),
                                                dict.fromkeys(admission))
    ]


def run_cell(inputs: Inputs, cell: Cell) -> Outcome:
    """Run one cell in this process. Whatever goes wrong becomes the outcome's error."""
    began = time.process_time()
    try:
        report, error = _report(inputs, cell), None
    except (K3MemError, OSError) as e:
        report, error = None, str(e)
    except Exception as e:  # a fault of ours: the other cells are worth having all the same
        report, error = None, f"{type(e).__name__}: {e}"
    return Outcome(cell, report, error, time.process_time() - began)


def _report(inputs: Inputs, cell: Cell) -> dict[str, Any]:
    trace, shape, options = inputs.trace(), inputs.geometry(), cell.options(inputs)
    options.check_fit(shape)
    if cell.mode == "bound":
        from k3mem.replay.bound import run_bound

        return run_bound(trace, shape, options, _quiet)
    return build(run(trace, shape, options, _quiet))


def _quiet(done: int, total: int) -> None:
    """Nobody looks into a cell."""


@lru_cache(maxsize=1)
def _trace(inputs: Inputs) -> Trace:
    return load(inputs.paths, skip_bad=inputs.skip_bad, limit=inputs.limit, tokenizer=inputs.tokenizer,
                block=inputs.block)


def _code() -> list[str]:
    """Files of the package that decide what a replay gives."""
    from k3mem import executors, native

    parts = [Path(part.__file__ or "").resolve().parent for part in (executors, native)]
    folders = [Path(__file__).resolve().parents[2], *parts]
    found = {path for folder in folders for path in folder.rglob("*.py")} | set(folders[-1].glob("_core.*so"))
    return sorted(str(path) for path in found if "fuzz" not in path.parts)
