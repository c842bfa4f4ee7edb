"""What every command shares: its end (exit status, one line for an error, no message for a closed pipe), and options that name outputs.

0 done · 1 failed · 2 wrong usage · 3 done, but not to be used as it is · 130 interrupted

Outputs are checked before the work begins.  No existing file is replaced without `--force`, by any command.
`estimator.vocabulary.whole_file` writes.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from estimator.vocabulary.documents import printable
from estimator.vocabulary.whole_file import try_place

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
DONE_WITH_WARNINGS: Final = 3
INTERRUPTED: Final = 130

LONGEST_LINE: Final = 2000
"""Most characters of an error; a longer argument or field is cut in its middle."""


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def named_file(text: str) -> str:
    """A text that can name a file, as the type of an option.  Raises BadParameter for an empty text and for a null byte."""
    if not text.strip():
        raise click.BadParameter("an empty text names no file")
    if "\0" in text:
        raise click.BadParameter("a null byte is no part of a file's name")
    return text


def is_given(name: str) -> bool:
    """Whether the present command has this option, by its name as an argument, and the user gave it."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


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
        tell(f"{path}: {one_line(error.format_message()).rstrip('.')}; see '{path} --help'")
        return WRONG_USAGE
    except click.ClickException as error:
        tell(f"{name}: {one_line(error.format_message())}")
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        if sys.stderr.isatty():  # the terminal has written "^C"
            tell("")
        tell(f"{name}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        return FAILED
    except MemoryError:
        tell(f"{name}: not enough memory")
        return FAILED
    except errors as error:
        tell(f"{name}: {one_line(str(error))}")
        return getattr(error, "exit_status", FAILED)
    except OSError as error:  # an invalid file name; without a name it is stdout, for example on a full disk
        told = f"{error.filename}: {error.strerror or error}" if error.filename else f"stdout cannot be written ({error.strerror or error})"
        tell(f"{name}: {one_line(told)}" + ("" if error.filename else "; make room, or send it elsewhere"))
        return FAILED


def with_usual_options(command: click.Command) -> click.Command:
    """The command with -q and -v, which every command takes, and without silent repetitions (`_parsed`), and so its own commands.

    A command that has nothing to hide or to add ignores -q and -v.
    """
    for inner in getattr(command, "commands", {}).values():
        with_usual_options(inner)
    command.parse_args = partial(_parsed, command)  # type: ignore[method-assign]
    known = {name for parameter in command.params for name in parameter.opts}
    for short, long, text in (("-q", "--quiet", "No warnings on stderr."), ("-v", "--verbose", "More on stderr, if there is more.")):
        if long not in known:
            command.params.append(click.Option([short, long], is_flag=True, expose_value=False, help=text))
    return command


def _parsed(command: click.Command, context: click.Context, arguments: list[str]) -> list[str]:
    """The words that click leaves over.

    Raises BadParameter for an option whose value is another option, and for one of one value that is given again: click takes the last one.
    """
    values, _, given = command.make_parser(context).parse_args([*arguments])
    names = {name for parameter in command.get_params(context) for name in parameter.opts}
    for option in given:
        if isinstance(option, click.Option) and names.intersection(values[option.name] if option.multiple else [values[option.name]]):
            raise click.BadParameter("its value is missing: another option follows", context, option)
    left = type(command).parse_args(command, context, arguments)
    for option in given:
        once = isinstance(option, click.Option) and not option.multiple and (not option.is_flag or option.secondary_opts)
        if once and given.count(option) > 1:
            raise click.BadParameter("it is given more than once, or with its opposite; give it once", context, option)
    return left


def _invoked(command: click.Command, name: str, arguments: list[str]) -> Any:
    """The return value of a command.  Avoids `command.main`, which writes an empty line when it is interrupted, even into a log."""
    try:
        with with_usual_options(command).make_context(name, arguments, help_option_names=["-h", "--help"]) as context:
            return command.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code


def tell(line: str) -> None:
    """Write one line to stderr."""
    click.echo(printable(line), err=True)


def one_line(text: str) -> str:
    """A message on one line of a terminal; a very long one is cut in its middle."""
    line = printable(" ".join(text.split()))
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


FORCE: Final = "force"
GIVEN: Final = "wattprint.force"
"""Key in a command's context that stores whether `--force` was given."""

INPUT_PREFIXES: Final = ("sim:", "replay:")
"""Words of `--gpu` before the name of a file that is read."""


FORMATS: Final = (".csv", ".gz", ".html", ".json", ".parquet", ".pmd", ".txt", ".xlsx")
"""Endings of files that promise a format."""


class OutputFile(click.Path):
    """A file to write."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.  Raises BadParameter for an empty text, which would mean the present folder, and for a null byte."""
        named_file(str(value))
        return super().convert(value, param, ctx)


class OutputPlace(click.types.StringParamType):
    """A dataset to write, as a file or a folder; a campaign, which can continue one (`--resume`), checks it itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text.  Raises BadParameter like OutputFile, and for the ending of another format."""
        place = named_file(super().convert(value, param, ctx))
        if Path(place).suffix.lower() in {*FORMATS} - {".parquet"}:
            self.fail(f"{place!r}: a dataset is Parquet; `collect export DATASET --to csv` writes other formats", param, ctx)
        return place


def output_option(*names: str, force: bool = True, **settings: Any) -> Callable[[Decorated], Decorated]:
    """An option, by default `-o, --out`, that names an output of a command; the command starts only if `check_output` accepts it.

    An ending in `metavar` is the file's format: the ending of another one is refused.
    force: whether the command has `--force`, which is declared beside its first output.
    """

    def decorate(function: Decorated) -> Decorated:
        declared = {parameter.name for parameter in getattr(function, "__click_params__", ())}
        function = click.option(*(names or ("-o", "--out")), type=OutputFile(path_type=Path), **settings)(function)
        if force and FORCE not in declared:
            text = "Replace output files that exist."
            function = click.option("--force", is_flag=True, expose_value=False, callback=_remember, help=text)(function)
        return function if getattr(function, "checks_outputs", False) else _checked(function)

    return decorate


def _remember(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    context.meta[GIVEN] = given


def _checked(function: Decorated) -> Decorated:
    """The function, called after all outputs of its command are accepted."""

    @wraps(function)
    def begin(*arguments: Any, **options: Any) -> Any:
        context = click.get_current_context()
        named: set[str] = set()
        for parameter in context.command.params:
            path = context.params.get(parameter.name or "")
            if isinstance(parameter.type, OutputFile) and path is not None:
                check_output(path, parameter.opts[-1])
                own = Path(str(parameter.metavar)).suffix
                if own and path.suffix.lower() in {*FORMATS} - {own}:
                    raise click.BadParameter(f"{path}: the file is {own}; give its name that ending", context, parameter)
                place = os.path.realpath(path)
                if place in named:
                    raise click.ClickException(f"{path}: is named for two outputs; name a file for each")
                named.add(place)
        return function(*arguments, **options)

    begin.checks_outputs = True  # type: ignore[attr-defined]
    return begin  # type: ignore[return-value]


def check_output(path: Path, option: str = "--out") -> None:
    """Check an output of the present command.

    Raises UnwrittenError for a path that cannot be written, and ClickException for an input of the command and for an existing file
    without `--force`; both end the command with status 1.
    """
    refuse_inputs([path])
    try_place(path)
    if os.path.lexists(path) and not click.get_current_context().meta.get(GIVEN):
        takes_force = any(parameter.name == FORCE for parameter in click.get_current_context().command.params)
        raise click.ClickException(f"{path} exists; {'--force replaces it, ' if takes_force else ''}{option} names another file")


def refuse_inputs(outputs: Iterable[Path]) -> None:
    """Raise ClickException if an output is also an input of the present command, a word that names a file under any name."""
    there = [path for path in outputs if path.exists()]
    for word in _words() if there else ():
        try:
            same = next((path for path in there if word and path.samefile(word)), None)
        except (OSError, ValueError):
            continue  # no file
        if same is not None:
            raise click.ClickException(f"{same}: is what this command reads; name another file to write")


def _words() -> list[str]:
    """Every word of the present command that may name a file to read."""
    context = click.get_current_context()
    words = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not isinstance(parameter.type, OutputFile | OutputPlace):
            texts = [str(one) for one in (value if isinstance(value, tuple | list) else [value]) if isinstance(one, str | Path)]
            words += texts + [part.strip() for text in texts for part in text.split(",")]
    for prefix in INPUT_PREFIXES:
        words += [word.removeprefix(prefix) for word in words if word.startswith(prefix)]
    return words
