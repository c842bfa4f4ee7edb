"""Measured figures as text, with as many digits as their errors leave."""

import math
from typing import Final

DIGITS: Final = 4
"""Significant digits of a figure without an error."""
ERROR_DIGITS: Final = 2
MOST_DECIMALS: Final = 9


def figure(value: float, std: float | None, unit: str) -> str:
    """The text "101.2170 ± 0.0075 ms": the error with two digits, the figure to the error's last one."""
    if std is None or not math.isfinite(std) or std <= 0.0 or not math.isfinite(value):
        return f"{value:.{DIGITS}g} {unit}".rstrip()
    decimals = min(max(ERROR_DIGITS - 1 - math.floor(math.log10(std)), 0), MOST_DECIMALS)
    return f"{value:.{decimals}f} ± {std:.{decimals}f} {unit}".rstrip()
