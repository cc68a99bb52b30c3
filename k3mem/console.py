"""What the commands share: errors as exit codes, sizes as arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer


@contextmanager
def reported(*wrong: type[Exception]) -> Iterator[None]:
    """Errors about the input end in exit code 2, failures of a run in 1, each with its message on stderr. Of plain
    exceptions only those in `wrong` are taken for errors about the input."""
    from k3mem.errors import K3MemError

    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        fail(f"{where}{error.strerror or error}", 2)
    except K3MemError as error:
        fail(str(error), 2 if isinstance(error, ValueError) else 1)
    except wrong as error:
        fail(str(error), 2)


def fail(message: str, code: int) -> NoReturn:
    """Say why on stderr and end with this exit code."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


def size(text: str, option: str) -> int:
    """Bytes of an option such as 80GB. Raises BadParameter."""
    from k3mem.units import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
