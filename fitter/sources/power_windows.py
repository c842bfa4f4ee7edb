"""Finding power rows that were read too briefly, from the smallest number of readings that explains each stored mean.

A sensor that reports whole milliwatts gives, over d readings, a mean that is a multiple of 1/d mW.  The smallest such
d divides the true number of readings; the largest of them among kernels of like duration, measured in the same way, is
close to that number, since runs of like duration get equally many readings.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.quantities import Array, BoolArray, IntArray

LATENCY_BIN_DECADES: Final = 0.05
"""Kernels within 12 % of each other's latency get the same number of readings [decade]."""

FEWEST_READINGS: Final = 8.0
"""A mean over fewer readings of a 1 s average does not describe the kernel [1]."""

SINGLE_READING: Final = 1.5
"""Below this the power is one reading, taken at the launch [1]."""


def window_reasons(groups: Sequence[object], latency_s: Array, samples_min: Array) -> list[str]:
    """SINGLE_SAMPLE, SHORT_WINDOW or "" for each row.

    groups: rows with equal values were measured in the same way (collection, GPU, operator, precision).
    samples_min: smallest number of readings that can give the stored mean; nan where unknown (no reason is given).
    """
    readings = estimated_readings(groups, latency_s, samples_min)
    return ["" if not r < FEWEST_READINGS else "SINGLE_SAMPLE" if r < SINGLE_READING else "SHORT_WINDOW" for r in readings]


def estimated_readings(groups: Sequence[object], latency_s: Array, samples_min: Array) -> Array:
    """Estimated number of readings of each row, shape (n,); nan where nothing is known."""
    members: dict[object, list[int]] = {}
    known: BoolArray = np.isfinite(samples_min) & (latency_s > 0)
    for i in np.flatnonzero(known).tolist():
        members.setdefault(groups[i], []).append(i)
    result = np.full(len(latency_s), np.nan)
    for rows in members.values():
        index: IntArray = np.array(rows, dtype=np.int64)
        position = np.log10(latency_s[index])
        order = np.argsort(position, kind="stable")
        ordered, divisors = position[order], samples_min[index][order]
        low = np.searchsorted(ordered, ordered - LATENCY_BIN_DECADES / 2.0, side="left")
        high = np.searchsorted(ordered, ordered + LATENCY_BIN_DECADES / 2.0, side="right")
        result[index[order]] = [divisors[start:stop].max() for start, stop in zip(low, high, strict=True)]
    return result
