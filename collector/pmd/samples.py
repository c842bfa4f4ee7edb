"""What a meter measured, in host time, and how much of it is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.devices.errors import DeviceError
from collector.pmd.packets import RAILS
from collector.pmd.pmd2_block import GPU_RAILS, PMD2_RAILS
from estimator.vocabulary.quantities import Array, IntArray

MODEL_RAILS: Final = {"PMD-USB": RAILS, "PMD2": PMD2_RAILS}
DEFAULT_RAILS: Final = {"PMD-USB": RAILS, "PMD2": GPU_RAILS}
"""Rails whose sum is a board's power unless others are named: all plugs of a PMD-USB, those of a PMD2 that end at the board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterSamples:
    """Samples in the order in which they were taken: host time [ns], shape (n,); voltage [V] and current [A], (n, rails)."""

    host_ns: IntArray
    volts: Array
    amperes: Array

    def __len__(self) -> int:
        return len(self.host_ns)

    def rail_power_w(self) -> Array:
        """Power of each rail [W], shape (n, rails); negative where current flows back or a zero is off."""
        return self.volts * self.amperes


def no_samples(rails: int) -> MeterSamples:
    """No sample of so many rails."""
    return MeterSamples(host_ns=np.zeros(0, dtype=np.int64), volts=np.zeros((0, rails)), amperes=np.zeros((0, rails)))


def chosen_rails(model: str, names: Sequence[str]) -> tuple[int, ...]:
    """Positions of the rails to count; those that usually belong to the board where none is named.

    Raises DeviceError for a rail that the model lacks.
    """
    there = MODEL_RAILS[model]
    unknown = [name for name in names if name not in there]
    if unknown:
        raise DeviceError(f"a {model} has no rail {unknown[0]!r}; its rails: {', '.join(there)}")
    return tuple(there.index(name) for name in dict.fromkeys(names or DEFAULT_RAILS[model]))
