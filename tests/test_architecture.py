"""The house rules that a reader relies on: who may import whom, and what an import does."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"k3mem": ROOT / "k3mem", "k3mem.executors": ROOT / "executors", "k3mem.native": ROOT / "native",
         "k3mem.fuzz": ROOT / "fuzz"}

GROUND = {"errors", "types", "native", "shape", "units"}
MAY_IMPORT: dict[str, set[str]] = {
    # the ground floor
    "native": set(), "errors": set(), "types": set(), "units": set(), "metrics": set(), "events": set(),
    "shape": {"errors", "types"},
    # what is cached | where bytes are | what one step does: three rooms without doors between them
    "radix": GROUND, "pool": GROUND, "plan": GROUND,
    "policy": GROUND | {"radix"},
    "request": GROUND | {"plan", "radix"},
    "executor": GROUND | {"plan"},
    # what drafts are worth, and sums that ranks do: functions of arrays
    "spec": GROUND, "parallel": GROUND,
    # executors obey plans and see nothing else
    "executors": {"plan", "shape", "errors", "executor", "types", "native", "spec"},
    # the only code that sees tree and pool together
    "sched": GROUND | {"radix", "pool", "plan", "policy", "request", "executor", "metrics", "events", "spec"},
    "engine": GROUND | {"sched", "spec", "plan", "policy", "request", "executor", "events"},
    # what people run
    "profile": GROUND | {"engine", "spec", "plan", "policy", "request", "executor"},
    "replay": GROUND | {"engine", "sched", "radix", "pool", "plan", "policy", "request", "metrics", "executors"},
    "cli_parts": GROUND | {"replay", "executors"},
    "cli_sweep": GROUND | {"replay", "executors", "cli_parts"},
    "cli_generate": GROUND | {"engine", "plan", "policy", "request", "executors", "spec", "cli_parts"},
    "cli_profile": GROUND | {"executor", "executors", "profile", "spec", "cli_parts"},
    "cli": GROUND | {"replay", "executors", "fuzz", "cli_parts", "cli_sweep", "cli_generate", "cli_profile"},
    "__main__": {"cli"},
    "fuzz": GROUND | {"engine", "sched", "radix", "pool", "plan", "policy", "request", "executor", "metrics", "events",
                      "executors", "spec"},
    # the package's face: lazily
    "k3mem": GROUND | {"engine", "executor", "plan", "policy", "request", "events", "spec"},
}
"""Part -> parts that it may import; itself always."""


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module as installed."""
    for package, folder in ROOMS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(p for p in parts if p != "__init__"))), path


MODULES = dict(modules())


def part_of(module: str) -> str:
    """`k3mem.sched.core` -> `sched`; the package itself is `k3mem`."""
    return module.split(".")[1] if "." in module else module


def imports(path: Path, module: str) -> set[str]:
    """Modules of k3mem that a file imports anywhere: at its head, in a function, for the type checker."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import; say k3mem.x"
            base = node.module or ""
            out |= {f"k3mem.{a.name}" for a in node.names} if base == "k3mem" else {base}
    return {name for name in out if name.split(".")[0] == "k3mem"}


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module: str) -> None:
    part = part_of(module)
    wrong = {part_of(name) for name in imports(MODULES[module], module)} - MAY_IMPORT[part] - {part}
    assert not wrong, f"{module} may not import {sorted(wrong)}"


def test_the_rules_name_every_part_and_have_no_cycle() -> None:
    assert {part_of(module) for module in MODULES} == set(MAY_IMPORT)
    left = {part: needs - {part} for part, needs in MAY_IMPORT.items()}
    while left:
        floor = {part for part, needs in left.items() if not needs & left.keys()}
        assert floor, f"cycle among {sorted(left)}"
        left = {part: needs for part, needs in left.items() if part not in floor}


def test_tree_and_pool_do_not_know_each_other() -> None:
    assert "pool" not in MAY_IMPORT["radix"] and "radix" not in MAY_IMPORT["pool"]
    assert {part for part, needs in MAY_IMPORT.items() if "sched" in needs} == {"engine", "replay", "fuzz"}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert (ast.get_docstring(ast.parse(MODULES[module].read_text())) or "").strip()


@pytest.mark.parametrize("module", [m for m in MODULES if m != "k3mem.native.build"])
def test_every_module_has_what_it_exports(module: str) -> None:
    loaded = importlib.import_module(module)
    for name in getattr(loaded, "__all__", ()):
        assert hasattr(loaded, name), f"{module}.__all__ names {name}"


QUIET = """
import logging, multiprocessing, os, sys, threading
handlers, loggers = list(logging.root.handlers), set(logging.root.manager.loggerDict)
import k3mem
assert not {"numpy", "msgspec", "typer"} & sys.modules.keys(), "import k3mem loads what nobody asked for"
[getattr(k3mem, name) for name in k3mem.__all__]
import k3mem.replay.timed, k3mem.replay.arrival, k3mem.executors.mock
assert threading.active_count() == 1, threading.enumerate()
assert not multiprocessing.active_children()
assert logging.root.handlers == handlers
assert not {name for name in set(logging.root.manager.loggerDict) - loggers if name.startswith("k3mem")}
assert not {"torch", "typer", "rich", "matplotlib"} & sys.modules.keys(), "the engine needs no command line"
assert not os.path.isdir("/proc/self/task") or len(os.listdir("/proc/self/task")) == int(sys.argv[1])
"""


def test_importing_starts_no_thread_process_or_logger() -> None:
    # numpy's BLAS makes threads of its own at import; one is asked for, so that any other would show.
    env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    alone = [sys.executable, "-c", "import os, numpy; print(len(os.listdir('/proc/self/task')))"]
    threads = "1"
    if Path("/proc/self/task").is_dir():
        threads = subprocess.run(alone, env=env, capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run([sys.executable, "-c", QUIET, threads], env=env, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr


def test_public_names_are_the_objects_of_their_modules() -> None:
    import k3mem
    from k3mem.engine import Engine
    from k3mem.errors import Corrupted

    assert k3mem.Engine is Engine and k3mem.Corrupted is Corrupted
    assert {"Engine", "Request", "Shape", "Policy", "Plan", "Result", "Executor", "Sampling"} <= set(dir(k3mem))
    with pytest.raises(AttributeError, match="Nothing"):
        k3mem.Nothing  # noqa: B018


def test_a_release_build_has_no_planted_bugs() -> None:
    from k3mem.native import lib

    assert not hasattr(lib, "k3_mutant")
    folder = Path(importlib.import_module("k3mem.native._core").__file__ or "").parent
    built = {path.name.split(".")[0]: path.read_bytes() for path in folder.glob("_core*.so")}
    assert b"k3_mutant" not in built["_core"]
    assert b"k3_mutant" in built.get("_core_mutants", b"k3_mutant"), "the search would find it"


def test_the_c_core_exports_its_entry_alone() -> None:
    """An exported name may lose against one of the same name that was loaded before."""
    import ctypes

    core = ctypes.CDLL(importlib.import_module("k3mem.native._core").__file__ or "")
    assert hasattr(core, "PyInit__core")
    assert not [name for name in ("settle", "split", "k3_tree_evict", "k3_arena_free") if hasattr(core, name)]
