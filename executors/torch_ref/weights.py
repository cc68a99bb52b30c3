"""Tensors of a Hugging Face checkpoint, one at a time: names in one form, shapes checked, MXFP4 unpacked.

Only what is asked for is read. Names are given without `language_model.` and `model.`, whichever of them the file has.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3mem.errors import K3MemError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
OTHER_PARTS = ("vision_tower.", "vision_model.", "visual.", "mm_projector.", "multi_modal_projector.")
"""Beside the language model in the wrapper's checkpoint."""
IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")
GROUP = 32
"""Input columns that share one MXFP4 scale."""


class BadCheckpoint(K3MemError, ValueError):
    """A file that is not the model that its config describes; the message names the tensor."""


class Checkpoint:
    """A folder's tensors. `dtype` is what `take` returns."""

    def __init__(self, folder: str | os.PathLike[str], dtype: torch.dtype, extra_layers: tuple[int, int] = (0, 0)
                 ) -> None:
        """`extra_layers`: layers [first, end) that nobody will ask for. Raises BadCheckpoint."""
        self.folder, self.dtype = Path(folder), dtype
        self._files: dict[Path, Any] = {}
        self._where: dict[str, tuple[Path, str]] = {}
        self._taken: set[str] = set()
        skipped = tuple(f"layers.{i}." for i in range(*extra_layers))
        for path, raw in _listed(self.folder, self._open):
            name = raw.removeprefix("language_model.").removeprefix("model.")
            if name.startswith((*OTHER_PARTS, *skipped)) or IGNORED.fullmatch(name):
                continue
            if name in self._where:
                raise BadCheckpoint(f"{path}: {raw} is there twice, the other one is {self._where[name][1]}")
            self._where[name] = path, raw

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            from safetensors import SafetensorError, safe_open

            try:
                self._files[path] = safe_open(str(path), framework="pt")
            except (OSError, SafetensorError) as error:
                raise BadCheckpoint(f"{path}: {error}") from error
        return self._files[path]

    def has(self, name: str) -> bool:
        """Whether a tensor of this name is there."""
        return name in self._where

    def raw(self, name: str) -> Tensor:
        """A tensor as it is stored. Raises BadCheckpoint."""
        if name not in self._where:
            raise BadCheckpoint(f"{self.folder}: tensor {name} is missing")
        path, raw = self._where[name]
        self._taken.add(name)
        file = self._open(path)
        try:
            got: Tensor = file.get_tensor(raw)
        except Exception as error:  # the library raises its own kinds
            raise BadCheckpoint(f"{path}: {raw}: {error}") from error
        return got

    def take(self, name: str, *shape: int, also: Iterable[tuple[int, ...]] = ()) -> Tensor:
        """A tensor in `dtype` and in this shape; stored in it, or in one of `also` with as many elements. Raises
        BadCheckpoint."""
        got = self.raw(name)
        if tuple(got.shape) not in {shape, *also}:
            raise BadCheckpoint(f"{self._said(name)} has shape {tuple(got.shape)}; the config says {shape}")
        if not got.dtype.is_floating_point:
            raise BadCheckpoint(f"{self._said(name)} is {got.dtype}; it must be a floating-point tensor")
        return got.to(self.dtype).reshape(shape)

    def heads(self, name: str, count: int) -> Tensor:
        """[count] one number a head: stored flat, as [1, 1, count, 1], or padded with zeros at its end."""
        got = self.raw(name)
        flat = got.reshape(-1).to(self.dtype)
        padded = got.dim() == 1 and len(flat) > count and not flat[count:].any()
        if len(flat) != count and not padded:
            raise BadCheckpoint(f"{self._said(name)} has shape {tuple(got.shape)}; the config says {count} heads")
        return flat[:count].clone()

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """[rows, columns] of a projection, `name`.weight or MXFP4 as `name`.weight_packed and `name`.weight_scale."""
        if not self.has(f"{name}.weight_packed"):
            return self.take(f"{name}.weight", rows, columns)
        packed, scale = self.raw(f"{name}.weight_packed"), self.raw(f"{name}.weight_scale")
        for part, tensor, width in (("packed", packed, columns // 2), ("scale", scale, columns // GROUP)):
            if tensor.dtype != torch.uint8 or tensor.numel() != rows * width or columns % GROUP:
                raise BadCheckpoint(f"{self._said(f'{name}.weight_{part}')} is {tensor.dtype} {tuple(tensor.shape)}; "
                                    f"the config says uint8 {(rows, width)}")
        return unpack(packed.reshape(rows, -1), scale.reshape(rows, -1), self.dtype)

    def finish(self) -> None:
        """Raises BadCheckpoint if a tensor is there that nobody asked for."""
        left = sorted(self._where.keys() - self._taken)
        if left:
            path, raw = self._where[left[0]]
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise BadCheckpoint(f"{path}: {raw}{more}: the model that the config describes has no such tensor")

    def _said(self, name: str) -> str:
        path, raw = self._where[name]
        return f"{path}: {raw}"


def _listed(folder: Path, open_file: Any) -> Iterable[tuple[Path, str]]:
    """(file, tensor as named there) of a folder."""
    index = folder / INDEX
    if index.exists():
        try:
            listed = json.loads(index.read_bytes())["weight_map"].items()
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadCheckpoint(f"{index}: not an index with a weight_map: {error!r}") from error
        return [(folder / file, name) for name, file in listed]
    files = [folder / SINGLE] if (folder / SINGLE).exists() else sorted(folder.glob("model-*.safetensors"))
    if not files:
        raise BadCheckpoint(f"{folder}: neither {SINGLE} nor {INDEX} is there")
    return [(path, name) for path in files for name in open_file(path).keys()]  # noqa: SIM118 - no mapping


# -- MXFP4: a byte holds two E2M1 codes, the even column in its low nibble; bit 3 is the sign.

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpack(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, columns] of codes [rows, columns / 2] and scales [rows, columns / 32], both uint8: value * 2^(scale -
    127). Exact in float32 and float64 as long as the result is normal."""
    table = torch.tensor([*VALUES, *(-value for value in VALUES)], dtype=dtype)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
    values = table[codes.long()].view(len(packed), -1, GROUP)
    return torch.ldexp(values, scale.to(torch.int32).unsqueeze(-1) - 127).to(dtype).flatten(1)


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(codes, scales) nearest to a matrix [rows, columns]; the largest value of a group lands in (3, 6]."""
    groups = weight.double().view(len(weight), -1, GROUP)
    top = groups.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    exponent = torch.ceil(torch.log2(top / VALUES[-1]))
    scaled = groups / torch.exp2(exponent)
    table = torch.tensor(VALUES, dtype=torch.float64)
    codes = (scaled.abs().unsqueeze(-1) - table).abs().argmin(-1) + 8 * (scaled < 0)
    codes = codes.flatten(1).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, (exponent.squeeze(-1) + 127).to(torch.uint8)
