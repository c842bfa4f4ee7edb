"""`collect --gpu 0,1`: campaigns on several boards, side by side."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from collector.commands.options import SIMULATED_METER
from collector.commands.output import note, say
from collector.errors import CollectorError
from estimator.command_line import DONE, DONE_WITH_WARNINGS, FAILED, WRONG_USAGE
from estimator.entry import INTERRUPTED

if TYPE_CHECKING:
    from collector.boards import BoardName
    from collector.daemon.worker import BoardEnd

OWN_OPTIONS: Final = frozenset({"gpu", "out", "dry_run", "as_json", "quiet", "verbose", "worker", "record"})
"""Options of `collect` that mean something else for one board of several."""
NEXT: Final = "next: "


def measure_several(
    gpu: str,
    out: str,
    sensor: str | None,
    record: Path | None,
    pmd: str,
    *,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Plan every board's campaign, then run them side by side; the exit status.  Called within the command `collect`."""
    from collector.boards import board_words, named_boards
    from collector.daemon.worker import measure_side_by_side

    words_of_boards = board_words(gpu)
    for name, value in (("--record", record), ("--sensor", sensor), ("--pmd", "" if pmd == SIMULATED_METER else pmd)):
        if value:
            raise CollectorError(f"{name} belongs to one board; run one command for each board, or leave it out")
    boards = named_boards(words_of_boards)
    root = common_root(out)
    words = {board: [*passed_words(), "--gpu", board.word, "--out", root] for board in boards}
    plans = checked_plans(words, as_json=as_json)
    if dry_run:
        show_plans(plans, as_json=as_json)
        return DONE
    json_words = ["--json"] if as_json else []
    quiet_words = ["--quiet"] if quiet else []
    with _progress(quiet, verbose) as tell:
        ends = measure_side_by_side({board: [*line, *json_words, *quiet_words] for board, line in words.items()}, tell)
    _show(ends, root, as_json=as_json)
    return _status(ends)


def common_root(out: str) -> str:
    """The folder or URL of a dataset in which each board has parts of its own.  Raises CollectorError where a file is in its place."""
    if "://" in out:
        return out
    if Path(out).exists() and not Path(out).is_dir():
        raise CollectorError(f"{out}: is a file; several boards write into a folder, each its own parts: name another with --out")
    return f"{out.rstrip('/')}/"


def passed_words() -> list[str]:
    """The options of the present `collect` that each board's own is to have, as words."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None)
        if not isinstance(parameter, click.Option) or name in OWN_OPTIONS or not given:
            continue
        if parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            words += [parameter.opts[0], str(context.params[name])]
    return words


def checked_plans(words: "dict[BoardName, list[str]]", *, as_json: bool) -> "dict[BoardName, str]":
    """The plan of each board as text or JSON, before anything is measured.

    Raises CollectorError for the first board that can have none, UsageError where the words themselves are wrong.
    """
    from collector.daemon.worker import board_plan

    plans = {}
    for board, line in words.items():
        plan = board_plan([*line, "--json"] if as_json else line)
        if plan.status == WRONG_USAGE:
            raise click.UsageError(plan.complaint)
        if plan.status != DONE:
            raise CollectorError(f"{board.word}: {plan.complaint}" if len(words) > 1 else plan.complaint)
        plans[board] = plan.text
    return plans


def show_plans(plans: "dict[BoardName, str]", *, as_json: bool) -> None:
    """Plans on stdout."""
    if as_json:
        say([json.loads(text) for text in plans.values()])
    elif plans:
        say([line for text in plans.values() for line in [*text.splitlines(), ""]][:-1])


@contextmanager
def _progress(quiet: bool, verbose: bool) -> Iterator[Any]:
    """A function that shows how far the boards are: a line a row with -v, a line that changes on a terminal, nothing else."""
    if quiet or not (verbose or sys.stderr.isatty()):
        yield lambda _board, _text, _done, _total: None
        return
    shown: dict[str, str] = {}

    def tell(board: "BoardName", text: str, done: int, total: int) -> None:
        if verbose:
            note(f"{board.word} {done}/{total} {text}")
            return
        shown[board.word] = f"{board.word} {done}/{total}"
        click.echo("\r" + "  ".join(shown.values()), err=True, nl=False)

    yield tell
    if not verbose:
        click.echo(err=True)


def _show(ends: "list[BoardEnd]", out: str, *, as_json: bool) -> None:
    """What came of each board, and the next command; complaints on stderr."""
    if as_json:
        say(
            {
                "dataset": out,
                "boards": [{"gpu": end.board.word, "exit_status": end.status, **(end.result or {"error": end.complaint})} for end in ends],
            }
        )
    else:
        lines = [f"{end.board.word}: {line}" for end in ends for line in end.text.splitlines() if not line.startswith(NEXT)]
        if any(end.status in (DONE, DONE_WITH_WARNINGS) for end in ends):
            lines.append(f"{NEXT}fit {out}")
        if lines:
            say(lines)
    for end in ends:
        if end.status not in (DONE, DONE_WITH_WARNINGS):
            note(f"collect: {end.board.word}: {end.complaint}")


def _status(ends: "list[BoardEnd]") -> int:
    """The worst exit status: interrupted, failed, with warnings, done."""
    statuses = {end.status for end in ends}
    if INTERRUPTED in statuses:
        return INTERRUPTED
    if statuses - {DONE, DONE_WITH_WARNINGS}:
        return FAILED
    return DONE_WITH_WARNINGS if DONE_WITH_WARNINGS in statuses else DONE
