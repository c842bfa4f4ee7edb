"""How every command ends: exit status, one line for an error, silence for a closed pipe.

0 done · 1 it could not be done · 2 wrong usage · 3 done, but a warning holds or data were rejected · 130 interrupted
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from estimator.entry import INTERRUPTED

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
DONE_WITH_WARNINGS: Final = 3

LONGEST_LINE: Final = 2000
"""Characters of an error; an argument or a field that is longer is cut in its middle."""


class OutputFile(click.Path):
    """A file to write: its text must name one."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.  Raises BadParameter for an empty text, which would mean the present folder, and for one with a null byte."""
        named_file(ctx, param, str(value))
        return super().convert(value, param, ctx)


def named_file(context: click.Context | None, parameter: click.Parameter | None, text: str | None) -> str | None:
    """A text that can name a file, or None.  Raises BadParameter for an empty one and for one with a null byte."""
    if text is None:
        return None
    if not text.strip():
        raise click.BadParameter("an empty text names no file", context, parameter)
    if "\0" in text:
        raise click.BadParameter("a null byte is no part of a file's name", context, parameter)
    return text


def named_files(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts each of which can name a file.  Raises BadParameter as `named_file`."""
    for text in texts:
        named_file(context, parameter, text)
    return texts


def run_command(command: click.Command, arguments: Sequence[str] | None, name: str, errors: tuple[type[Exception], ...]) -> int:
    """Run a click command and return its exit status; the command's own return value, if it is a number, is that status.

    `errors` are the exceptions whose message is meant for the user.  They, wrong usage and an interruption become
    one line on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?" for it
    try:
        status = command.main(args=None if arguments is None else list(arguments), prog_name=name, standalone_mode=False)
        return status if isinstance(status, int) else DONE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        _complain(f"{path}: {_one_line(error.format_message()).rstrip('.')}; see '{path} --help'")
        return WRONG_USAGE
    except click.ClickException as error:
        _complain(f"{name}: {_one_line(error.format_message())}")
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        _complain(f"{name}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; nobody is left to tell
        return FAILED
    except MemoryError:
        _complain(f"{name}: not enough memory")
        return FAILED
    except errors as error:
        _complain(f"{name}: {_one_line(str(error))}")
        return FAILED
    except OSError as error:  # a full disk behind stdout, a name that no file can have
        place = f"{error.filename}: " if error.filename else ""
        _complain(f"{name}: {_one_line(f'{place}{error.strerror or error}')}")
        return FAILED


def _complain(line: str) -> None:
    click.echo(line, err=True)


def _one_line(text: str) -> str:
    line = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"
