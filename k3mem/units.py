"""Sizes in words: 80GB is 80e9 bytes, 40GiB is 40 * 2**30."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"b": 1, **{f"{p}b": 10 ** (3 * (i + 1)) for i, p in enumerate("kmgt")},
          **{f"{p}ib": 2 ** (10 * (i + 1)) for i, p in enumerate("kmgt")}}


def parse_size(text: str) -> int:
    """Bytes of "80GB", "1.5 GiB", "512MB", "4096B"; "0" (with or without a unit) is 0 and stands for unlimited.

    A number without a unit is refused, as is what is no whole number of bytes. Raises ValueError naming the text.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    unit = match[2].lower() if match else ""
    if not match or unit and unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size; write a number and a unit, such as 80GB, 40GiB or 512MB, or 0")
    number = Fraction(match[1])
    if number and not unit:
        raise ValueError(f"{text!r} has no unit; write {match[1]}B, {match[1]}GB or {match[1]}GiB")
    size = number * _UNITS[unit or "b"]
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def format_size(size: int) -> str:
    """A size for people, in decimal units with three digits: 56.2 MB."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{size} B" if unit == "B" else f"{value:.3g} {unit}"
