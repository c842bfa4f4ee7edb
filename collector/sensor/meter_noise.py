"""A meter's own noise, from its samples."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.quantities import Array

MAD_TO_STD: Final = 1.4826
SECOND_DIFFERENCE_STD: Final = 6.0**0.5
"""Second differences of white noise scatter by so much more than the noise; those of a power that only rises or falls vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterNoise:
    """White noise of a meter's samples: `sample_w` of each [W], `spacing_s` apart."""

    sample_w: float
    spacing_s: float


NO_NOISE: Final = MeterNoise(sample_w=0.0, spacing_s=0.0)


def noise_of_samples(time_s: Array, power_w: Array) -> MeterNoise:
    """The noise that neighbouring samples (n,), n ≥ 3, do not share; slopes and levels aside."""
    second = power_w[2:] - 2.0 * power_w[1:-1] + power_w[:-2]
    std = MAD_TO_STD * float(np.median(np.abs(second))) / SECOND_DIFFERENCE_STD
    return MeterNoise(sample_w=std, spacing_s=float(np.median(np.diff(time_s))))
