"""The device's free choices: a generator small enough to be the same in Python and in C."""

from __future__ import annotations

from typing import Any

MASK = (1 << 64) - 1


class Dice:
    """splitmix64. Same seed, same choices, in the reference device and in the compiled one."""

    def __init__(self, seed: int) -> None:
        self.state = seed & MASK

    def next(self) -> int:
        """The next 64 bits."""
        self.state = (self.state + 0x9E37_79B9_7F4A_7C15) & MASK
        x = self.state
        x = (x ^ (x >> 30)) * 0xBF58_476D_1CE4_E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D0_49BB_1331_11EB & MASK
        return x ^ (x >> 31)

    def below(self, n: int) -> int:
        """A number in 0 .. n - 1."""
        return self.next() % n

    def shuffle(self, items: list[Any]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = self.next() % (i + 1)
            items[i], items[j] = items[j], items[i]
