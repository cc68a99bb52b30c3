"""The cost model: validation, the formula term by term, and runs of steps bit for bit."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3mem.executors.cost import NOMINAL, CostModel, InvalidCost, nominal

SHARED = Path(os.environ.get("K3MEM_SHARED", Path(__file__).resolve().parents[3] / "shared"))


def numbers(**changes: Any) -> dict[str, Any]:
    return {**asdict(nominal()), **changes}


def test_packaged_file_equals_the_shared_one() -> None:
    path = SHARED / "cost" / "k3-tp8-nominal.toml"
    if not path.exists():
        pytest.skip(f"{path} is absent (set K3MEM_SHARED)")
    assert CostModel.load(path) == nominal()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bas": 1.0}, "unknown key 'bas'"),
        ({"base": -1.0}, "base must be finite and >= 0"),
        ({"row": math.inf}, "row must be finite"),
        ({"row": "14"}, "row must be a number"),
        ({"row": True}, "row must be a number"),
        ({"verify_tile": 64.0}, "verify_tile must be a whole number"),
        ({"verify_tile": 0}, "verify_tile must be > 0"),
        ({"copy_bytes_per_us": 0.0}, "copy_bytes_per_us must be > 0"),
        ({"name": ""}, "name must be"),
    ],
)
def test_bad_values_name_the_key(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidCost, match=reason):
        CostModel.from_mapping(numbers(**changes))


def test_missing_key_is_named() -> None:
    data = numbers()
    del data["context"]
    with pytest.raises(InvalidCost, match="'context' is missing"):
        CostModel.from_mapping(data)


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    with pytest.raises(InvalidCost, match="c.toml: No such file"):
        CostModel.load(path)
    path.write_text("base = ")
    with pytest.raises(InvalidCost, match="c.toml: "):
        CostModel.load(path)
    path.write_text("base = 1.0")
    with pytest.raises(InvalidCost, match="c.toml: key .* is missing"):
        CostModel.load(path)


def test_hash_depends_on_values_only(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    lines = [line for line in NOMINAL.read_text().splitlines() if "=" in line and not line.startswith("#")]
    path.write_text("\n".join(reversed(lines)).replace("8900.0", "8.9e3").replace("k3-tp8-nominal", "other"))
    assert CostModel.load(path).hash == nominal().hash
    for key, value in numbers().items():
        if key != "name":
            assert CostModel.from_mapping(numbers(**{key: value + 1})).hash != nominal().hash


def test_formula_term_by_term() -> None:
    cost = nominal()
    zero = {"context_sum": 0, "copied_bytes": 0}
    assert cost.step_us(**zero) == 0.0
    assert cost.step_us(context_sum=0, copied_bytes=10**9) == 0.0
    assert cost.step_us(prefill_tokens=100, **zero) == pytest.approx(8900 + 5500)
    assert cost.step_us(prefill_tokens=100, prefill_context=100 * 64_000, **zero) == pytest.approx(14_400 + 2880)
    assert cost.step_us(decode_rows=3, context_sum=30_000, copied_bytes=0) == pytest.approx(8900 + 42 + 0.18)
    assert cost.step_us(verify_tokens=1, **zero) == pytest.approx(8900 + 6 * 64)
    assert cost.step_us(verify_tokens=65, **zero) == pytest.approx(8900 + 6 * 128)
    assert cost.step_us(decode_rows=1, context_sum=0, copied_bytes=42_000_000) == pytest.approx(8914 + 10)


@pytest.mark.parametrize(
    ("rows", "context", "k", "start"), [(1, 7, 1, 0.0), (32, 123_457, 997, 17.3), (256, 9, 64, 1e4)]
)
def test_decode_times_equal_single_steps(rows: int, context: int, k: int, start: float) -> None:
    cost = nominal()
    copied = np.zeros(k, np.int64)
    copied[k // 2] = 112_343_040
    live = np.maximum(rows - np.arange(k) // 3, 0)

    end, single, contexts = start, [], context
    for j in range(k):
        end += cost.step_us(decode_rows=rows, context_sum=contexts, copied_bytes=int(copied[j])) * 1e-6
        single.append(end)
        contexts += int(live[j])
    assert cost.decode_times(rows, context, k, start=start, live=live, copied=copied).tolist() == single

    end, single = start, []
    for j in range(k):
        end += cost.step_us(decode_rows=rows, context_sum=context + j * rows, copied_bytes=0) * 1e-6
        single.append(end)
    assert cost.decode_times(rows, context, k, start=start).tolist() == single
