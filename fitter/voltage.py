"""Core voltage over the clock, inferred from how power rises where the board does not tell it.

Boards hold the voltage flat up to a knee and raise it from there: V/V₀ = 1 + slope · (f − knee)/(f_max − knee) above the
knee.  Only the ratio can be inferred; with the switching exponent 2 it is an effective voltage, which also carries
leakage and losses.  Three clocks suffice where one of them lies well above the knee.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.gpu import ClockTable
from estimator.power import WARM_KNEE, WARM_SHARPNESS, BoardTables
from estimator.quantities import Array
from fitter.power_solver import PowerRows, PowerShape, design_matrix, solve_power

FEWEST_CLOCKS: Final = 3
CLOCK_TOLERANCE: Final = 0.03
"""Clocks closer than this count as one [relative]."""

SWITCHING_EXPONENT: Final = 2.0

KNEES: Final = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
"""Candidate knees over the highest measured clock."""

SLOPES: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""Candidate rises of V / V₀ from the knee to the highest measured clock."""

TABLE_POINTS: Final = 41
UNIT_VOLTAGE_V: Final = 1.0
"""Voltage below the knee in an inferred table, whose scale is unknown [V]."""

LEAST_GAIN: Final = 0.05
"""Relative fall of the cost below which a rising voltage is not worth two parameters."""


def infer_voltage(rows: PowerRows, tables: BoardTables, reference_clock_mhz: float, warmer_k: Array) -> ClockTable | None:
    """A voltage table, 1 V below the knee, or None where fewer than three clocks were measured or power shows no rise.

    warmer_k (n,): temperature above that of the board at rest, 0 where unknown.
    """
    clocks = distinct_clocks(rows.clock_mhz)
    if len(clocks) < FEWEST_CLOCKS:
        return None
    grid = np.linspace(clocks[0], clocks[-1], TABLE_POINTS)
    best: tuple[float, float, float] | None = None
    flat = _cost(rows, tables, reference_clock_mhz, warmer_k, _table(grid, 1.0, 0.0))
    for knee in KNEES:
        for slope in SLOPES[1:]:
            cost = _cost(rows, tables, reference_clock_mhz, warmer_k, _table(grid, knee, slope))
            if best is None or cost < best[0]:
                best = (cost, knee, slope)
    if best is None or best[0] > flat * (1.0 - LEAST_GAIN):
        return None
    return _table(grid, best[1], best[2])


def distinct_clocks(clock_mhz: Array) -> Array:
    """Clocks of rows, those that lie close together counted once, ascending [MHz]."""
    found: list[float] = []
    for clock in np.sort(clock_mhz):
        if not found or clock > found[-1] * (1.0 + CLOCK_TOLERANCE):
            found.append(float(clock))
    return np.array(found)


def _table(grid_mhz: Array, knee: float, slope: float) -> ClockTable:
    highest = float(grid_mhz[-1])
    start = knee * highest
    rise = np.clip((grid_mhz - start) / max(highest - start, 1.0), 0.0, 1.0) * slope
    return ClockTable(
        sm_clock_mhz=tuple(float(f) for f in grid_mhz),
        value=tuple(float(v) for v in UNIT_VOLTAGE_V * (1.0 + rise)),
        source=f"inferred from power: flat to {start:.0f} MHz, {slope:.0%} higher at {highest:.0f} MHz; scale unknown, taken as 1 V",
    )


def _cost(rows: PowerRows, tables: BoardTables, reference_clock_mhz: float, warmer_k: Array, voltage: ClockTable) -> float:
    board = replace(tables, voltage_v=voltage, reference_clock_mhz=reference_clock_mhz)
    point = board.at(rows.clock_mhz)
    shape = PowerShape(exponent=SWITCHING_EXPONENT, warm_knee=WARM_KNEE, warm_sharpness=WARM_SHARPNESS)
    return solve_power(rows, point, design_matrix(rows, point, shape, reference_clock_mhz, warmer_k)).cost
