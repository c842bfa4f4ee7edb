"""How a command of `collect` speaks: results on stdout, everything else on stderr."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from estimator.whole_file import write_whole


def say(result: Any) -> None:
    """Lines, or one JSON document, on stdout."""
    if isinstance(result, list) and result and all(isinstance(line, str) for line in result):
        click.echo("\n".join(result))
    else:
        click.echo(json.dumps(result, indent=2, allow_nan=False))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines of aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def write_document(path: Path, document: Any) -> None:
    """A JSON document as a file, whole or not at all.  Raises UnwrittenError."""
    write_whole(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def note(line: str) -> None:
    """One line on stderr."""
    click.echo(line, err=True)
