"""Locking the SM clock and giving it back in every case."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from collector.devices.protocols import Gpu, supported_clock
from collector.errors import ClockError, ClockListError
from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.specifications import parse_clocks

Clocks = tuple[float | None, ...]
"""SM clocks [MHz]; None leaves the clock alone."""

CURRENT = "current"
"""The word for "leave the clocks alone"."""


@dataclass(slots=True)
class ClockHold:
    """The SM clock of a board during a campaign, None while it is left alone [MHz]; made by `held_clock`."""

    gpu: Gpu
    held: float | None = None

    def set(self, sm_clock_mhz: float | None) -> bool:
        """Hold a clock, or leave it alone (None).  True if that changed anything.  Raises ClockError."""
        if sm_clock_mhz == self.held:
            return False
        if sm_clock_mhz is None:
            self.gpu.unlock_clock()
        else:
            self.gpu.lock_clock_mhz(sm_clock_mhz)
        self.held = sm_clock_mhz
        return True


@contextmanager
def held_clock(gpu: Gpu) -> Iterator[ClockHold]:
    """The right to set the SM clock within a block; the clock is given back at its end, also after an error.

    A block that never sets a clock never touches it.
    """
    hold = ClockHold(gpu)
    try:
        yield hold
    finally:
        hold.set(None)


def clocks_from_text(text: str, gpu: Gpu) -> Clocks:
    """SM clocks [MHz] from "510,900,1410", "510:1410:90", "all" or "current" (None: leave the clock alone), ascending.

    Raises ClockListError for an empty list and text that is no clock, ClockError for a clock that the board does not
    support and for a board whose clock cannot be locked.
    """
    word = text.strip().lower()
    if word == CURRENT:
        return (None,)
    supported = gpu.supported_clocks_mhz()
    if not supported:
        raise ClockError("this board's SM clock cannot be locked; use --freqs current")
    if not word.strip(","):
        raise ClockListError("no clock is named; give 510,900,1410 or LO:HI:STEP in MHz, all or current")
    try:
        asked = parse_clocks(text, supported)
    except OperatingPointError as error:
        raise ClockListError(str(error)) from error
    return tuple(dict.fromkeys(supported_clock(clock, supported) for clock in asked))
