"""Core voltage over the clock, inferred from the rise of power if the board does not report it.

Boards hold the voltage flat up to a knee and raise it from there: V/V₀ = 1 + slope · (f − knee)/(f_max − knee) above the
knee.  Only the ratio can be inferred; with the switching exponent 2 it is an effective voltage, which includes
leakage and losses.  Power that does not depend on the clock is a separate coefficient of the same fit.

Three locked clocks suffice; clocks that a limit lowers, of some kernels only, hardly tell the voltage from these kernels' energies.  The
curve is the mean over all pairs of knee and slope, weighted by their likelihood (a Bayesian average with flat priors).  The scatter about
that mean is the stated deviation: if the clocks do not determine the knee, it is wide between the clocks and narrow at them.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.model.power import SWITCHING_EXPONENT
from estimator.model.silicon import UNKNOWN_V
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.quantities import Array
from fitter.power.solver import PowerProblem
from fitter.rows.columns import distinct_clocks

KNEES: Final = tuple(np.round(np.arange(0.4, 0.96, 0.05), 2).tolist())
"""Candidate knees over the highest measured clock."""

SLOPES: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
"""Candidate rises of V / V₀ from the knee to the highest measured clock."""

TABLE_POINTS: Final = 41
"""Clocks of an inferred voltage table."""

INFERRED: Final = "inferred from power"
"""Prefix of the source of an inferred table."""

LEAST_ERROR: Final = 0.01
"""Least relative error of a power row."""


def infer_voltage(problem: PowerProblem) -> ClockTable | None:
    """The voltage curve, UNKNOWN_V below the knee.

    None where fewer than three clocks were locked or power shows no rise.
    """
    locked = distinct_clocks(problem.rows.asked_mhz[np.isfinite(problem.rows.asked_mhz)])
    if len(locked) < 3:
        return None
    clocks = distinct_clocks(problem.rows.clock_mhz)
    grid = np.linspace(clocks[0], clocks[-1], TABLE_POINTS)
    flat = _cost(problem, grid, np.zeros(TABLE_POINTS))
    rises = np.stack([_rise(grid, knee, slope) for knee in KNEES for slope in SLOPES])
    costs = np.array([_cost(problem, grid, rise) for rise in rises])
    # A rising voltage that lowers the cost by less is not worth two parameters.
    if costs.min() > flat * (1.0 - 0.05):
        return None
    kernels = max(len(problem.rows.power_w) / len(clocks), 1.0)  # rows of one kernel at several clocks have similar errors
    variance = max(float(costs.min()), LEAST_ERROR**2)
    weight = np.exp(-0.5 * kernels * (costs - costs.min()) / variance)
    weight /= weight.sum()
    return _table(grid, weight @ rises)


def _rise(grid_mhz: Array, knee: float, slope: float) -> Array:
    """V / V₀ − 1 over the grid."""
    return np.interp(grid_mhz, grid_mhz[-1] * np.array([knee, 1.0]), [0.0, slope])


def _table(grid_mhz: Array, rise: Array) -> ClockTable:
    top = f"{rise[-1] - rise[0]:.0%} higher at {grid_mhz[-1]:.0f} than at {grid_mhz[0]:.0f} MHz"
    return ClockTable(
        sm_clock_mhz=tuple(float(f) for f in grid_mhz),
        value=tuple(float(v) for v in UNKNOWN_V * (1.0 + rise)),
        source=f"{INFERRED}: {top}; scale unknown, taken as 1 V where flat",
    )


def _cost(problem: PowerProblem, grid_mhz: Array, rise: Array) -> float:
    return replace(problem, tables=replace(problem.tables, voltage_v=_table(grid_mhz, rise))).solve(SWITCHING_EXPONENT).cost
