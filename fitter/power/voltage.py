"""Core voltage over the clock, inferred from the rise of power if the board does not report it.

Boards hold the voltage flat up to a knee and raise it from there: V/V₀ = 1 + slope · (f − knee)/(f_max − knee) above the
knee.  Only the ratio can be inferred; with the switching exponent 2 it is an effective voltage, which includes
leakage and losses.  Power that does not depend on the clock is a separate coefficient of the same fit.

Three clocks suffice: the curve is the mean over all pairs of knee and slope, weighted by their likelihood (a Bayesian average
with flat priors).  The scatter about that mean is the stated deviation: if the clocks do not determine the knee, it is wide
between the clocks and narrow at them.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.model.power import WARM_KNEE, WARM_SHARPNESS, BoardTables
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.quantities import Array
from fitter.power.solver import PowerRows, PowerShape, design_matrix, solve_power
from fitter.rows.columns import distinct_clocks

SWITCHING_EXPONENT: Final = 2.0

KNEES: Final = tuple(np.round(np.arange(0.4, 0.96, 0.05), 2).tolist())
"""Candidate knees over the highest measured clock."""

SLOPES: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
"""Candidate rises of V / V₀ from the knee to the highest measured clock."""

TABLE_POINTS: Final = 41

INFERRED: Final = "inferred from power"
"""Prefix of the source of an inferred table."""

UNIT_VOLTAGE_V: Final = 1.0
"""Voltage below the knee in an inferred table, whose scale is unknown [V]."""

LEAST_ERROR: Final = 0.01
"""Least relative error of a power row."""

MOST_ROWS: Final = 1500
"""Most rows for the inference; of more rows, equidistant ones are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredVoltage:
    """A voltage curve, UNIT_VOLTAGE_V below the knee, with the standard deviation of its values [V]."""

    table: ClockTable
    std_v: tuple[float, ...]


def infer_voltage(rows: PowerRows, tables: BoardTables, reference_clock_mhz: float, warmer_k: Array) -> InferredVoltage | None:
    """The voltage curve, or None where fewer than three clocks were measured or power shows no rise.

    warmer_k (n,): temperature above that of the board at rest, 0 where unknown.
    """
    clocks = distinct_clocks(rows.clock_mhz)
    if len(clocks) < 3:
        return None
    if len(rows.power_w) > MOST_ROWS:
        kept = np.zeros(len(rows.power_w), dtype=np.bool_)
        kept[np.linspace(0, len(kept) - 1, MOST_ROWS).astype(np.int64)] = True
        rows, warmer_k = rows.select(kept), warmer_k[kept]
    grid = np.linspace(clocks[0], clocks[-1], TABLE_POINTS)
    flat = _cost(rows, tables, reference_clock_mhz, warmer_k, grid, np.zeros(TABLE_POINTS))
    rises = np.stack([_rise(grid, knee, slope) for knee in KNEES for slope in SLOPES])
    costs = np.array([_cost(rows, tables, reference_clock_mhz, warmer_k, grid, rise) for rise in rises])
    # A rising voltage that lowers the cost by less is not worth two parameters.
    if costs.min() > flat * (1.0 - 0.05):
        return None
    kernels = max(len(rows.power_w) / len(clocks), 1.0)  # rows of one kernel at several clocks have similar errors
    variance = max(float(costs.min()), LEAST_ERROR**2)
    weight = np.exp(-0.5 * kernels * (costs - costs.min()) / variance)
    weight /= weight.sum()
    mean = weight @ rises
    spread = np.sqrt(np.maximum(weight @ (rises - mean) ** 2, 0.0))
    return InferredVoltage(table=_table(grid, mean), std_v=tuple((UNIT_VOLTAGE_V * spread).tolist()))


def _rise(grid_mhz: Array, knee: float, slope: float) -> Array:
    """V / V₀ − 1 over the grid."""
    highest = float(grid_mhz[-1])
    start = knee * highest
    rise: Array = np.clip((grid_mhz - start) / max(highest - start, 1.0), 0.0, 1.0) * slope
    return rise


def _table(grid_mhz: Array, rise: Array) -> ClockTable:
    top = f"{rise[-1] - rise[0]:.0%} higher at {grid_mhz[-1]:.0f} than at {grid_mhz[0]:.0f} MHz"
    return ClockTable(
        sm_clock_mhz=tuple(float(f) for f in grid_mhz),
        value=tuple(float(v) for v in UNIT_VOLTAGE_V * (1.0 + rise)),
        source=f"{INFERRED}: {top}; scale unknown, taken as 1 V where flat",
    )


def _cost(rows: PowerRows, tables: BoardTables, reference_clock_mhz: float, warmer_k: Array, grid_mhz: Array, rise: Array) -> float:
    board = replace(tables, voltage_v=_table(grid_mhz, rise), reference_clock_mhz=reference_clock_mhz)
    point = board.at(rows.clock_mhz)
    shape = PowerShape(exponent=SWITCHING_EXPONENT, warm_knee=WARM_KNEE, warm_sharpness=WARM_SHARPNESS)
    return solve_power(rows, point, design_matrix(rows, point, shape, reference_clock_mhz, warmer_k)).cost
