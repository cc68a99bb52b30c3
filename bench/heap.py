"""Real bytes: what the C library's heap has handed out, its own headers included."""

from __future__ import annotations

import ctypes
import gc


class _Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def in_use() -> int | None:
    """Bytes in use on the heap, large blocks included; None where the C library does not tell (glibc >= 2.33 does).
    Python's own small objects live elsewhere."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Info
    gc.collect()
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)
