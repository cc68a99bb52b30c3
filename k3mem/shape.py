"""Bytes and grids of a model: all that memory and scheduling need to know of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3mem.errors import InvalidShape


@dataclass(frozen=True, slots=True)
class Shape:
    """Geometry of one model on one rank. Sizes in bytes; depths and pages in tokens.

    Raises InvalidShape when no arena could hold it.
    """

    name: str
    state_bytes: int
    """One sequence's recurrent state over all recurrent layers, convolution windows included."""
    token_bytes: int
    """KV of one token over all KV layers (and draft layers where speculation may be on)."""
    kv_layers: int = 1
    state_layers: int = 1
    page_tokens: int = 64
    """Tokens a KV page holds, 1 .. 512."""
    state_chunk: int = 64
    """Chunk of the recurrent prefill kernel: depths at which a prefill capture is bit-stable."""
    vocab_size: int = 2**31 - 1
    max_tokens: int = 2**31 - 1
    """Longest sequence the model takes (prompt + output)."""
    record_bytes: int = 0
    """Scratch of one row of a VERIFY window: inputs of one token's state update over all recurrent layers."""
    dcp: int = 1
    """Ranks over which positions are dealt; a page covers dcp * page_tokens positions."""
    align: int = 128

    def __post_init__(self) -> None:
        def need(ok: bool, what: str) -> None:
            if not ok:
                raise InvalidShape(f"shape {self.name!r}: {what}")

        need(self.state_bytes > 0, f"state_bytes must be positive, got {self.state_bytes}")
        need(self.token_bytes > 0, f"token_bytes must be positive, got {self.token_bytes}")
        need(1 <= self.page_tokens <= 512, f"page_tokens must be 1..512, got {self.page_tokens}")
        need(self.state_chunk >= 1, f"state_chunk must be >= 1, got {self.state_chunk}")
        need(self.dcp >= 1, f"dcp must be >= 1, got {self.dcp}")
        need(self.align >= 1, f"align must be >= 1, got {self.align}")
        need(self.kv_layers >= 1, f"kv_layers must be >= 1, got {self.kv_layers}")
        need(self.state_layers >= 1, f"state_layers must be >= 1, got {self.state_layers}")
        need(self.token_bytes % self.kv_layers == 0,
             f"token_bytes {self.token_bytes} is no multiple of kv_layers {self.kv_layers}")
        need(2 <= self.vocab_size <= 2**31 - 1, f"vocab_size must be 2..2**31-1, got {self.vocab_size}")
        need(1 <= self.max_tokens <= 2**31 - 1, f"max_tokens must be 1..2**31-1, got {self.max_tokens}")
        need(self.record_bytes >= 0, f"record_bytes must be >= 0, got {self.record_bytes}")

    @property
    def page_bytes(self) -> int:
        """Bytes of one KV page."""
        return self.page_tokens * self.token_bytes

    @property
    def page_span(self) -> int:
        """Positions one page covers (page_tokens x DCP ranks)."""
        return self.page_tokens * self.dcp

    @property
    def grid(self) -> int:
        """Depths at which a prefill capture is bit-stable and a page ends: lcm(state_chunk, page_span)."""
        return math.lcm(self.state_chunk, self.page_span)
