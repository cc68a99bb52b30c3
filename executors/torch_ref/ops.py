"""Arithmetic whose bits do not depend on what else is in the batch.

A matrix product of few rows takes another kernel than one of many, so a row's bits would depend on its company. Here
every product has the same shape, whatever the step holds: tiles of 16 rows (a padded tile costs what a full one does),
and one query's heads by 64 keys. How the library rounds a row also depends on how it lies: so rows are contiguous and
as wide as a multiple of 16 (64 bytes), and weights stand [out, in]. Sigmoid and SiLU are written out, as its own differ
between the body and the tail of a vector. Single additions, multiplications, divisions and its exp, tanh, sqrt and sums
over the last axis are the same for a row in any company; fused multiply-adds are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

TILE = 16
"""Rows of one matrix product."""


@contextmanager
def quiet(threads: int) -> Iterator[None]:
    """No gradients, and so many threads: how a product is split among them may decide its bits."""
    before = torch.get_num_threads()
    if before != threads:
        torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield
    finally:
        if before != threads:
            torch.set_num_threads(before)


def padded(rows: int) -> int:
    """Rows of whole tiles."""
    return -(-rows // TILE) * TILE


@cache
def tile_of(columns: int, out: int, dtype: torch.dtype) -> int:
    """Rows a tile may have so that each row's bits are the same anywhere in it: 16, or 1 where the library's product
    of this shape treats rows differently (none seen yet where `columns` is a multiple of 16 and the weight is stored
    [out, columns])."""
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(out, columns, generator=generator, dtype=dtype).t()
        for row in torch.randn(4, columns, generator=generator, dtype=dtype):
            got = torch.mm(row.expand(TILE, columns).contiguous(), weight)
            if not bool((got == got[0]).all()):
                return 1
        return TILE


def tiles(x: Tensor, rows: int = TILE) -> tuple[Tensor, ...]:
    """Views of so many rows each, of a tensor that has a multiple of them."""
    return x.view(-1, rows, *x.shape[1:]).unbind(0)


class Linear:
    """y = x W^T + b, tile by tile."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [out, in], bias [out]."""
        self.columns = weight.shape[1]
        self.missing = -self.columns % TILE
        self.weight = torch.nn.functional.pad(weight, (0, self.missing)).contiguous().t()
        self.bias = bias
        self.tile = tile_of(*self.weight.shape, weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]; rows is a multiple of 16. O(rows in out)."""
        x = torch.nn.functional.pad(x, (0, self.missing)) if self.missing else x.contiguous()
        if x.shape[0] == self.tile:
            return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)
        y = x.new_empty(x.shape[0], self.weight.shape[1])
        for one, out in zip(tiles(x, self.tile), tiles(y, self.tile), strict=True):
            if self.bias is None:
                torch.mm(one, self.weight, out=out)
            else:
                torch.addmm(self.bias, one, self.weight, out=out)
        return y


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[..., 1] of x [..., n]: what RMS normalisation multiplies by."""
    return (x * x).sum(-1, keepdim=True).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()


def rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis."""
    return x * inverse_rms(x, eps)


def sigmoid_neg_(x: Tensor) -> Tensor:
    """sigmoid(-x), in place."""
    return x.exp_().add_(1).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x / torch.neg(x).exp_().add_(1)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), without overflow."""
    return x.relu().add_(x.abs().neg_().exp_().log1p_())
