"""Random tiny models, one of each kind for the whole run, and the golden ones where they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install k3mem[torch]")
pytest.importorskip("safetensors", reason="needs safetensors: pip install k3mem[torch]")

from k3mem.executors.torch_ref import Model  # noqa: E402
from k3mem.executors.torch_ref.init import config_of, write  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(os.environ.get("K3MEM_SHARED", ROOT.parent / "shared")) / "golden"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(kind, layers) -> a folder with a random model."""
    made: dict[tuple[str, int], Path] = {}

    def of(kind: str = "tiny-k3", layers: int = 4) -> Path:
        if (kind, layers) not in made:
            made[kind, layers] = tmp_path_factory.mktemp("model") / f"{kind}-{layers}"
            write(made[kind, layers], config_of(kind, layers), seed=layers)
        return made[kind, layers]

    return of


@pytest.fixture(scope="session")
def model_of(folder: Callable[..., Path]) -> Callable[..., Model]:
    """(kind, layers, dtype) -> that model."""
    made: dict[tuple[str, int, torch.dtype], Model] = {}

    def of(kind: str = "tiny-k3", layers: int = 4, dtype: torch.dtype = torch.float32) -> Model:
        key = kind, layers, dtype
        if key not in made:
            made[key] = Model.from_pretrained(folder(kind, layers), dtype)
        return made[key]

    return of


@pytest.fixture
def model(model_of: Callable[..., Model]) -> Model:
    """tiny-k3 of 4 layers, float32."""
    return model_of()


def golden(name: str) -> Path:
    """A golden model's folder; skips where it is not."""
    path = GOLDEN / name
    if not (path / "golden.safetensors").exists():
        pytest.skip(f"{path} is absent: set K3MEM_SHARED to the folder of shared data")
    return path
