"""A mutant from outside: a patch is applied to a copy of the source tree, and worlds run there."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from k3mem.fuzz.hunt import SECONDS, survives
from k3mem.fuzz.prove import Verdict, hunt_apart

PARTS = {"k3mem": "k3mem", "executors": "k3mem.executors", "native": "k3mem.native", "fuzz": "k3mem.fuzz"}
"""Folder of the repository -> package as installed."""

class PatchError(Exception):
    """The patch does not apply, or what it makes does not build."""


def copy_source(to: Path) -> None:
    """The source as the repository lays it out: k3mem/, executors/, native/, fuzz/."""
    skip = shutil.ignore_patterns("__pycache__", "_core.c", "*.o", "*_mutants*")
    for folder, package in PARTS.items():
        module = importlib.import_module(package)
        source = Path(module.__file__ or "").parent
        inner = [name for name in PARTS if name != "k3mem"] if folder == "k3mem" else []

        def ignore(at: str, names: list[str], source: Path = source, inner: list[str] = inner) -> set[str]:
            return set(skip(at, names)) | (set(inner) & set(names) if Path(at) == source else set())

        shutil.copytree(source, to / folder, ignore=ignore)


def apply(diff: Path, to: Path) -> list[str]:
    """Apply a patch with paths of the repository; the files that it names. Raises PatchError."""
    text = diff.read_text(encoding="utf-8")
    named = [line[4:].split("\t")[0].strip() for line in text.splitlines() if line.startswith("+++ ")]
    strip = 1 if all(name.startswith(("b/", "/dev/null")) for name in named) else 0
    if not named:
        raise PatchError(f"{diff}: not a patch")
    done = subprocess.run(["patch", f"-p{strip}", "--batch", "--forward", "-d", str(to)], input=text, text=True,
                          capture_output=True)
    if done.returncode:
        raise PatchError(f"{diff}: does not apply: {(done.stdout + done.stderr).strip()}")
    return [name[2:] if strip else name for name in named]


def build(root: Path) -> None:
    """Build the C core of a copy. Raises PatchError."""
    code = "import sys; sys.path.insert(0, 'native'); import build; build.ffibuilder.compile()"
    env = {k: v for k, v in os.environ.items() if k not in ("K3MEM_MUTANTS", "K3MEM_SANITIZE")}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True)
    built = list((root / "k3mem" / "native").glob("_core*.so"))
    if done.returncode or not built:
        raise PatchError(f"the patched C core does not build: {done.stderr.strip()[-600:]}")
    for file in [*(root / "native").glob("_core*.so")]:
        file.unlink()
    shutil.move(str(built[0]), root / "native" / built[0].name)
    shutil.rmtree(root / "k3mem" / "native")


def prove_patch(diff: Path, seconds: float = SECONDS) -> Verdict:
    """Hunt the bug that a patch plants. Raises OSError or PatchError."""
    name = diff.stem
    with tempfile.TemporaryDirectory() as folder:
        root, site = Path(folder) / "source", Path(folder) / "site"
        root.mkdir()
        copy_source(root)
        changed = apply(diff, root)
        if any(path.startswith("native/") for path in changed):
            build(root)
        site.mkdir()
        shutil.move(str(root / "k3mem"), site / "k3mem")
        for part in ("executors", "native", "fuzz"):
            shutil.move(str(root / part), site / "k3mem" / part)
        env = {**os.environ, "PYTHONPATH": str(site)}
        env.pop("K3MEM_NATIVE", None)
        worlds, out = hunt_apart(name, seconds, env, "nothing", cwd=folder)
    if not worlds:  # what the patch made cannot even be imported
        out.by = "check"
    out.wrong = survives(out.seeds, seconds)
    return Verdict(name, ", ".join(changed), "", bool(out.by), out.seeds[-1], worlds, round(out.seconds, 2), out.by,
                   out.wrong or out.what, not out.wrong, out.race, out.in_order)
