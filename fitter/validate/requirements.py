"""The acceptance gate: errors that a bundle must not exceed, `--require latency=5%,power=4%`."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from fitter.validate.predictions import ErrorRow

REQUIREMENT: Final = re.compile(r"\s*(latency|power)=([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*%?\s*")
"""A quantity and the largest mean error of it, in percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A requirement beside what was found on rows that the fit has not seen.

    quantity, limit   what was asked: the largest mean absolute error [percent]
    found             the mean absolute error [percent], nan where nothing could be compared
    kind              the kind of rows that is worst: kernels, workloads
    """

    quantity: str
    limit: float
    found: float
    kind: str

    @property
    def met(self) -> bool:
        """Whether the error was found and is small enough."""
        return self.found <= self.limit

    def text(self) -> str:
        """What is missed, for people."""
        if math.isnan(self.found):
            return f"{self.quantity} of at most {self.limit:g} %, nothing left out of the fit to compare it with"
        return f"{self.quantity} of at most {self.limit:g} %, found {self.found:.2f} % on {self.kind}"


def a_requirement(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, float]:
    """`latency=5%,power=4%` as limits by quantity [percent]; {} where nothing is required."""
    found = [REQUIREMENT.fullmatch(part) for part in (text or "").split(",") if text is not None]
    limits = {one[1]: float(one[2]) for one in found if one is not None}
    if len(limits) < len(found):
        raise click.BadParameter(f"{(text or '')[:60]!r} is not of the form latency=5%,power=4%, each once", context, parameter)
    return limits


def require_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--require, on every command that states errors."""
    text = "Exit status 3 where the mean error on rows outside the fit is larger: latency=5%,power=4%."
    return click.option("--require", metavar="LIMITS", callback=a_requirement, help=text)(command)


def judge(limits: Mapping[str, float], summary: "Mapping[str, ErrorRow]") -> tuple[Verdict, ...]:
    """Requirements against the errors of each kind of rows, of which the worst counts."""
    verdicts = []
    for quantity, limit in limits.items():
        found = {kind: errors.mape for kind, row in summary.items() if (errors := getattr(row, quantity)) is not None}
        worst = max(found, key=lambda kind: found[kind], default="")
        verdicts.append(Verdict(quantity=quantity, limit=limit, found=found.get(worst, math.nan), kind=worst))
    return tuple(verdicts)


def verdict_documents(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """The verdicts as plain data."""
    found = (None if math.isnan(verdict.found) else verdict.found for verdict in verdicts)
    return [{**asdict(one), "found": error, "kind": one.kind or None, "met": one.met} for one, error in zip(verdicts, found, strict=True)]


def missed_line(verdicts: Sequence[Verdict]) -> str:
    """One line that names every requirement that is not met; "" where all are."""
    missed = [verdict.text() for verdict in verdicts if not verdict.met]
    return f"requirement not met: {'; '.join(missed)}" if missed else ""
