"""Where the peers' scripts and the workloads lie, and where the peers are installed.

Nothing of it is part of the project: the scripts are found as `bench` under $K3MEM_SHARED (default: `shared/` beside
the checkout), the peers under $PEERS (default: ~/.cache/k3mem-peers).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

from k3mem.types import Int32

ROOT = Path(__file__).resolve().parent.parent

Raw = tuple[Sequence[int], Sequence[int]]
Pair = tuple[Int32, Int32]
"""One request: prompt and output, token ids."""


class Absent(Exception):
    """Something outside the project is not there; the message says what and how to get it."""


def shared() -> Path:
    """The folder of shared data, whether it exists or not."""
    return Path(os.environ.get("K3MEM_SHARED", ROOT.parent / "shared"))


def scripts() -> Path:
    """The folder of the peers' scripts. Raises Absent."""
    folder = shared() / "bench"
    if not (folder / "workloads.py").exists():
        raise Absent(f"{folder} has no workloads.py: set K3MEM_SHARED to the folder of shared data")
    return folder


def trace(name: str) -> Path:
    """A trace file of the shared data. Raises Absent."""
    path = shared() / "traces" / name
    if not path.exists():
        raise Absent(f"{path} is absent: set K3MEM_SHARED to the folder of shared data")
    return path


def peers() -> Path:
    """The folder where the peers are installed, whether they are or not."""
    return Path(os.environ.get("PEERS", Path.home() / ".cache" / "k3mem-peers"))


def interpreter(peer: str) -> Path:
    """The Python of a peer's own environment. Raises Absent."""
    path = peers() / peer / "bin" / "python"
    ready = peers() / peer / ".done"
    source = peers() / "vllm_src" / ".done"
    if not (path.exists() and ready.exists() and (peer != "vllm" or source.exists())):
        raise Absent(f"{peer} is not installed under {peers()}: run `python -m bench.setup_peers` (set PEERS for "
                     "another folder)")
    return path


@cache
def workloads() -> ModuleType:
    """The module that makes request lists. Raises Absent."""
    spec = importlib.util.spec_from_file_location("workloads", scripts() / "workloads.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_int32(requests: Sequence[Raw]) -> list[Pair]:
    """Requests as int32 arrays: converted once, as at submit."""
    return [(np.array(prompt, np.int32), np.array(output, np.int32)) for prompt, output in requests]


@cache
def make_agentic() -> list[Pair]:
    """512 requests of 64 sessions with tools and retries, mean prompt 11 k tokens. Raises Absent."""
    return as_int32(workloads().make_agentic())


@cache
def agentic() -> list[Pair]:
    """2,000 requests: 200 sessions of 10 turns, one system prompt. Raises Absent."""
    return as_int32(workloads().agentic(200, 10))
