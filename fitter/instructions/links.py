"""Energy and rate of data that cross a link, and of copies: power beyond the board at rest times time, for each byte."""

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from estimator.instructions.links import LinkEnergy
from fitter.instructions.data import InstructionRow, InstructionRows

LEAST_POWER_STD_W: Final = 0.1
"""Power is not known better than this, however many readings [W]."""


def link_energies(rows: InstructionRows, gain_std: float = 0.0) -> dict[str, LinkEnergy]:
    """By kernel at a level, or copy; a run without its power at rest takes that of the others at its clock; without any it has no energy.

    gain_std: relative standard deviation of the sensor's gain.
    """
    rests: dict[float, list[float]] = {}
    found: dict[str, list[InstructionRow]] = {}
    for row in rows.rows:
        if math.isfinite(row.idle_w):
            rests.setdefault(_clock(row), []).append(row.idle_w)
        if row.link and row.random:
            found.setdefault(row.build, []).append(row)
    return {name: _energy(own, rests, gain_std) for name, own in sorted(found.items())}


def _clock(row: InstructionRow) -> float:
    """The SM clock that was asked for; 0 for the one that the board had [MHz]."""
    return 0.0 if math.isnan(row.asked_mhz) else row.asked_mhz


def _energy(rows: list[InstructionRow], rests: Mapping[float, list[float]], gain_std: float) -> LinkEnergy:
    """The mean over runs; where there is one, its own power's error."""
    rate = float(np.mean([row.link_bytes / row.latency_s for row in rows]))
    known = []
    for row in rows:
        others = rests.get(_clock(row), [])
        if not math.isfinite(row.idle_w) and not others:
            continue
        seconds_a_byte = row.latency_s / row.link_bytes
        power_std = max(LEAST_POWER_STD_W, 0.0 if math.isnan(row.power_std_w) else row.power_std_w)
        if math.isfinite(row.idle_w):
            known.append(((row.power_w - row.idle_w) * seconds_a_byte, power_std * seconds_a_byte))
        else:
            known.append(((row.power_w - float(np.mean(others))) * seconds_a_byte, math.hypot(power_std, np.std(others)) * seconds_a_byte))
    if not known:
        clocks = ", ".join(dict.fromkeys(f"{_clock(row):g} MHz" if _clock(row) else "the current clock" for row in rows))
        why = f"no power at rest at {clocks} (idle_before_w of this run or of another); measure with idle_s above 0"
        return LinkEnergy(link=rows[0].link, bytes_per_s=rate, j_per_byte=math.nan, std_j=math.nan, runs=len(rows), why_unknown=why)
    values = np.array([value for value, _ in known])
    scatter = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    std = math.hypot(max(scatter, float(np.mean([std for _, std in known]))) / math.sqrt(len(values)), gain_std * abs(float(values.mean())))
    return LinkEnergy(link=rows[0].link, bytes_per_s=rate, j_per_byte=float(values.mean()), std_j=std, runs=len(rows))
