"""Numbers as options: what can be no such quantity is wrong usage, said before anything is computed."""

import math
from typing import Any

import click


class Number(click.ParamType[float]):
    """A finite number from `least` (or above it) to `most`."""

    name = "number"

    def __init__(self, least: float = 0.0, most: float = math.inf, *, above: bool = False, below: bool = False) -> None:
        """above, below: whether the ends themselves are excluded."""
        self.least, self.most, self.above, self.below = least, most, above, below

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number.  Raises BadParameter for a text that is none, one that is not finite, and one beyond the ends."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or self._outside(number):
            self.fail(f"{value!r} must be a number {self._range()}", param, ctx)
        return number

    def _outside(self, number: float) -> bool:
        low = number <= self.least if self.above else number < self.least
        return low or (number >= self.most if self.below else number > self.most)

    def _range(self) -> str:
        low = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        return low if math.isinf(self.most) else f"{low} and {'below' if self.below else 'at most'} {self.most:g}"


POSITIVE = Number(above=True)
NOT_NEGATIVE = Number()
"""The usual two."""

LAUNCH_US = Number(most=1e6)
"""Of a host, for one operator [µs]; one that needed longer would run no model (`estimator.board.LONGEST_LAUNCH_S`)."""


def precision_word(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """The name of a precision, or None.  Raises BadParameter for any other word."""
    if text is not None:
        known_precision(text)
    return text


def known_precision(text: str) -> None:
    """Raises UsageError for a word that names no precision."""
    from estimator.quantities import BYTES_PER_ELEMENT, canonical_precision

    if canonical_precision(text) is None:
        raise click.UsageError(f"--precision: unknown precision {text!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
