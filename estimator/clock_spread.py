"""What clocks beyond those that a fit has seen add to the uncertainty of ln(latency) and ln(power).

Errors on runs left out of a fit hold all that its coefficients err at the fitted clocks, so what counts is the way from the nearest of
these.  How much of a kernel's time follows the clock, and how much of the power, one clock tells badly: errors grow with ln(f).  And the
exponent of the voltage is told only by clocks whose voltages differ.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from estimator.bundles.content import Bundle
from estimator.power import BoardTables
from estimator.quantities import Array

CLOCK_SLOPE_STD: Final = (0.03, 0.02)
"""Spread of the slope of ln(predicted / measured) latency and power over ln(clock), from workload to workload: 18 models at 11 clocks of an
A100 (EnergAIzer artifact) have root mean squares of 0.031 and 0.016.  The covariance of coefficients that were fitted at one clock says
0.02 to 0.05 and 0.01 to 0.03."""

VOLTAGE_EXPONENT_STD: Final = 0.35
"""Spread of the exponent of s(V) among boards: what is left open of it where no fitted row told it [1]."""

TELLING_VOLTAGE_RANGE: Final = 0.05
"""Range of V / V₀ among fitted rows from which on they can tell the exponent [1]."""


class FarClock(NamedTuple):
    """Independent sources of error of ln(GPU time) and ln(power) and how much of each a prediction has; none at fitted clocks."""

    latency: Mapping[str, Array]
    power: Mapping[str, Array]

    def of_case(self, i: int) -> "FarClock":
        """Those of the i-th of several workloads, loadings of shape (v, c)."""
        of_time, of_power = ({name: loading[i] for name, loading in sources.items()} for sources in self)
        return FarClock(latency=of_time, power=of_power)


def nearest_fitted_mhz(bundle: Bundle, clock_mhz: Array) -> Array:
    """The fitted clock nearest to each, shape of `clock_mhz`; each itself where the fitted ones are unknown (nan)."""
    low, high = bundle.clocks_mhz
    nearest: Array = np.fmin(np.fmax(clock_mhz, low), high)
    return nearest


def far_clock(bundle: Bundle, tables: BoardTables, clock_mhz: Array, power_w: Array) -> FarClock:
    """Sources at the clocks that run, loadings of the shape of `clock_mhz`; power_w: at these clocks, of the same shape."""
    nearest = nearest_fitted_mhz(bundle, clock_mhz)
    if np.array_equal(nearest, clock_mhz):
        return FarClock(latency={}, power={})
    way = np.log(clock_mhz / nearest)
    of_time, of_power = ({"far clock": slope * way} for slope in CLOCK_SLOPE_STD)
    return FarClock(latency=of_time, power=of_power | {"voltage": _voltage_loading(bundle, tables, clock_mhz, nearest, power_w)})


def _voltage_loading(bundle: Bundle, tables: BoardTables, clock_mhz: Array, nearest_mhz: Array, power_w: Array) -> Array:
    """What an exponent of the voltage that no fitted row told leaves open; what a board draws at rest does not scale with it."""
    lowest, highest = tables.at(np.array(bundle.clocks_mhz)).voltage_ratio
    if highest - lowest > TELLING_VOLTAGE_RANGE:
        return np.zeros_like(clock_mhz)
    there, nearest = tables.at(clock_mhz), tables.at(nearest_mhz)
    above_rest = 1.0 - there.idle_w / np.maximum(power_w, there.idle_w)
    loading: Array = VOLTAGE_EXPONENT_STD * above_rest * np.log(there.voltage_ratio / nearest.voltage_ratio)
    return loading
