"""End of every command: exit status, one line for an error, no message for a closed pipe.

0 done · 1 failed · 2 wrong usage · 3 done, but not to be used as it is · 130 interrupted
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
DONE_WITH_WARNINGS: Final = 3
INTERRUPTED: Final = 130

LONGEST_LINE: Final = 2000
"""Most characters of an error; a longer argument or field is cut in its middle."""


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def named_file(context: click.Context | None, parameter: click.Parameter | None, text: str | None) -> str | None:
    """A text that can name a file, or None.  Raises BadParameter for an empty text and for a null byte."""
    if text is None:
        return None
    if not text.strip():
        raise click.BadParameter("an empty text names no file", context, parameter)
    if "\0" in text:
        raise click.BadParameter("a null byte is no part of a file's name", context, parameter)
    return text


def named_files(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts that can name files.  Raises BadParameter like `named_file`."""
    for text in texts:
        named_file(context, parameter, text)
    return texts


def run_command(command: click.Command, arguments: Sequence[str] | None, name: str, errors: tuple[type[Exception], ...]) -> int:
    """Run a click command and return its exit status; the command's own return value, if it is a number, is that status.

    `errors` are the exceptions whose message is for the user; one with an `exit_status` chooses that.  They, wrong usage and an
    interruption become one line on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?" for it
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        status = _invoked(command, name, given)
        return status if isinstance(status, int) else DONE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        _complain(f"{path}: {one_line(error.format_message()).rstrip('.')}; see '{path} --help'")
        return WRONG_USAGE
    except click.ClickException as error:
        _complain(f"{name}: {one_line(error.format_message())}")
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():  # the terminal has written "^C"
            _complain("")
        _complain(f"{name}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        return FAILED
    except MemoryError:
        _complain(f"{name}: not enough memory")
        return FAILED
    except errors as error:
        _complain(f"{name}: {one_line(str(error))}")
        return getattr(error, "exit_status", FAILED)
    except OSError as error:  # an invalid file name; without a name it is stdout, for example on a full disk
        told = f"{error.filename}: {error.strerror or error}" if error.filename else f"stdout cannot be written ({error.strerror or error})"
        _complain(f"{name}: {one_line(told)}" + ("" if error.filename else "; make room, or send it elsewhere"))
        return FAILED


def with_usual_options(command: click.Command) -> click.Command:
    """The command with -q and -v, which every command takes; one that has nothing to hide or to add ignores them."""
    known = {name for parameter in command.params for name in parameter.opts}
    for short, long, text in (("-q", "--quiet", "No warnings on stderr."), ("-v", "--verbose", "More on stderr, if there is more.")):
        if long not in known:
            command.params.append(click.Option([short, long], is_flag=True, expose_value=False, help=text))
    return command


def _invoked(command: click.Command, name: str, arguments: list[str]) -> Any:
    """The return value of a command.  Avoids `command.main`, which writes an empty line when it is interrupted, even into a log."""
    try:
        with with_usual_options(command).make_context(name, arguments) as context:
            return command.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code


def _complain(line: str) -> None:
    click.echo(line, err=True)


def one_line(text: str) -> str:
    """A message on one line of a terminal; a very long one is cut in its middle."""
    line = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"
