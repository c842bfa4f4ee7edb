"""Behaviour of every command of `collect`: results on stdout, everything else on stderr, SIGTERM handled like Ctrl-C."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import click

from estimator.display.text import aligned, json_text
from estimator.options.command_line import check_output, tell
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import write_whole

Tell = Callable[[str, str, int, int], None]
"""Takes a board's word ("" for a single board), its activity, and the finished and total amounts."""


@frozen
class Speaker:
    """The options --json, --quiet and -v of a command, and their effects; `warnings` that were due so far."""

    as_json: bool
    quiet: bool
    verbose: bool
    warnings: list[str] = field(default_factory=list)

    def say(self, document: Any, lines: Sequence[str], out: Path | None = None) -> None:
        """Prints the result, a JSON document or lines; `out` receives the whole document or nothing.

        Raises the errors of `check_output` after it.
        """
        as_json = self.as_json
        text = json_text(document) if as_json or out else ""
        try:
            if out is not None:
                check_output(out)  # another command may have written it meanwhile
                write_whole(out, text.encode())
        finally:
            if as_json or lines:
                click.echo(text if as_json else "\n".join(lines), nl=not as_json)

    def note(self, *lines: str) -> None:
        """Prints lines on stderr, unless quiet."""
        for line in () if self.quiet else lines:
            tell(line)

    def warn(self, *lines: str) -> None:
        """Prints warnings on stderr, unless quiet."""
        self.warnings.extend(lines)
        self.note(*(f"warning: {line}" for line in lines))

    @contextmanager
    def progress(self) -> Iterator[Tell]:
        """A function that shows progress: a bar per board on a terminal, every line with -v, else a line every half minute."""
        if self.verbose or self.quiet or not sys.stderr.isatty():
            last_s = time.monotonic()

            def lines_alone(board: str, text: str, done: int, total: int) -> None:
                nonlocal last_s
                # Off a terminal a line every 30 s is enough.
                if self.verbose or time.monotonic() - last_s >= 30.0:
                    last_s = time.monotonic()
                    self.note(f"{board} {done}/{total} {text}".strip())

            yield lines_alone
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        shown = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*shown, console=Console(stderr=True), transient=True) as bars:
            tasks: dict[str, Any] = {}

            def show(board: str, text: str, done: int, total: int) -> None:
                if board not in tasks:
                    tasks[board] = bars.add_task(board, total=total, completed=done)
                bars.update(tasks[board], completed=done, total=total, description=f"{board} {text}"[:60].strip())

            yield show


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines of aligned columns."""
    return [line[2:] for line in aligned(rows, range(len(rows[0]))).splitlines()]


def settings_lines(settings: dict[str, Any]) -> list[str]:
    """Settings for people: one line each."""
    return [f"{name:<22} {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in settings.items()]


@contextmanager
def stoppable(out: Path | None = None) -> Iterator[None]:
    """SIGTERM and SIGHUP stop like Ctrl-C; if a dataset is written at `out`, each prints how to resume.

    A SIGHUP that is ignored (nohup) stays ignored.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            from collector.dataset.reader import log_path

            if log_path(out).is_file():
                tell(f"stopped; clocks are given back, finished rows are in {log_path(out)}: the same command with --resume goes on")
            elif out.exists():
                tell(f"stopped before the first new row; clocks are given back, {out} is as it was")
            else:
                tell("stopped before the first row; clocks are given back, nothing is left behind: the same command begins anew")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
