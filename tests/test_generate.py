"""`k3mem model init` and `k3mem generate`."""

from __future__ import annotations

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
from k3mem.cli_generate import Lookup  # noqa: E402
from k3mem.executors.torch_ref import Model  # noqa: E402

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


def test_lookup_drafts_what_followed_before() -> None:
    tokens = np.array([1, 2, 3, 4, 1, 2, 5, 1, 2], np.int32)
    assert Lookup().draft("r", tokens, 4).tolist() == [5, 1, 2]
    assert Lookup().draft("r", tokens, 1).tolist() == [5]
    for none in (tokens[:7], tokens[:2], tokens[:0]):
        assert Lookup().draft("r", none, 4).tolist() == []
