"""What a meter's samples are worth: their own noise, and whether they come fast enough."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.load import BIN_S
from estimator.quantities import Array

MAD_TO_STD: Final = 1.4826
SLOW_METER_S: Final = 1e-3
"""Meters of a thousand samples a second and more show every load that can be launched: what turns there is noise."""
MOST_TURNED: Final = 0.25
"""Share of its variance by which a meter's power may turn from sample to sample: that of a square wave with eight to each half."""
SECOND_DIFFERENCE_STD: Final = 6.0**0.5
"""Second differences of white noise scatter by so much more than the noise; those of a power that only rises or falls vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterNoise:
    """White noise of a meter's samples: `sample_w` of each [W], `spacing_s` apart.

    `turned` is the share of the power's variance by which neighbouring samples differ: near 1 where the power turns between them.
    """

    sample_w: float
    spacing_s: float
    turned: float = 0.0

    @property
    def turns(self) -> bool:
        """Whether the power turns between samples, so that they do not show it."""
        return self.spacing_s > SLOW_METER_S and self.turned > MOST_TURNED

    def width_std_s(self) -> float:
        """What the samples' distance leaves open of an averaging's width [s].

        A sample is a moment's power or a mean over its interval, and between two the power is no line; what is finer than the fit's
        own grid leaves nothing open.
        """
        return float(np.sqrt(max(self.spacing_s**2 - BIN_S**2, 0.0) / 12.0))


NO_NOISE: Final = MeterNoise(sample_w=0.0, spacing_s=0.0)


def noise_of_samples(time_s: Array, power_w: Array) -> MeterNoise:
    """The noise that neighbouring samples (n,), n ≥ 3, do not share; slopes and levels aside."""
    second = power_w[2:] - 2.0 * power_w[1:-1] + power_w[:-2]
    std = MAD_TO_STD * float(np.median(np.abs(second))) / SECOND_DIFFERENCE_STD
    turned = float(np.mean(np.diff(power_w) ** 2)) / max(2.0 * float(np.var(power_w)), 1e-12)
    return MeterNoise(sample_w=std, spacing_s=float(np.median(np.diff(time_s))), turned=turned)
