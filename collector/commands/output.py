"""How a command of `collect` speaks: results on stdout, everything else on stderr."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from collector.errors import CollectorError
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
    """A JSON document as a file, whole or not at all.  Raises CollectorError for a path that cannot be written."""
    try:
        write_whole(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise CollectorError(f"{path}: cannot be written ({error.strerror}); name a file in a folder that is there") from error


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Raises CollectorError, before any work is done, where a file could not be written, or would replace an input or another output."""
    named: set[Path] = set()
    written = [path for path in outputs if path is not None]
    read = [path for path in inputs if path is not None]
    for path in written:
        if path.is_dir():
            raise CollectorError(f"{path}: cannot be written, it is a folder; name a file")
        if not path.absolute().parent.is_dir():
            raise CollectorError(f"{path}: cannot be written, no folder {path.absolute().parent} is there; make it, or name another file")
        check_no_input([path], read)
        place = path.resolve()
        if place in named:
            raise CollectorError(f"{path}: is named for two outputs; name a file for each")
        named.add(place)


def check_no_input(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Raises CollectorError where a file to write is one that is read, under whatever name."""
    read = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path.resolve() in read:
            raise CollectorError(f"{path}: is what this command reads; name another file to write")


def read_files(gpu: str = "", campaign: str = "") -> tuple[Path, ...]:
    """Files behind the words of `--gpu` (profiles and recordings, of one board or of several) and of `--campaign`; names are left out."""
    boards = [word.strip().removeprefix("sim:").removeprefix("replay:") for word in gpu.split(",")]
    return tuple(path for path in map(Path, [*boards, campaign]) if path.is_file())


def note(line: str) -> None:
    """One line on stderr."""
    click.echo(line, err=True)
