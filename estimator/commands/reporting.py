"""Output of commands: the answer to a file or stdout, and on stderr warnings and notes, each once with the workloads that it concerns."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from estimator.commands.options import Options
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS, tell

NUMBER: Final = re.compile(r"(?<![\w.])(?:\d+(?:x\d+)+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.]*\w)")
"""Pattern of a number, or of the shape of an operator ("64x512"), that is a separate word: not the digits of "fp8" and "h100"."""

MOST_WARNINGS: Final = 3
"""Most lines of warnings about an answer; its JSON holds all."""

MOST_NAMED: Final = 6
"""Most names in one line."""


Forms = Mapping[str, Callable[[], str | bytes | Iterable[str]]]
"""An answer by the form in which it is written."""


def show(text: str | bytes) -> None:
    """Write a text to stdout as it is."""
    click.echo(text, nl=False)


def deliver(form: str, forms: Forms, out: Path | None) -> None:
    """Write the answer in one of its forms to a file atomically, or to stdout.  Raises UnwrittenError."""
    answer = forms[form]()
    pieces: Iterable[str | bytes] = [answer] if isinstance(answer, str | bytes) else answer
    if out is None:
        for piece in pieces:
            show(piece)
        return
    from estimator.vocabulary.whole_file import open_whole

    with open_whole(out) as stream:
        for piece in pieces:
            stream.write(piece if isinstance(piece, bytes) else piece.encode("utf-8", errors="replace"))


def say(warnings: Sequence[str], notes: Sequence[str], options: Options) -> int:
    """Write notes and at most MOST_WARNINGS lines of warnings to stderr, unless --quiet; returns the exit status: 3 if --strict."""
    more = len(warnings) - MOST_WARNINGS + 1
    shown = [*warnings[: MOST_WARNINGS - 1], f"{more} more; the JSON lists them all"] if more > 1 else warnings
    for kind, lines in () if options["quiet"] else (("warning", shown), ("note", notes)):
        for line in lines:
            tell(f"{kind}: {line}")
    return DONE_WITH_WARNINGS if warnings and options.get("strict") else DONE


Remarks = Iterable[tuple[str, str]]
"""Lines, each with its workload."""


def report(warnings: Remarks, notes: Remarks, options: Options, *, unusable: bool) -> int:
    """Write notes and warnings, each once, to stderr; returns the exit status: 3 for an unusable answer, and if --strict."""
    status = say(remark_lines(warnings), remark_lines(notes), options)
    return DONE_WITH_WARNINGS if unusable else status


def remark_lines(remarks: Remarks) -> list[str]:
    """One line for each remark, after the workloads that it concerns.

    Remarks that differ only in numbers are merged into the first of them.
    """
    alike: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for workload, text in remarks:
        texts, concerned = alike.setdefault(NUMBER.sub("#", text), ({}, {}))
        texts[text] = concerned[workload[-80:]] = None
    return [f"{_listed(list(concerned))}: {_counted(list(texts))}" for texts, concerned in alike.values()]


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _counted(texts: Sequence[str]) -> str:
    return texts[0] + (f" (and {len(texts) - 1} more with other numbers)" if len(texts) > 1 else "")


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Redirect the file descriptor of stdout to that of stderr while the block runs, for all writers: C code, `os.write`, threads.

    `contextlib.redirect_stdout` redirects only Python's prints.  Only for commands, which own the process and have an
    open stdout.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno() if sys.stderr is None else 2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
