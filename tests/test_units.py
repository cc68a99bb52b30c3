"""Sizes in words."""

from __future__ import annotations

import pytest

from k3mem.units import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("40GiB", 40 * 2**30), ("512MB", 512_000_000), ("0", 0), ("0GB", 0), ("1.5 GiB", 3 * 2**29),
     (" 7 kib ", 7168), ("0.1GB", 100_000_000), ("2TB", 2 * 10**12), ("1TiB", 2**40), ("4096B", 4096), ("3kB", 3000)],
)
def test_parse_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "1e3GB", "-1GB", "80", "80 G", "80GBs", "1,5GB", "0.5B", "1.0001kB", "nan"])
def test_bad_sizes_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="size|unit|whole") as error:
        parse_size(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (56_171_520, "56.2 MB"), (999_600, "1 MB"),
                                            (80 * 10**9, "80 GB"), (10**15, "1e+03 TB")])
def test_format_size(size: int, text: str) -> None:
    assert format_size(size) == text
