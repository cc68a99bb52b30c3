"""Reading checkpoints: names, quirks, and errors that name the tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from k3mem.errors import InvalidShape
from k3mem.executors.torch_ref import Model
from k3mem.executors.torch_ref.init import config_of, write
from k3mem.executors.torch_ref.weights import VALUES, BadCheckpoint, Checkpoint, pack, unpack

Folder = Callable[..., Path]
PROMPT = list(range(40, 75))


def changed(folder: Path, to: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """A copy of a model with other tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    to.mkdir()
    shutil.copy(folder / "config.json", to)
    save_file(tensors, to / "model.safetensors")
    return to


def renamed(folder: Path, to: Path, new: Callable[[str], str]) -> Path:
    def rename(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[new(name)] = tensors.pop(name)

    return changed(folder, to, rename)


def logits(folder: Path) -> Tensor:
    return Model.from_pretrained(folder).logits(PROMPT)


@pytest.mark.parametrize("new", [
    lambda name: name.removeprefix("language_model."),
    lambda name: name.replace("language_model.model.", "language_model."),
], ids=["plain", "without model."])
def test_both_prefixes_are_read(folder: Folder, tmp_path: Path, new: Callable[[str], str]) -> None:
    assert torch.equal(logits(renamed(folder(), tmp_path / "m", new)), logits(folder()))


def test_shards_are_read(folder: Folder, tmp_path: Path) -> None:
    write(tmp_path, config_of("tiny-k3", 4), seed=4, shards=3)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert torch.equal(logits(tmp_path), logits(folder()))


def test_quirks_of_shapes_are_read(folder: Folder, tmp_path: Path) -> None:
    def quirks(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("A_log"):
                tensors[name] = tensor[:2].reshape(1, 1, 2, 1)
            elif "conv1d" in name:
                tensors[name] = tensor.squeeze(1)
            elif name.endswith("weight_scale"):
                tensors[name] = tensor.reshape(*tensor.shape, 1, 1)
            elif name.endswith("res_proj.weight"):
                tensors[name] = tensor.squeeze(0)

    assert torch.equal(logits(changed(folder(), tmp_path / "m", quirks)), logits(folder()))


def test_other_parts_of_the_wrapper_are_left_alone(folder: Folder, tmp_path: Path) -> None:
    def more(tensors: dict[str, Tensor]) -> None:
        tensors["vision_tower.patch_embed.weight"] = torch.zeros(2)
        tensors["mm_projector.weight"] = torch.zeros(2)

    assert torch.equal(logits(changed(folder(), tmp_path / "m", more)), logits(folder()))


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    raw = config_of("tiny-kimi-linear")
    write(tmp_path / "tied", {**raw, "tie_word_embeddings": True}, seed=3)
    tied = load_file(tmp_path / "tied" / "model.safetensors")
    assert "lm_head.weight" not in tied

    def untie(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    other = changed(tmp_path / "tied", tmp_path / "other", untie)
    (other / "config.json").write_text(json.dumps(raw))
    assert torch.equal(logits(tmp_path / "tied"), logits(other))


@pytest.mark.parametrize("name", ["layers.2.self_attn.dt_bias", "layers.3.self_attn.kv_b_proj.weight",
                                  "layers.1.block_sparse_moe.experts.7.w2.weight_scale", "norm.weight",
                                  "layers.0.mlp.up_proj.weight", "output_attn_res_proj.weight"])
def test_a_missing_tensor_is_named(folder: Folder, tmp_path: Path, name: str) -> None:
    broken = changed(folder(), tmp_path / "m", lambda tensors: tensors.pop(f"language_model.model.{name}"))
    with pytest.raises(BadCheckpoint, match=name):
        Model.from_pretrained(broken)


@pytest.mark.parametrize("name", ["layers.2.self_attn.dt_bias", "layers.3.self_attn.kv_b_proj.weight",
                                  "layers.1.block_sparse_moe.experts.7.w2.weight_scale", "norm.weight",
                                  "layers.0.self_attn.A_log", "layers.0.self_attn.q_conv1d.weight"])
def test_a_misshapen_tensor_is_named(folder: Folder, tmp_path: Path, name: str) -> None:
    def cut(tensors: dict[str, Tensor]) -> None:
        full = f"language_model.model.{name}"
        tensors[full] = tensors[full][:1].clone()

    with pytest.raises(BadCheckpoint, match=f"{name}.*shape|{name}.*uint8"):
        Model.from_pretrained(changed(folder(), tmp_path / "m", cut))


def test_padding_of_a_log_must_be_zero(folder: Folder, tmp_path: Path) -> None:
    def fill(tensors: dict[str, Tensor]) -> None:
        tensors["language_model.model.layers.0.self_attn.A_log"][50] = 1

    with pytest.raises(BadCheckpoint, match="A_log"):
        Model.from_pretrained(changed(folder(), tmp_path / "m", fill))


def test_an_unknown_tensor_is_named(folder: Folder, tmp_path: Path) -> None:
    def more(tensors: dict[str, Tensor]) -> None:
        tensors["language_model.model.layers.1.self_attn.k_bias"] = torch.zeros(2)

    with pytest.raises(BadCheckpoint, match="layers.1.self_attn.k_bias"):
        Model.from_pretrained(changed(folder(), tmp_path / "m", more))


def test_a_tensor_under_two_names_is_named(folder: Folder, tmp_path: Path) -> None:
    def twice(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["language_model.model.norm.weight"].clone()

    with pytest.raises(BadCheckpoint, match="norm.weight is there twice"):
        Model.from_pretrained(changed(folder(), tmp_path / "m", twice))


def test_a_folder_without_weights_says_so(folder: Folder, tmp_path: Path) -> None:
    shutil.copy(folder() / "config.json", tmp_path)
    with pytest.raises(BadCheckpoint, match=r"neither model\.safetensors"):
        Model.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        Model.from_pretrained(tmp_path)


@pytest.mark.parametrize(("key", "value", "what"), [
    ("hidden_size", None, "hidden_size is missing"), ("hidden_size", "128", "hidden_size must be int"),
    ("hidden_act", "gelu", "hidden_act"), ("mla_use_nope", False, "mla_use_nope"),
    ("model_type", "llama", "model_type"), ("vocab_size", -1, "vocab_size must not be negative"),
    ("num_hidden_layers", 5, "layers 1..5"),
])
def test_a_config_that_cannot_run_names_the_key(key: str, value: Any, what: str) -> None:
    from k3mem.executors.torch_ref.config import Config

    raw = config_of("tiny-k3")
    raw["text_config"][key] = value
    with pytest.raises(InvalidShape, match=what):
        Config.read(raw)


def test_the_release_is_read_as_it_is() -> None:
    from k3mem.executors.torch_ref.config import Config

    raw = config_of("tiny-k3", 93)
    config = Config.read(raw)
    assert config.mla_layers == (*range(3, 92, 4), 92)
    assert len(config.kda_layers) == 69 and config.moe_layers == tuple(range(1, 93))


def test_mxfp4_is_unpacked_low_nibble_first() -> None:
    codes = torch.arange(32, dtype=torch.uint8).view(1, 32)[:, :16] * 0 + 0x72
    codes[0, 1] = 0x9F
    got = unpack(codes, torch.tensor([[128]], dtype=torch.uint8), torch.float32)
    assert got[0, :4].tolist() == [2 * VALUES[2], 2 * VALUES[7], 2 * -VALUES[7], 2 * -VALUES[1]]
    assert got.shape == (1, 32)


def test_packing_a_matrix_of_mxfp4_values_gives_it_back() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 96, generator=generator)
    near = unpack(*pack(weight), torch.float64)
    assert (near - weight).abs().max() < 0.6
    assert torch.equal(unpack(*pack(near), torch.float64), near)


def test_tensors_are_read_one_at_a_time(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Checkpoint(folder(), torch.float32)
    assert not weights._taken, "nothing is read before it is asked for"
    weights.take("norm.weight", 128)
    assert weights._taken == {"norm.weight"}
