"""Lists of SM clocks as people write them: "510,900,1410", "510:1410:15", "all"."""

from typing import Final

from estimator.errors import OperatingPointError
from estimator.gpu import GpuSpec

MOST_CLOCKS: Final = 10_000
"""More clocks than any GPU has; a longer list is a mistake in the step."""


def parse_clocks(text: str, gpu: GpuSpec) -> tuple[float, ...]:
    """SM clocks [MHz], ascending, each once: numbers and ranges LO:HI:STEP (HI included) with commas between, or "all".

    Raises OperatingPointError for a text that is no such list, an empty list and a range that cannot be.
    """
    if text.strip().lower() == "all":
        return tuple(float(clock) for clock in gpu.clocks_mhz())
    return parse_clock_numbers(text)


def parse_clock_numbers(text: str) -> tuple[float, ...]:
    """The same without "all", for a list that is to be held against a board's own clocks.  Raises OperatingPointError."""
    clocks: set[float] = set()
    for part in text.split(","):
        clocks.update(_range(part) if ":" in part else [_clock(part, text)])
        if len(clocks) > MOST_CLOCKS:
            raise OperatingPointError(f"{text!r} names more than {MOST_CLOCKS} clocks; use a larger step")
    return tuple(sorted(clocks))


def _range(part: str) -> list[float]:
    pieces = part.split(":")
    if len(pieces) != 3:
        raise OperatingPointError(f"{part!r} is no range of clocks: write LO:HI:STEP in MHz, such as 510:1410:15")
    low, high, step = (_clock(piece, part) for piece in pieces)
    if low > high or step <= 0.0:
        raise OperatingPointError(f"range of clocks {part!r} is empty: LO must not exceed HI, and STEP must be above 0")
    count = int((high - low) / step * (1.0 + 1e-12)) + 1 if (high - low) / step < MOST_CLOCKS else MOST_CLOCKS + 1
    return [low + i * step for i in range(count)]


def _clock(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.0 <= value < float("inf"):
        raise OperatingPointError(f"{whole!r} is no list of clocks: {text.strip()!r} is no clock in MHz; write 510,900, LO:HI:STEP or all")
    return value
