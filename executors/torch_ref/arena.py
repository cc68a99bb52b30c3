"""The arena: one byte buffer, and strided views of it as KV rows and state slots.

    0                                                            state_top            capacity
    | page 0 (sink) | page 1 | ...        ...  | slot 1 | slot 0 (sink) |  pad | scratch  |

A page is [KV layer][token][latent + rope], a drafter's layers behind the model's; so a token's row in the first KV
layer is number place * layers * page_tokens + position % page_tokens, and `page_tokens` further a layer. A slot is
[KDA layer][taps - 1][channels] windows, then [KDA layer][head][V][K] matrices. Nothing is written to the sinks: the
zeros of page 0 are what attention reads behind a row's last token.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from k3mem.errors import InvalidShape
from k3mem.executor import Layout
from k3mem.executors.torch_ref.config import Config
from k3mem.executors.torch_ref.stores import Kv, Records
from k3mem.plan import PAGE
from k3mem.types import Int32, Int64


class Arena:
    """Bytes by place. All writes go through views of `raw`. Raises InvalidShape where the model does not fit."""

    def __init__(self, layout: Layout, config: Config, dtype: torch.dtype, draft_layers: int = 0) -> None:
        shape, item, c = layout.shape, dtype.itemsize, config
        self.layers, self.heads, self.dim = len(c.kda_layers), c.kda_heads, c.kda_dim
        self.width, self.window = 3 * c.kda_width, c.conv - 1
        self.window_items = self.layers * self.window * self.width
        self.slot_items = self.window_items + self.layers * self.heads * self.dim * self.dim
        kv_layers, self.page_tokens = len(c.mla_layers) + draft_layers, shape.page_tokens
        self.page_rows = kv_layers * self.page_tokens
        need = (self.slot_items * item, kv_layers * c.kv_row * item, kv_layers, 1, 0)
        given = (shape.state_bytes, shape.token_bytes, shape.kv_layers, shape.dcp, layout.state_top % item)
        if need != given:
            raise InvalidShape(f"shape {shape.name!r} is not this model's in {dtype}: (state bytes, token bytes, KV "
                               f"layers, DCP ranks, misalignment) are {given} and must be {need}; use model.shape()")
        self.page_bytes, self.state_bytes, self.top = shape.page_bytes, shape.state_bytes, layout.state_top
        self.raw = torch.zeros(layout.capacity_bytes, dtype=torch.uint8)
        items = self.raw[: self.top].view(dtype)
        pages, slots = self.top // self.page_bytes, self.top // self.state_bytes
        self.pages = items[: pages * self.page_bytes // item].view(pages, -1)
        """[place, values]"""
        self.slots = items[(self.top - slots * self.state_bytes) // item :].view(slots, self.slot_items)
        """[slots - 1 - place, values]: slots grow down."""
        self.kv = Kv(self.pages.view(-1, c.kv_row), self.page_tokens)
        self._scratch = self.raw[-(-self.top // item) * item :]
        self._scratch = self._scratch[: len(self._scratch) // item * item].view(dtype)

    # -- addresses

    def slot(self, place: int) -> int:
        """Row of `slots` of a place."""
        return len(self.slots) - 1 - place

    def rows_of(self, places: Int64, tokens: int) -> Int64:
        """[tokens] row of `kv` of every position, in the first KV layer, of a sequence on these page places."""
        rows = places[:, None] * self.page_rows + np.arange(self.page_tokens)
        return rows.reshape(-1)[:tokens]

    def parts(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """(windows [n, layers, taps - 1, channels], matrices [n, layers, heads, V, K]), views of [n, slot values]."""
        window = slots[:, : self.window_items].view(-1, self.layers, self.window, self.width)
        return window, slots[:, self.window_items :].view(-1, self.layers, self.heads, self.dim, self.dim)

    def layer_of(self, place: int) -> tuple[Callable[[int], Tensor], Callable[[int], Tensor]]:
        """(matrix, window) of one layer of the slot at a place."""
        window, matrix = self.parts(self.slots[self.slot(place)].unsqueeze(0))
        return matrix[0].__getitem__, window[0].__getitem__

    # -- whole entries

    def move(self, moves: Int32) -> None:
        """(batch, kind, source, destination), batches in order; within a batch nothing overlaps."""
        for _, kind, source, destination in sorted(moves.tolist(), key=lambda move: int(move[0])):
            view = self.pages if kind == PAGE else self.slots
            if kind != PAGE:
                source, destination = self.slot(source), self.slot(destination)
            view[destination].copy_(view[source])

    def zero(self, pages: list[int], states: list[int]) -> None:
        """Fill these places with zeros."""
        if pages:
            self.pages.index_fill_(0, torch.tensor(pages), 0)
        if states:
            self.slots.index_fill_(0, torch.tensor([self.slot(place) for place in states]), 0)

    def copy_page(self, source: int, destination: int, rows: int) -> None:
        """Rows 0 .. rows - 1 of every layer; the rest of the destination becomes zero."""
        shape = (-1, self.page_tokens, self.kv.rows.shape[1])
        origin, target = self.pages[source].view(shape), self.pages[destination].view(shape)
        target[:, :rows].copy_(origin[:, :rows])
        target[:, rows:].zero_()

    def copy_state(self, source: int, destination: int) -> None:
        """A whole slot."""
        self.slots[self.slot(destination)].copy_(self.slots[self.slot(source)])

    # -- scratch

    def records(self, tokens: Tensor) -> Records:
        """Scratch for the records of these tokens of a batch: behind the states where the layout leaves room, else
        apart."""
        n = len(tokens)
        widths = [self.heads * self.dim] * 3 + [self.width]
        total = n * self.layers * sum(widths)
        flat = self._scratch[:total] if total <= len(self._scratch) else self.pages.new_empty(total)
        u, key, decay, row = flat.split_with_sizes([n * self.layers * width for width in widths])
        by_head = (n, self.layers, self.heads, self.dim)
        return Records(tokens, u.view(by_head), key.view(by_head), decay.view(by_head),
                       row.view(n, self.layers, self.width))
