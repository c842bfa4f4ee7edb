"""Output of commands: the answer to a file or stdout, and on stderr warnings and notes, each once with the cases that it concerns."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from estimator.commands.options import Options
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS
from estimator.vocabulary.documents import short_name

if TYPE_CHECKING:
    from estimator.questions.estimates import Estimate
    from estimator.questions.points import Case, Sweep

Labels = tuple[Any, ...]
"""Labels that identify the case of a remark, the workload first."""

NUMBER: Final = re.compile(r"(?<![\w.])(?:\d+(?:x\d+)+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.]*\w)")
"""Pattern of a number, or of the shape of an operator ("64x512"), that is a separate word: not the digits of "fp8" and "h100"."""

MOST_LINES: Final = 40
"""Most warnings, and most notes, that are shown."""

MOST_NAMED: Final = 6
"""Most names in one line."""

LABELS: Final = ("workload", "bundle", "gpu", "precision", "attention")


def deliver(answer: str | bytes, out: Path | None) -> None:
    """Write the answer to a file atomically, or to stdout.  Raises UnwrittenError."""
    if out is None:
        click.echo(answer, nl=False)
        return
    from estimator.vocabulary.whole_file import write_whole

    write_whole(out, answer if isinstance(answer, bytes) else answer.encode("utf-8", errors="replace"))


def deliver_form(form: str, forms: Mapping[str, Callable[[], str]], out: Path | None) -> None:
    """Write the answer in one of its forms; a picture is drawn from the form "chart"."""
    if form in ("svg", "png"):
        from estimator.display.pages import picture_png, standalone_svg

        chart = forms["chart"]()
        deliver(standalone_svg(chart) if form == "svg" else picture_png(chart), out)
    else:
        deliver(forms[form](), out)


def say(warnings: Sequence[str], notes: Sequence[str] = (), *, quiet: bool) -> int:
    """Write warnings and notes to stderr, unless quiet; returns the exit status."""
    from estimator.display.text import printable

    for kind, lines in () if quiet else (("warning", warnings), ("note", notes)):
        for line in lines:
            click.echo(f"{kind}: {printable(line)}", err=True)
    return DONE_WITH_WARNINGS if warnings else DONE


class Remarks:
    """Warnings and notes of all answered cases, each with the cases that it concerns."""

    def __init__(self) -> None:
        self.warnings: list[tuple[Labels, str]] = []
        self.notes: list[tuple[Labels, str]] = []
        self.everyone: dict[Labels, None] = {}

    def add(self, points: "Sweep") -> None:
        """Add the remarks of a sweep's points."""
        self.everyone |= dict.fromkeys(_labels(points.cases[i]) for i in points.present())
        self.warnings += [(_labels(case), line) for case, line in points.case_warnings()]
        self.notes += [(_labels(case), line) for case, line in points.case_notes()]

    def add_left_out(self, left_out: "Sequence[tuple[Case, str]]", where: list[tuple[Labels, str]] | None = None) -> None:
        """Add cases without an answer and their reasons, as warnings or to `where`."""
        self.everyone |= dict.fromkeys(_labels(case) for case, _ in left_out)
        lines = self.warnings if where is None else where
        lines += [(_labels(case), f"left out: {line}") for case, line in left_out]

    def add_result(self, result: "Estimate") -> None:
        """Add the remarks of an estimate."""
        labels = (result.workload,)
        self.everyone[labels] = None
        self.warnings += [(labels, line) for line in result.warnings]
        self.notes += [(labels, line) for line in result.notes]

    def report(self, options: Options) -> int:
        """Write all remarks to stderr; returns the exit status."""
        warnings, notes = (remark_lines(remarks, list(self.everyone)) for remarks in (self.warnings, self.notes))
        return say(warnings, notes, quiet=options["quiet"])


def _labels(case: "Case") -> Labels:
    return tuple(getattr(case, name) for name in LABELS)


def remark_lines(remarks: Sequence[tuple[Labels, str]], everyone: Sequence[Labels]) -> list[str]:
    """One line for each remark, prefixed with the cases of `everyone` that it concerns; beyond MOST_LINES the last line counts the rest.

    Remarks on one board that differ only in numbers are merged into the first of them.
    """
    alike: dict[Any, tuple[dict[str, None], dict[Labels, None]]] = {}
    for labels, text in remarks:
        kind = NUMBER.sub(lambda number: re.sub(r"\d+", "#", number.group()) if "x" in number.group() else "#", text)
        texts, concerned = alike.setdefault((labels[1:3], kind), ({}, {}))
        texts[text] = concerned[labels] = None
    found: dict[str, dict[Labels, None]] = {}
    for texts, concerned in alike.values():
        first, *more = texts
        found.setdefault(first + (f" (and {len(more)} more with other numbers)" if more else ""), {}).update(concerned)
    lines = [f"{_names(concerned, everyone)}: {text}" for text, concerned in found.items()]
    rest = len(lines) - MOST_LINES + 1
    return lines if rest < 2 else [*lines[: MOST_LINES - 1], f"and {rest} more like these; fewer workloads or sizes at a time show them"]


def _names(concerned: Mapping[Labels, None], everyone: Sequence[Labels]) -> str:
    """The cases that a remark concerns: "all", or the labels that differ from other cases."""
    if len(concerned) == len(everyone) > 1:
        return "both" if len(everyone) == 2 else f"all {len(everyone)}"
    telling = [i for i in range(len(everyone[0])) if len({labels[i] for labels in everyone}) > 1] or [0]
    names = [" ".join(short_name(labels[i]) for i in telling if labels[i]) or short_name(labels[0]) for labels in concerned]
    rest = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Redirect the file descriptor of stdout to that of stderr while the block runs, for all writers: C code, `os.write`, threads.

    `contextlib.redirect_stdout` redirects only Python's prints.  Only for commands, which own the process and have an
    open stdout.
    """
    import ctypes  # only for traces

    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno() if sys.stderr is None else 2, 1)
        yield
    finally:
        with suppress(OSError, TypeError, AttributeError):  # systems that find the C library in another way
            ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
