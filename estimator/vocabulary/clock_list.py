"""Lists of SM clocks as people write them: "510,900,1410", "510:1410:15", "all"; and of whole numbers."""

from typing import Final

from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.gpu import GpuSpec

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
    return tuple(sorted(_numbers(text, "clock in MHz; write 510,900 or 510:1410:15 or all")))


def parse_whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """Whole numbers, in the given order, each once: numbers and ranges LO:HI:STEP with commas between.  Raises OperatingPointError."""
    values = _numbers(text, f"{what}; write 1,8,32 or 128:1024:128")
    for value in values:
        if not value.is_integer() or value < 1.0:
            raise OperatingPointError(f"{text!r}: {value:g} is no {what}: write whole numbers of at least 1")
    return tuple(map(int, values))


def _numbers(text: str, what: str) -> dict[float, None]:
    numbers: dict[float, None] = {}
    for part in text.split(","):
        try:
            values = [float(piece) for piece in part.split(":")]
        except ValueError:
            values = []
        if len(values) not in (1, 3) or not all(0.0 <= value < float("inf") for value in values):
            raise OperatingPointError(f"{text!r} cannot be read as a list: {part.strip()!r} is no {what}")
        low, high, step = values if len(values) == 3 else (values[0], values[0], 1.0)
        if low > high or step <= 0.0:
            raise OperatingPointError(f"range {part!r} is empty: LO must not exceed HI, and STEP must be above 0")
        count = min((high - low) / step * (1.0 + 1e-12), MOST_CLOCKS)
        numbers |= dict.fromkeys(low + i * step for i in range(int(count) + 1))
        if len(numbers) > MOST_CLOCKS:
            raise OperatingPointError(f"{text!r} names more than {MOST_CLOCKS} values; use a larger step")
    return numbers
