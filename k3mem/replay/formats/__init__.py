"""Trace formats: one module each, told from the first record."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from k3mem.replay.formats import (
    agentic,
    arrivals,
    bailian,
    k3trace,
    messages,
    mooncake,
    tokens,
    tracelab,
    weka,
    weka_raw,
)
from k3mem.replay.formats.base import Format, Source
from k3mem.replay.formats.build import ID_LIMIT, Builder, Full
from k3mem.replay.trace import BadTrace, Tokenizer, Trace

FORMATS: tuple[Format, ...] = (
    arrivals.FORMAT,
    k3trace.FORMAT,
    weka.FORMAT,
    weka_raw.FORMAT,
    agentic.FORMAT,
    bailian.FORMAT,
    mooncake.FORMAT,
    tokens.FORMAT,
    messages.FORMAT,
    tracelab.FORMAT,
)
"""In the order in which they are tried: the first that matches is it."""


def detect(source: Source) -> tuple[Format, dict[str, Any]]:
    """The format of a file, and its first record. Raises BadTrace with all that was tried."""
    head = source.head()
    for format in FORMATS:
        if format.matches(head):
            return format, head
    tried = "; ".join(f"{format.name} ({format.fields})" for format in FORMATS)
    found = ", ".join(list(head)[:12]) or "no fields"
    raise BadTrace(source.path, 0, f"unknown format, first record has {found}; tried {tried}")


def read(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, skip_bad: bool = False,
    tokenizer: str | os.PathLike[str] | Tokenizer | None = None, block: int | None = None, limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trace:  # fmt: skip
    """See `k3mem.replay.trace.load`."""
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not files:
        raise ValueError("no trace files given")
    encode = open_tokenizer(tokenizer)
    problems: list[BadTrace] = []
    builder: Builder | None = None
    chosen: Format | None = None
    has_sessions = True
    for path in files:
        source = Source(path, skip_bad=skip_bad, tokenizer=encode)
        format, head = detect(source)
        size = _block(format, head, block, source.path)
        if builder is None or chosen is None:
            chosen, builder, has_sessions = format, Builder(size, limit=limit, progress=progress), format.sessions(head)
        elif format is not chosen or size != builder.block:
            raise BadTrace(source.path, 0, f"{format.name} with blocks of {size} after {chosen.name} with blocks of "
                                           f"{builder.block}: one trace has one format")
        try:
            format.read(source, builder)
        except Full:
            problems += source.problems
            break
        problems += source.problems
    assert builder is not None and chosen is not None
    name = Path(os.fspath(files[0])).name
    if not builder.turns:
        raise BadTrace(os.fspath(files[0]), 0, f"no turns in this {chosen.name} trace ({len(problems)} lines skipped)")
    return builder.finish(name, chosen.name, has_sessions=has_sessions, wall_clock=chosen.wall_clock, problems=problems)


def _block(format: Format, head: dict[str, Any], asked: int | None, path: str) -> int:
    """Tokens a block: what the file states, else what the caller asks, else the format's own."""
    if format.block == 1:
        return 1
    stated = head.get(format.block_field)
    if stated is None:
        return asked or format.block
    if not isinstance(stated, int) or not 1 <= stated < ID_LIMIT:
        raise BadTrace(path, 1, f"`{format.block_field}` is {stated!r}: expected tokens a block")
    return stated


def open_tokenizer(tokenizer: str | os.PathLike[str] | Tokenizer | None) -> Tokenizer | None:
    """A callable str -> ids. Raises BadTrace if a tokenizer.json cannot be read, ImportError without `tokenizers`."""
    if tokenizer is None or not isinstance(tokenizer, (str, os.PathLike)):
        return tokenizer
    try:
        package = importlib.import_module("tokenizers")
    except ImportError as error:
        raise ImportError("reading a tokenizer.json needs the package: pip install tokenizers") from error
    path = os.fspath(tokenizer)
    try:
        model = package.Tokenizer.from_file(path)
    except Exception as error:  # the package raises bare Exception
        raise BadTrace(path, 0, f"not a tokenizer.json: {error}") from error

    def encode(text: str) -> list[int]:
        return list(model.encode(text, add_special_tokens=False).ids)

    return encode
