"""`k3mem generate` and `k3mem model init`: the torch_ref model under the engine, from the command line."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from k3mem.cli_parts import need_torch, reported, size_of

if TYPE_CHECKING:
    from k3mem.engine import Engine
    from k3mem.plan import Sampling

model_app = typer.Typer(no_args_is_help=True, help="Make small models.")


class Dtype(str, Enum):
    float32 = "float32"
    float64 = "float64"


@model_app.callback()
def _group() -> None:
    """Keeps `init` a command of its own while it is the only one."""


@model_app.command("init")
def model_init(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="tiny-k3 or tiny-kimi-linear.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it; made if need be.")],
    layers: Annotated[int, typer.Option(min=2, help="Layers; every fourth one and the last are MLA.")] = 4,
    seed: Annotated[int, typer.Option(help="Same seed, same values.")] = 0,
    draft: Annotated[bool, typer.Option("--draft", help="And a block drafter for it, in DIR/draft.")] = False,
) -> None:
    """Write a small random model in Hugging Face layout."""
    need_torch()
    with reported(ValueError):
        from k3mem.executors.torch_ref.init import config_of, draft_config_of, write, write_draft

        config = config_of(kind, layers)
        count = write(folder, config, seed=seed)
        typer.echo(f"{folder}: {kind}, {layers} layers, {count:,} parameters", err=True)
        if draft:
            count = write_draft(folder / "draft", draft_config_of(config), config, seed=seed + 1)
            typer.echo(f"{folder / 'draft'}: a block drafter for it, {count:,} parameters", err=True)


def generate(
    model: Annotated[Path, typer.Option("--model", metavar="DIR", help="config.json and safetensors.")],
    prompt_ids: Annotated[list[str] | None, typer.Option(
        "--prompt-ids", metavar="1,2,3", help="Token ids; again: one more prompt, after the answer to the one before.",
    )] = None,
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="Text, likewise; needs --tokenizer.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json; answers are text then.")] = None,
    max_new: Annotated[int, typer.Option("--max-new", min=1, help="Most tokens of an answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Only so many likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1, help="Only the likeliest of this mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on behind the model's end token.")] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute every prompt whole.")] = False,
    pool: Annotated[str, typer.Option(help="Bytes for pages and states.")] = "256MB",
    page: Annotated[int, typer.Option(min=1, max=512, help="Tokens a KV page.")] = 64,
    speculate: Annotated[int, typer.Option(min=0, max=15, help="Draft so many tokens a step from earlier text.")] = 0,
    draft: Annotated[Path | None, typer.Option(metavar="DIR", help="Draft by this block drafter instead.")] = None,
    surface: Annotated[Path | None, typer.Option(help="What steps cost (k3mem profile): verify what pays.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Arithmetic.")] = Dtype.float32,
) -> None:
    """Answer prompts with a model on the CPU, token by token, through the engine. The answers are the same to the bit
    with and without cache, speculation, and at any pool."""
    if bool(prompt_ids) == bool(prompt):
        raise typer.BadParameter("give --prompt-ids or --prompt", param_hint="--prompt-ids")
    if prompt and tokenizer is None:
        raise typer.BadParameter("needs --tokenizer", param_hint="--prompt")
    for given, option in ((surface, "--surface"), (draft, "--draft")):
        if given is not None and not speculate:
            raise typer.BadParameter("needs --speculate", param_hint=option)
    pool_bytes = size_of(pool, "--pool")
    need_torch()
    with reported(ImportError):
        import torch

        from k3mem.engine import Engine
        from k3mem.executors.torch_ref import BlockDrafter, Model, TorchExecutor
        from k3mem.plan import Sampling
        from k3mem.policy import Policy
        from k3mem.spec import NGram, VerifyPlanner
        from k3mem.spec.surface import load

        planner = None if surface is None else VerifyPlanner(load(surface), 1 + speculate)
        text = None if tokenizer is None else _Text(tokenizer)
        prompts = [text.encode(one) for one in prompt or ()] if text else [_ids(one) for one in prompt_ids or ()]
        loaded = Model.from_pretrained(model, getattr(torch, dtype.value), draft=draft)
        stops = () if ignore_eos else loaded.config.eos
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop_ids=stops)
        executor = TorchExecutor(loaded)
        drafter = None if not speculate else NGram() if draft is None else BlockDrafter(executor)
        engine = Engine(loaded.shape(page, 1 + speculate), executor, pool_bytes,
                        Policy(max_running=1, caching=not no_cache), window=1 + speculate,
                        drafter=drafter, planner=planner)
        for number, tokens in enumerate(prompts):
            _answer(engine, number, tokens, max_new, sampling, text)


def _answer(engine: Engine, number: int, prompt: list[int], most: int, sampling: Sampling, text: _Text | None) -> None:
    """Stream one answer to stdout, and say on stderr what was reused."""
    from k3mem.request import Request

    hit, before = engine.probe(prompt).hit, engine.scheduler.core.step
    engine.submit(Request(number, prompt, most, sampling=sampling))
    show = text.stream() if text else _show_ids()
    count = 0
    while engine.has_work:
        for out in engine.step():
            count += len(out.tokens)
            show(out.tokens)
    typer.echo()
    typer.echo(f"{len(prompt)} prompt tokens, {hit} of them from the cache; {count} new ones in "
               f"{engine.scheduler.core.step - before} steps", err=True)


def _show_ids() -> Callable[[list[int]], None]:
    first = True

    def show(tokens: list[int]) -> None:
        nonlocal first
        for token in tokens:
            typer.echo(f"{'' if first else ' '}{token}", nl=False)
            first = False

    return show


def _ids(text: str) -> list[int]:
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of integers", param_hint="--prompt-ids") from None


class _Text:
    """A tokenizer.json. Raises ImportError without the package, OSError for a file that cannot be read."""

    def __init__(self, path: Path) -> None:
        import importlib

        try:
            package: Any = importlib.import_module("tokenizers")
        except ModuleNotFoundError as error:
            raise ImportError("reading a tokenizer.json needs the package: pip install tokenizers") from error
        try:
            self._tokenizer = package.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise OSError(None, f"no tokenizer: {error}", str(path)) from error

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def stream(self) -> Callable[[list[int]], None]:
        """A function that prints the text of tokens as soon as it is whole."""
        ids: list[int] = []
        shown = ""

        def show(tokens: list[int]) -> None:
            nonlocal shown
            ids.extend(tokens)
            text: str = self._tokenizer.decode(ids)
            if not text.endswith("\N{REPLACEMENT CHARACTER}"):
                typer.echo(text[len(shown) :], nl=False)
                shown = text

        return show
