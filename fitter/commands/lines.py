"""Output of the commands: text from files is made safe for a terminal and cut to a length."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

import click

LONGEST_LINE: Final = 4000
"""Most characters of a line; a longer line loses its middle."""

BEYOND_ASCII: Final = re.compile(r"[^\x20-\x7e\n]")


def say(result: Mapping[str, object] | Sequence[str]) -> None:
    """Write a document as JSON, or lines, to stdout."""
    if isinstance(result, Mapping):
        text = json.dumps(result, indent=1, allow_nan=False, ensure_ascii=False)
        click.echo(BEYOND_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text))
    else:
        click.echo("\n".join(map(plain, result)))


def tell(line: str) -> None:
    """Write a line to stderr."""
    click.echo(plain(line), err=True)


def plain(line: str) -> str:
    """The line with "?" for characters that move the cursor, begin a new line or change the direction of writing."""
    half = LONGEST_LINE // 2
    text = line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)
