"""The C core: `ffi` and `lib` of the cffi extension. ``K3MEM_NATIVE=mutants`` takes the build with planted bugs."""

from __future__ import annotations

import importlib
import os
from typing import Any

_NAME = "_core_mutants" if os.environ.get("K3MEM_NATIVE") == "mutants" else "_core"
_module: Any = importlib.import_module(f"k3mem.native.{_NAME}")

ffi: Any = _module.ffi
lib: Any = _module.lib

__all__ = ["ffi", "lib"]
