"""Without the shared data or the peers, the benches say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import ours, peers, serve, setup_peers, shared


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("K3MEM_SHARED", str(tmp_path / "shared"))
    monkeypatch.setenv("PEERS", str(tmp_path / "peers"))
    return tmp_path


def caches() -> None:
    for cached in (shared.workloads, shared.make_agentic, shared.agentic):
        cached.cache_clear()


def test_absent_data_is_a_skip_that_says_what_to_set(nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert peers.main([]) == 0
    said = capsys.readouterr().err
    assert said.startswith("skipped: ") and "K3MEM_SHARED" in said


def test_absent_peers_are_a_skip_that_says_how_to_install_them(
        nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bench/workloads.py", f"traces/{ours.MOONCAKE}", f"traces/{ours.AGENTS}"):
        path = nothing / "shared" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert peers.main([]) == 0
    said = capsys.readouterr().err
    assert said.startswith("skipped: sglang is not installed") and "bench.setup_peers" in said


def test_half_an_installation_is_none(nothing: Path) -> None:
    python = nothing / "peers" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    with pytest.raises(shared.Absent):
        shared.interpreter("vllm")
    (nothing / "peers" / "vllm" / ".done").write_text("")
    with pytest.raises(shared.Absent):
        shared.interpreter("vllm")
    (nothing / "peers" / "vllm_src").mkdir()
    (nothing / "peers" / "vllm_src" / ".done").write_text("")
    assert shared.interpreter("vllm") == python


@pytest.mark.parametrize("main", [lambda: serve.main(["agentic"]), setup_peers.main])
def test_other_commands_end_with_2(nothing: Path, main: object, capsys: pytest.CaptureFixture[str]) -> None:
    caches()
    assert callable(main) and main() == 2
    assert "K3MEM_SHARED" in capsys.readouterr().err


def test_measures_are_functions_of_ours() -> None:
    assert all(callable(getattr(ours, name)) for name in peers.MEASURES)


def test_the_machine_is_described() -> None:
    assert {"cores", "load", "python", "system"} == peers.machine().keys()
