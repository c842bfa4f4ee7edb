"""Energy and rate of data that cross a link, and of copies: power beyond the board at rest times time, for each byte."""

import math
from typing import Final

import numpy as np

from estimator.instructions.links import LinkEnergy
from fitter.instructions.data import InstructionRow, InstructionRows

LEAST_POWER_STD_W: Final = 0.1
"""Power is not known better than this, however many readings [W]."""


def link_energies(rows: InstructionRows, gain_std: float = 0.0) -> dict[str, LinkEnergy]:
    """By kernel or copy; runs without their power at rest have a rate and no energy.

    gain_std: relative standard deviation of the sensor's gain.
    """
    found: dict[str, list[InstructionRow]] = {}
    for row in rows.rows:
        if row.link and row.random:
            found.setdefault(row.kernel, []).append(row)
    return {name: _energy(own, gain_std) for name, own in sorted(found.items())}


def _energy(rows: list[InstructionRow], gain_std: float) -> LinkEnergy:
    """The mean over runs; where there is one, its own power's error."""
    rate = float(np.mean([row.link_bytes / row.latency_s for row in rows]))
    each = [(row.power_w - row.idle_w) * row.latency_s / row.link_bytes for row in rows]
    own = [max(LEAST_POWER_STD_W, 0.0 if math.isnan(row.power_std_w) else row.power_std_w) * row.latency_s / row.link_bytes for row in rows]
    known = [(value, std) for value, std in zip(each, own, strict=True) if math.isfinite(value)]
    if not known:
        return LinkEnergy(link=rows[0].link, bytes_per_s=rate, j_per_byte=math.nan, std_j=math.nan, runs=len(rows))
    values = np.array([value for value, _ in known])
    scatter = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    std = math.hypot(max(scatter, float(np.mean([std for _, std in known]))) / math.sqrt(len(values)), gain_std * abs(float(values.mean())))
    return LinkEnergy(link=rows[0].link, bytes_per_s=rate, j_per_byte=float(values.mean()), std_j=std, runs=len(rows))
