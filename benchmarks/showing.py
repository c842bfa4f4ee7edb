"""Output of every benchmark: a line for each result as it arrives, or all results as JSON."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Folder of published measurements beside a clone."""


def show(rows: Iterable[Mapping[str, object]], as_json: bool) -> None:
    """Print rows: names and values, nan as –."""
    kept = []
    for row in rows:
        kept.append(dict(row))
        if not as_json:
            click.echo("  ".join(f"{name} {_text(value)}".strip() for name, value in row.items() if value is not None))
    if as_json:
        click.echo(json.dumps(kept, indent=1))


def _text(value: object) -> str:
    if isinstance(value, tuple | list):
        return "/".join(map(_text, value))
    return ("–" if value != value else f"{value:.3g}") if isinstance(value, float) else str(value)


def published(folder: Path) -> bool:
    """Whether published measurements exist; prints a message if not."""
    if not folder.is_dir():
        click.echo(f"skipped: the published measurements are not at {folder}; --data names another folder", err=True)
    return folder.is_dir()
