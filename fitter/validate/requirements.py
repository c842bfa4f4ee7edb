"""The acceptance gate: errors that a bundle must not exceed, `--require latency=5%,power=4%`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

import click

if TYPE_CHECKING:
    from estimator.bundle.content import HeldOut

REQUIREMENT: Final = re.compile(r"\s*(latency|power)=([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%?\s*")
"""A quantity and its largest mean error, in percent."""


class Verdict(TypedDict):
    """A requirement with the error found on unseen rows.

    quantity, limit   the required largest mean absolute error [percent]
    found             the mean absolute error [percent], None if nothing could be compared
    kind              the worst kind of rows: kernels, workloads
    met               whether the error was found and is small enough
    """

    quantity: str
    limit: float
    found: float | None
    kind: str | None
    met: bool


def a_requirement(text: str) -> dict[str, float]:
    """`latency=5%,power=4%` as limits by quantity [percent].  Raises BadParameter for anything else."""
    found = [REQUIREMENT.fullmatch(part) for part in text.split(",")]
    limits = {one[1]: float(one[2]) for one in found if one is not None}
    if len(limits) < len(found):
        raise click.BadParameter(f"{text[:60]!r} is not of the form latency=5%,power=4%, each once")
    return limits


def require_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --require, an option of every command that states errors."""
    text = "Exit status 3 where the mean error on rows outside the fit is larger: latency=5%,power=4%."
    return click.option("--require", metavar="LIMITS", type=a_requirement, help=text)(command)


def judge(limits: Mapping[str, float] | None, summary: "Mapping[str, HeldOut]") -> tuple[Verdict, ...]:
    """Verdicts on requirements, from the worst kind of rows for each."""
    verdicts = []
    for quantity, limit in (limits or {}).items():
        errors = [(own["mape"], kind) for kind, row in summary.items() if (own := row[quantity]) is not None]  # type: ignore[literal-required]
        found, kind = max(errors, default=(None, None))
        verdicts.append(Verdict(quantity=quantity, limit=limit, found=found, kind=kind, met=found is not None and found <= limit))
    return tuple(verdicts)


def missed_line(verdicts: Sequence[Verdict]) -> str:
    """One line that names every missed requirement; "" if all are met."""
    missed = [
        f"{one['quantity']} of at most {one['limit']:g} %, "
        + (
            "nothing outside the fit to compare it with (grids and instructions: by `fit check`)"
            if one["found"] is None
            else f"found {one['found']:.2f} % on {one['kind']}"
        )
        for one in verdicts
        if not one["met"]
    ]
    return f"requirement not met: {'; '.join(missed)}" if missed else ""
