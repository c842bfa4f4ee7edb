"""Options that name a file to write, the check before the work begins, and `--force`: one mechanism for all commands.

No existing file is replaced without `--force`, by any command.  `estimator.vocabulary.whole_file` writes.
"""

import os
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from estimator.options.command_line import named_file
from estimator.vocabulary.whole_file import try_place

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FORCE: Final = "force"
GIVEN: Final = "wattprint.force"
"""Key in a command's context that stores whether `--force` was given."""

INPUT_PREFIXES: Final = ("sim:", "replay:")
"""Words of `--gpu` before the name of a file that is read."""


class OutputFile(click.Path):
    """A file to write."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path.  Raises BadParameter for an empty text, which would mean the present folder, and for a null byte."""
        named_file(ctx, param, str(value))
        return super().convert(value, param, ctx)


OTHER_FORMATS = (".csv", ".json", ".txt", ".xlsx")
"""Endings of files that a dataset is not."""


class OutputPlace(click.types.StringParamType):
    """A dataset to write, as a file or a folder; a campaign, which can continue one (`--resume`), checks it itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The text.  Raises BadParameter like OutputFile, and for the ending of another format."""
        place = named_file(ctx, param, super().convert(value, param, ctx))
        if str(place).lower().endswith(OTHER_FORMATS):
            self.fail(f"{place!r}: a dataset is Parquet; `collect export DATASET --to csv` writes other formats", param, ctx)
        return place


def output_option(*names: str, force: bool = True, **settings: Any) -> Callable[[Decorated], Decorated]:
    """An option, by default `-o, --out`, that names an output of a command; the command starts only if `check_output` accepts it.

    force: whether the command has `--force`, which is declared beside its first output.
    """

    def decorate(function: Decorated) -> Decorated:
        declared = {parameter.name for parameter in getattr(function, "__click_params__", ())}
        function = click.option(*(names or ("-o", "--out")), type=OutputFile(), **settings)(function)
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
