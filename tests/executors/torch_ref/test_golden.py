"""Models with outputs that an independent reference computed in float64."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from k3mem.executors.torch_ref import Model
from tests.executors.torch_ref.conftest import golden

NAMES = ("tiny-k3", "mini-k3", "tiny-kimi-linear")
LIMITS = {torch.float32: 5e-5, torch.float64: 1e-10}


@pytest.mark.parametrize("mode", ["recurrent", "chunk"])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_logits_states_windows_and_kv_agree(name: str, dtype: torch.dtype, mode: str) -> None:
    folder = golden(name)
    expected = load_file(folder / "golden.safetensors")
    tokens = expected.pop("tokens")
    logits, held = Model.from_pretrained(folder, dtype).forward(tokens, kda_mode=mode)
    found = {"logits": logits, **held}
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == dtype and found[key].shape == tensor.shape
        error = ((found[key].double() - tensor).abs().max() / tensor.abs().max()).item()
        assert error <= LIMITS[dtype], key


@pytest.mark.parametrize("name", NAMES)
def test_experts_that_run_apart_agree_as_well(name: str) -> None:
    folder = golden(name)
    expected = load_file(folder / "golden.safetensors")
    logits = Model.from_pretrained(folder, torch.float64, dense_experts=False).logits(expected["tokens"])
    assert (logits - expected["logits"]).abs().max() / expected["logits"].abs().max() <= 1e-10
