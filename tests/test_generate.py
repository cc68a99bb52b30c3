"""`k3mem model init` and `k3mem generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("torch", reason="needs torch: pip install k3mem[torch]")
pytest.importorskip("safetensors", reason="needs safetensors: pip install k3mem[torch]")

from k3mem.cli import app  # noqa: E402
from k3mem.executors.torch_ref import Model  # noqa: E402
from k3mem.executors.torch_ref.init import config_of, write  # noqa: E402
from k3mem.spec import Treads  # noqa: E402
from k3mem.spec.surface import dump, load  # noqa: E402

PROMPT = [5, 6, 7, 8] * 5


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generate") / "model"
    assert call("model", "init", "tiny-k3", str(path), "--layers", "2", "--seed", "3").exit_code == 0
    return path


def answers(folder: Path, *args: str, prompts: list[list[int]] | None = None) -> tuple[list[list[int]], str]:
    """(answer of each prompt, what stood on stderr)."""
    given = [word for ids in prompts or [PROMPT] for word in ("--prompt-ids", ",".join(map(str, ids)))]
    got = call("generate", "--model", str(folder), *given, "--max-new", "12", "--ignore-eos", *args)
    assert got.exit_code == 0, got.output
    return [[int(word) for word in line.split()] for line in got.stdout.splitlines()], got.stderr


def test_init_writes_the_layers_asked_for(folder: Path, tmp_path: Path) -> None:
    assert Model.from_pretrained(folder).config.layers == 2
    got = call("model", "init", "tiny-kimi-linear", str(tmp_path / "m"))
    assert got.exit_code == 0 and "4 layers" in got.stderr
    assert Model.from_pretrained(tmp_path / "m").config.mla_layers == (3,)


def test_init_of_an_unknown_kind_names_the_known_ones(tmp_path: Path) -> None:
    got = call("model", "init", "huge", str(tmp_path))
    assert got.exit_code == 2 and "tiny-k3" in got.stderr


def test_the_answer_is_the_models(folder: Path) -> None:
    ((answer,), _) = answers(folder)
    logits = Model.from_pretrained(folder).logits(PROMPT + answer)
    assert logits.argmax(-1).tolist()[len(PROMPT) - 1 : -1] == answer


@pytest.mark.parametrize("options", [["--no-cache"], ["--page", "1"], ["--pool", "600KB"], ["--speculate", "5"],
                                     ["--speculate", "2", "--no-cache"]], ids=" ".join)
def test_the_answer_depends_on_no_option_of_memory(folder: Path, options: list[str]) -> None:
    assert answers(folder, *options)[0] == answers(folder)[0]


def test_a_later_prompt_reuses_an_earlier_answer(folder: Path) -> None:
    ((first,), _) = answers(folder)
    prompts = [PROMPT, [*PROMPT, *first, 9, 9]]
    cached, said = answers(folder, prompts=prompts)
    assert f"{len(PROMPT) + len(first) - 1} of them from the cache" in said
    alone, said = answers(folder, "--no-cache", prompts=prompts)
    assert " 0 of them" in said and cached == alone


def test_draws_follow_the_seed(folder: Path) -> None:
    one, other = (answers(folder, "--temperature", "1", "--seed", seed)[0] for seed in ("1", "2"))
    assert one != other and answers(folder, "--temperature", "1", "--seed", "1", "--speculate", "3")[0] == one


def test_text_goes_through_the_tokenizer_and_is_shown_once_it_is_whole(
        folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tokenizer:
        @classmethod
        def from_file(cls, path: str) -> Tokenizer:
            assert path == "t.json"
            return cls()

        def encode(self, text: str) -> Any:
            return SimpleNamespace(ids=[ord(c) for c in text])

        def decode(self, ids: list[int]) -> str:
            """Two tokens a character; half a one is not shown."""
            return "x" * (len(ids) // 2) + "\N{REPLACEMENT CHARACTER}" * (len(ids) % 2)

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokenizer))
    got = call("generate", "--model", str(folder), "--prompt", "abc", "--tokenizer", "t.json", "--max-new", "6",
               "--ignore-eos")
    assert got.stdout == "xxx\n" and "3 prompt tokens" in got.stderr


@pytest.mark.parametrize(("args", "what"), [
    ([], "--prompt-ids or --prompt"), (["--prompt", "a"], "needs --tokenizer"),
    (["--prompt-ids", "1", "--prompt", "a", "--tokenizer", "t"], "--prompt-ids or --prompt"),
    (["--prompt-ids", "1,x"], "no list of integers"), (["--prompt-ids", "1,512"], r"outside 0..511"),
    (["--prompt-ids", "1", "--pool", "no"], "--pool"), (["--prompt-ids", "1", "--pool", "1KB"], "1000 is too small"),
])
def test_wrong_arguments_end_in_two(folder: Path, args: list[str], what: str) -> None:
    got = call("generate", "--model", str(folder), *args)
    assert got.exit_code == 2 and what in got.output


def test_a_folder_that_is_no_model_ends_in_two(tmp_path: Path) -> None:
    got = call("generate", "--model", str(tmp_path), "--prompt-ids", "1")
    assert got.exit_code == 2 and "config.json" in got.stderr


def test_a_surface_is_measured_and_planned_by(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "surface.json"
    got = call("profile", "--executor", "torch_ref", "--model", str(folder), "--out", str(out), "--rows", "1,2",
               "--window", "4", "--context", "0", "--repeat", "1", "--page", "16")
    assert got.exit_code == 0, got.output
    facts = json.loads(out.read_text())
    assert (facts["executor"], facts["shape"], facts["window"]) == ("torch_ref", "kimi_k3", 4)
    assert (load(out).step_us(2, np.array([2, 8]), 0) > 0).all()
    assert answers(folder, "--speculate", "3", "--surface", str(out))[0] == answers(folder)[0]


def test_a_surface_where_drafts_never_pay_verifies_none(tmp_path: Path) -> None:
    raw = config_of("tiny-k3", 2)
    raw["text_config"]["vocab_size"] = 8  # so that what was said is said again
    write(tmp_path / "m", raw)
    steep = tmp_path / "steep.json"
    steep.write_text(dump(Treads(ends=np.array([1, 2, 4]), levels=np.array([1.0, 1e6, 2e6]))))

    def steps(*options: str) -> int:
        said = answers(tmp_path / "m", "--max-new", "60", *options, prompts=[[5, 6, 7, 5, 6, 7]])[1]
        return int(said.split(" new ones in ")[1].split()[0])

    assert steps("--speculate", "3") < steps("--speculate", "3", "--surface", str(steep)) == steps()


@pytest.mark.parametrize(("args", "what"), [
    (["--executor", "torch_ref"], "--model"), (["--model", "m"], "--model"),
    (["--executor", "torch_ref", "--model", "m", "--shape", "kimi-k3"], "its own sizes"),
    (["--executor", "torch_ref", "--model", "no such folder"], "no such folder"),
])
def test_profile_of_a_model_needs_both(tmp_path: Path, args: list[str], what: str) -> None:
    got = call("profile", "--out", str(tmp_path / "x.json"), *args)
    assert got.exit_code == 2 and what in got.output


@pytest.mark.parametrize("option", ["--surface", "--draft"])
def test_what_speculates_needs_a_number_of_drafts(folder: Path, option: str) -> None:
    got = call("generate", "--model", str(folder), "--prompt-ids", "1", option, "s")
    assert got.exit_code == 2 and "needs --speculate" in got.output


def test_a_block_drafter_changes_no_token(tmp_path: Path) -> None:
    got = call("model", "init", "tiny-kimi-linear", str(tmp_path / "m"), "--layers", "2", "--draft")
    assert got.exit_code == 0 and "block drafter" in got.stderr
    options = ["--speculate", "7", "--draft", str(tmp_path / "m/draft")]
    assert answers(tmp_path / "m", *options)[0] == answers(tmp_path / "m")[0]
