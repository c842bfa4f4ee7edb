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
    clocks: set[float] = set()
    for part in text.split(","):
        clocks.update(_range(part) if ":" in part else [_clock(part, text)])
        if len(clocks) > MOST_CLOCKS:
            raise OperatingPointError(f"{text!r} names more than {MOST_CLOCKS} clocks; use a larger step")
    return tuple(sorted(clocks))


def parse_whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """Whole numbers, in the given order, each once: numbers and ranges LO:HI:STEP with commas between.  Raises OperatingPointError."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        values = (
            _range(part, f"{what}, such as 128:1024:128") if ":" in part else [_clock(part, text, f"{what}; write 1,8,32 or LO:HI:STEP")]
        )
        for value in values:
            if not value.is_integer() or value < 1.0:
                raise OperatingPointError(f"{text!r}: {value:g} is no {what}: write whole numbers of at least 1")
            numbers[int(value)] = None
        if len(numbers) > MOST_CLOCKS:
            raise OperatingPointError(f"{text!r} names more than {MOST_CLOCKS} values; use a larger step")
    return tuple(numbers)


def _range(part: str, what: str = "clocks: write LO:HI:STEP in MHz, such as 510:1410:15") -> list[float]:
    pieces = part.split(":")
    if len(pieces) != 3:
        raise OperatingPointError(f"{part!r} is no range of {what}")
    low, high, step = (_clock(piece, part) for piece in pieces)
    if low > high or step <= 0.0:
        raise OperatingPointError(f"range {part!r} is empty: LO must not exceed HI, and STEP must be above 0")
    count = int((high - low) / step * (1.0 + 1e-12)) + 1 if (high - low) / step < MOST_CLOCKS else MOST_CLOCKS + 1
    return [low + i * step for i in range(count)]


def _clock(text: str, whole: str, what: str = "clock in MHz; write 510,900, LO:HI:STEP or all") -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.0 <= value < float("inf"):
        raise OperatingPointError(f"{whole!r} cannot be read as a list: {text.strip()!r} is no {what}")
    return value
