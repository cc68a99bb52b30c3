"""Build of the C core (cffi, API mode): every ``native/*.c`` with its header, one extension ``k3mem.native._core``.

``K3MEM_MUTANTS=1`` builds ``k3mem.native._core_mutants`` instead: the same with planted bugs, chosen by
``lib.k3_mutant`` (see ``k3.h``).

A header declares to Python what stands between the lines ``/* cffi: begin */`` and ``/* cffi: end */``; that part
must be plain C without preprocessor lines. ``K3MEM_SANITIZE=1`` builds with ASan and UBSan (see ``tests/sanitize.sh``).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADERS = sorted(p for p in HERE.glob("*.h") if "cffi: begin" in p.read_text())
SOURCES = sorted(p for p in HERE.glob("*.c") if not p.name.startswith("_core"))
MUTANTS = bool(os.environ.get("K3MEM_MUTANTS"))


def declarations() -> str:
    """The parts of all headers that Python sees, `k3.h` first since it holds the shared types."""
    parts: list[str] = ["extern int k3_mutant;"] if MUTANTS else []
    for header in sorted(HEADERS, key=lambda p: (p.name != "k3.h", p.name)):
        parts += re.findall(r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/", header.read_text(), re.S)
    return "\n".join(parts)


def flags() -> list[str]:
    common = ["-std=c11", "-Wall", "-Wextra", "-Wno-unused-parameter", "-fno-strict-aliasing",
              "-fvisibility=hidden",  # else a name of ours may turn out to be one of libc's
              "-ffp-contract=off"]  # the sim's times are those of the cost model, bit for bit
    if MUTANTS:
        common.append("-DK3_MUTANTS")
    if os.environ.get("K3MEM_SANITIZE"):
        sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
        return [*common, "-O1", "-g", *sanitize]
    return [*common, "-O3"]


ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "k3mem.native._core_mutants" if MUTANTS else "k3mem.native._core",
    "\n".join(['#include "k3.h"', *(f'#include "{p.name}"' for p in HEADERS)]),
    sources=[os.path.relpath(p, HERE.parent) for p in SOURCES],
    depends=[os.path.relpath(p, HERE.parent) for p in HERE.glob("*.h")],
    include_dirs=["native"],
    extra_compile_args=flags(),
    extra_link_args=["-fsanitize=address,undefined"] if os.environ.get("K3MEM_SANITIZE") else [],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
