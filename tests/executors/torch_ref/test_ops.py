"""Bits of one row do not depend on its company."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from k3mem.executors.torch_ref import Model
from k3mem.executors.torch_ref import ops as o
from tests.executors.torch_ref.world import tokens

DTYPES = (torch.float32, torch.float64)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("columns", "out"), [(128, 9), (64, 2), (48, 290), (33, 7), (20, 65), (128, 512), (7, 1)])
def test_linear_gives_a_row_the_same_bits_anywhere(columns: int, out: int, dtype: torch.dtype) -> None:
    with o.quiet(1):
        weight, bias = drawn(out, columns, dtype=dtype), drawn(out, dtype=dtype, seed=1)
        layer = o.Linear(weight, bias)
        x = drawn(64, columns, dtype=dtype, seed=2)
        many = layer(x)
        assert torch.allclose(many, x @ weight.t() + bias, atol=1e-4)
        for row in (0, 5, 17, 63):
            for place in (0, 7, 15):
                alone = torch.zeros(16, columns, dtype=dtype)
                alone[place] = x[row]
                assert torch.equal(layer(alone)[place], many[row])
        strided = torch.zeros(64, 3, columns, dtype=dtype)
        strided[:, 1] = x
        assert torch.equal(layer(strided[:, 1]), many)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": o.silu, "softplus": o.softplus, "sigmoid": lambda x: o.sigmoid_neg_(x.neg()), "tanh": torch.tanh,
    "exp": torch.exp, "rms": lambda x: o.rms(x, 1e-5), "sum": lambda x: x.sum(-1), "softmax": lambda x: x.softmax(-1),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_a_row_the_same_bits_anywhere(name: str, dtype: torch.dtype) -> None:
    with o.quiet(1):
        function = FUNCTIONS[name]
        for width in (1, 9, 32, 48, 129):
            x = 4 * drawn(37, width, dtype=dtype, seed=width)
            many = function(x)
            for row in (0, 3, 36):
                assert torch.equal(function(x[row : row + 1].clone())[0], many[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_are_right(dtype: torch.dtype) -> None:
    x = torch.linspace(-40, 40, 81, dtype=dtype)
    close = 1e-6 if dtype == torch.float32 else 1e-14
    assert torch.allclose(o.silu(x), torch.nn.functional.silu(x), rtol=close, atol=close)
    assert torch.allclose(o.softplus(x), torch.nn.functional.softplus(x, threshold=100), rtol=close, atol=close)
    assert torch.allclose(o.sigmoid_neg_(x.clone()), torch.sigmoid(-x), rtol=close, atol=close)


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    with o.quiet(before + 1):
        assert torch.get_num_threads() == before + 1 and torch.is_inference_mode_enabled()
    assert torch.get_num_threads() == before and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("kind", ["tiny-k3", "tiny-kimi-linear"])
def test_a_prefix_does_not_know_what_follows(model_of: Callable[..., Model], kind: str) -> None:
    model = model_of(kind)
    text = tokens(1, 70)
    logits = model.logits(text)
    for count in (1, 2, 17, 64):
        assert torch.equal(model.logits(text[:count]), logits[:count])


def test_experts_that_run_apart_give_a_row_the_same_bits_anywhere(folder: Callable[..., object]) -> None:
    model = Model.from_pretrained(folder(), dense_experts=False)  # type: ignore[arg-type]
    text = tokens(1, 40)
    logits = model.logits(text)
    assert torch.equal(model.logits(text[:9]), logits[:9])


def test_tokens_outside_the_vocabulary_are_refused(model: Model) -> None:
    for wrong in ([], [512], [-1]):
        with pytest.raises(ValueError, match=r"0\.\.511"):
            model.forward(wrong)
