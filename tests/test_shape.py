"""Sizes of known models, splits over ranks, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from k3mem.errors import InvalidShape
from k3mem.shape import PRESETS, Shape

SHARED = Path(os.environ.get("K3MEM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def golden(name: str) -> Path:
    path = SHARED / "golden" / name / "config.json"
    if not path.exists():
        pytest.skip(f"{path} is absent (set K3MEM_SHARED)")
    return path


def k3_config() -> dict[str, Any]:
    full = [*range(4, 93, 4), 93]
    return {
        "model_type": "kimi_k3",
        "text_config": {
            "model_type": "kimi_linear", "num_hidden_layers": 93, "vocab_size": 163840, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "max_position_embeddings": 1048576,
            "linear_attn_config": {
                "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4, "full_attn_layers": full,
                "kda_layers": [n for n in range(1, 94) if n not in full],
            },
        },
    }


def test_k3_at_tp8_has_the_published_sizes() -> None:
    shape = Shape.kimi_k3(tp=8)
    assert (shape.state_bytes, shape.token_bytes) == (56_171_520, 27_648)
    assert (shape.state_layers, shape.kv_layers, shape.page_bytes, shape.grid) == (69, 24, 1_769_472, 64)
    assert shape.record_bytes == 69 * (12 * 1536 + 3 * 12 * 128 * 2)


def test_k3_with_smaller_elements() -> None:
    assert Shape.kimi_k3(tp=8, kv_dtype_bytes=1).token_bytes == 13_824
    assert Shape.kimi_k3(tp=8, state_dtype_bytes=2).state_bytes == 29_039_616


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16, 32])
def test_k3_state_is_split_and_kv_is_replicated(tp: int) -> None:
    shape = Shape.kimi_k3(tp=tp)
    assert shape.state_bytes * tp == 8 * 56_171_520
    assert shape.token_bytes == 27_648


def test_kimi_linear_at_tp1() -> None:
    shape = Shape.kimi_linear_48b()
    assert shape.state_bytes == 20 * (32 * 65_536 + 3 * 12_288 * 2)
    assert shape.token_bytes == 8_064


def test_qwen3_next_splits_heads_and_replicates_the_last_kv_head() -> None:
    one, two, eight = (Shape.preset("qwen3-next-80b", tp=tp) for tp in (1, 2, 8))
    assert one.state_bytes == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert one.token_bytes == 12 * 2 * 2 * 256 * 2
    assert eight.state_bytes * 8 == one.state_bytes
    assert two.token_bytes == eight.token_bytes == one.token_bytes // 2
    assert one.record_bytes == 36 * (32 * (128 + 128 + 1) * 4 + 8192 * 2)


def test_nemotron_h_keeps_a_group_on_every_rank() -> None:
    one, sixteen = Shape.preset("nemotron-h-8b"), Shape.preset("nemotron-h-8b", tp=16)
    assert one.state_bytes == 24 * (128 * 64 * 128 * 4 + 3 * (128 * 64 + 2 * 8 * 128) * 2)
    assert one.token_bytes == 4 * 2 * 8 * 128 * 2
    assert sixteen.state_bytes == 24 * (8 * 64 * 128 * 4 + 3 * (8 * 64 + 2 * 128) * 2)
    assert sixteen.token_bytes == 4 * 2 * 128 * 2
    assert one.grid == 256


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(name: str) -> None:
    shape = Shape.preset(name, tp=2, page_tokens=16)
    assert shape.page_tokens == 16
    assert shape.name == f"{name}-tp2"


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(InvalidShape, match="kimi-linear-48b"):
        Shape.preset("kimi-k4")


@pytest.mark.parametrize(("tp", "hint"), [(5, "1, 2, 3, 4, 6, 8"), (0, "tp must be >= 1"), (192, "does not divide 96")])
def test_tp_that_does_not_fit_says_what_to_do(tp: int, hint: str) -> None:
    with pytest.raises(InvalidShape, match=hint):
        Shape.kimi_k3(tp=tp)


def test_window_must_not_exceed_the_grid() -> None:
    assert Shape.kimi_k3(tp=8, window=64).grid == 64
    with pytest.raises(InvalidShape, match="window 65 exceeds the grid of 64"):
        Shape.kimi_k3(tp=8, window=65)


def test_dcp_widens_a_page_but_not_its_bytes() -> None:
    shape = Shape.kimi_k3(tp=8, dcp=4)
    assert (shape.page_span, shape.grid) == (256, 256)
    assert shape.page_bytes == Shape.kimi_k3(tp=8).page_bytes


def test_hybrid_refuses_a_row_that_its_heads_do_not_divide() -> None:
    with pytest.raises(InvalidShape, match="no multiple of kv_heads 3"):
        Shape.hybrid("x", state_layers=1, state_heads=1, state_k=4, state_v=4, conv_channels=4, kv_layers=1,
                     kv_row_bytes=10, kv_heads=3)


def test_config_of_k3_equals_the_constructor(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(k3_config()))
    want = Shape.kimi_k3(tp=8)
    for source in (path, str(path), tmp_path, k3_config()):
        got = Shape.from_config(source, tp=8)
        assert (got.state_bytes, got.token_bytes, got.record_bytes) == (
            want.state_bytes, want.token_bytes, want.record_bytes)
        assert (got.vocab_size, got.max_tokens) == (want.vocab_size, want.max_tokens)


def test_config_errors_name_the_file_and_the_key(tmp_path: Path) -> None:
    config = k3_config()
    del config["text_config"]["kv_lora_rank"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InvalidShape, match="config.json: kv_lora_rank is missing"):
        Shape.from_config(path)
    config = k3_config()
    config["text_config"]["linear_attn_config"]["num_heads"] = "96"
    with pytest.raises(InvalidShape, match="num_heads must be int"):
        Shape.from_config(config)
    config = k3_config()
    config["text_config"]["linear_attn_config"]["kda_layers"].pop()
    with pytest.raises(InvalidShape, match="layers 1..93"):
        Shape.from_config(config)


@pytest.mark.parametrize(("text", "reason"), [("{", "not JSON"), ("[]", "not a JSON object"),
                                              ('{"model_type": "llama"}', "'llama' is not one of")])
def test_config_that_is_no_hybrid_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InvalidShape, match=reason):
        Shape.from_config(path)
    with pytest.raises(InvalidShape, match="absent.json"):
        Shape.from_config(tmp_path / "absent.json")


def test_config_state_dtype_is_read() -> None:
    config = k3_config()
    config["text_config"]["mamba_ssm_dtype"] = "bfloat16"
    assert Shape.from_config(config, tp=8).state_bytes == 29_039_616
    assert Shape.from_config(config, tp=8, state_dtype_bytes=4).state_bytes == 56_171_520


@pytest.mark.parametrize(
    ("name", "state_bytes", "token_bytes"),
    [
        ("tiny-k3", 6 * (2 * 32 * 32 * 4 + 3 * 192 * 2), 2 * 48 * 2),
        ("tiny-kimi-linear", 6 * (2 * 32 * 32 * 4 + 3 * 192 * 2), 2 * 48 * 2),
        ("mini-k3", 3 * (3 * 128 * 128 * 4 + 3 * 3 * 3 * 128 * 2), 2 * 576 * 2),
    ],
)
def test_golden_configs(name: str, state_bytes: int, token_bytes: int) -> None:
    shape = Shape.from_config(golden(name))
    assert (shape.state_bytes, shape.token_bytes, shape.vocab_size) == (state_bytes, token_bytes, 512)


def test_a_drafters_kv_is_part_of_a_token() -> None:
    shape = Shape.kimi_k3(tp=8, draft_layers=5)
    assert (shape.token_bytes, shape.kv_layers) == (27_648 + 5_760, 29)
    assert shape.state_bytes == Shape.kimi_k3(tp=8).state_bytes
    wide = {"state_layers": 1, "state_heads": 8, "state_k": 8, "state_v": 8, "conv_channels": 8, "kv_layers": 2,
            "kv_row_bytes": 64, "draft_layers": 3}
    assert Shape.hybrid("x", **wide, draft_row_bytes=128).token_bytes == 2 * 64 + 3 * 128
    with pytest.raises(InvalidShape, match="no multiple"):
        Shape.hybrid("x", **wide, draft_row_bytes=100)
    with pytest.raises(InvalidShape, match="draft_layers"):
        Shape.kimi_k3(draft_layers=-1)
