"""What commands say on stderr about their answers: warnings and notes, each once with whom it concerns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from estimator.command_line import DONE, DONE_WITH_WARNINGS

if TYPE_CHECKING:
    from estimator.display.remarks import Labels
    from estimator.questions.points import Case, Sweep


class Seen:
    """Warnings and notes of points that pass by, and whom they may concern."""

    def __init__(self, left_out: "Sequence[tuple[Case, str]]" = ()) -> None:
        """left_out: cases that were left out and why, a warning each."""
        self.warnings = list(left_out)
        self.notes: list[tuple[Case, str]] = []
        self.cases = [case for case, _ in left_out]

    def add(self, points: "Sweep", left_out: "Sequence[tuple[Case, str]]" = ()) -> None:
        """Those of these points, and of cases that were left out."""
        self.warnings += [*points.case_warnings(), *left_out]
        self.notes += points.case_notes()
        self.cases += [*(points.cases[i] for i in points.present()), *(case for case, _ in left_out)]


def report(seen: Seen, options: Mapping[str, Any]) -> int:
    """Warnings and notes of cases to stderr; the exit status."""
    from estimator.display.remarks import case_labels

    warnings, notes = ([(case_labels(case), line) for case, line in lines] for lines in (seen.warnings, seen.notes))
    return say(warnings, notes, map(case_labels, seen.cases), options)


def say(
    warnings: "Sequence[tuple[Labels, str]]",
    notes: "Sequence[tuple[Labels, str]]",
    everyone: "Iterable[Labels]",
    options: Mapping[str, Any],
) -> int:
    """Warnings and notes to stderr, each once with whom of `everyone` it concerns; the exit status."""
    from estimator.display.remarks import remark_lines

    if not options["quiet"]:
        labels = list(everyone)
        for kind, remarks in (("warning", warnings), ("note", notes)):
            for line in remark_lines(remarks, labels):
                click.echo(f"{kind}: {line}", err=True)
    return DONE_WITH_WARNINGS if warnings else DONE
