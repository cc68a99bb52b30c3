"""The C core and its build."""

from k3mem.native._core import ffi, lib

__all__ = ["ffi", "lib"]
