"""How a command of `collect` speaks: results on stdout, everything else on stderr."""

import json
from typing import Any

import click


def say(result: Any) -> None:
    """Lines, or one JSON document, on stdout."""
    if isinstance(result, list) and all(isinstance(line, str) for line in result):
        click.echo("\n".join(result))
    else:
        click.echo(json.dumps(result, indent=2, allow_nan=False))


def note(line: str) -> None:
    """One line on stderr."""
    click.echo(line, err=True)
