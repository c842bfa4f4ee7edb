"""Power coefficients: energy per event and static terms, from kernels, from runs of whole workloads, or from both.

P − P_idle(f) is linear in the coefficients once time is known, and a run's energy is a sum over its kernels, so both
kinds of row enter one non-negative least squares with relative errors, pulled to physical priors.  Columns are
scaled before solving: events in 10¹²/s with picojoules.  The exponent of the voltage is chosen among candidates.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.model.power import SWITCHING_EXPONENT, BoardTables
from estimator.uncertainty.sources import TELLING_VOLTAGE_RANGE, VOLTAGE_EXPONENT_STD
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen
from fitter.power.solver import PRIOR_WEIGHT, PowerPriors, PowerProblem, PowerRows, PowerSolution, usual_priors
from fitter.power.uncertainty import block_covariance, count_covariance, kind_covariance
from fitter.power.voltage import infer_voltage

EXPONENTS: Final = (2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5)
"""Candidates for the effective voltage exponent; 2 is pure switching."""

DEFAULT_EXPONENT: Final = 3.0
"""Default effective exponent, of a measured voltage, used with one clock or a flat voltage."""


@frozen
class PowerFit:
    """Coefficients in pJ per event and W, in the order of TERMS, their covariance, and details of the fit.

    tables: with the voltage of the fit.
    """

    values: Array
    covariance: Array
    exponent: float
    tables: BoardTables
    rows: int


def fit_power(rows: PowerRows, tables: BoardTables, priors: PowerPriors | None = None) -> PowerFit:
    """Non-negative relative least squares with priors.

    An unknown voltage is inferred if the rows show it.  For a known voltage the effective exponent is chosen if clocks with different
    voltages were measured.  Leakage of a warmer die is part of the energies: temperature goes with power, and rows do not tell them apart.
    Fitted apart on an H200 it was 2.5 W/K, and power of another H200's kernels erred by 10.1 instead of 6.9 % (`bundles/data`).
    """
    problem = PowerProblem(rows=rows, tables=tables, priors=priors or usual_priors(tables))
    inferred = infer_voltage(problem) if tables.voltage_v is None else None
    if inferred is not None:
        problem = replace(problem, tables=replace(tables, voltage_v=inferred))
    tellable = tables.voltage_v is not None and bool(np.ptp(problem.tables.at(rows.clock_mhz).voltage_ratio) > TELLING_VOLTAGE_RANGE)
    exponent = SWITCHING_EXPONENT if tables.voltage_v is None else DEFAULT_EXPONENT
    if tellable:
        exponent = min(EXPONENTS, key=lambda tried: problem.solve(tried).cost + _exponent_cost(tried, len(rows.power_w)))
    found = problem.solve(exponent)
    return PowerFit(
        values=found.values,
        covariance=_covariance(problem, exponent, found, tellable),
        exponent=exponent,
        tables=problem.tables,
        rows=len(rows.power_w),
    )


def _exponent_cost(exponent: float, rows: int) -> float:
    """Squared distance of an exponent from its prior, in widths; the data gain on the prior from 30 rows on."""
    return ((exponent - DEFAULT_EXPONENT) / VOLTAGE_EXPONENT_STD * PRIOR_WEIGHT) ** 2 * min(1.0, 30.0 / rows)


def _covariance(problem: PowerProblem, exponent: float, found: PowerSolution, tellable: bool) -> Array:
    """Covariance of the coefficients, shape (9, 9): scatter, exponent and counts."""
    rows = problem.rows
    covariance = block_covariance(problem.design(exponent) / rows.power_w[:, None], found.residual, found.weight, problem.priors)
    by_kind = kind_covariance(rows.kind, found.values, lambda keep: problem.select(keep).solve(exponent).values)
    if by_kind is not None:
        larger = np.sqrt(np.maximum(np.diag(by_kind) / np.diag(covariance), 1.0))
        covariance = covariance * np.outer(larger, larger)
    if tellable:
        moved = problem.solve(exponent + 0.25).values - found.values
        # Two candidates lie 0.25 apart, and the chosen one's standard deviation about the truth is half of that.
        covariance = covariance + np.outer(moved, moved) * 0.5**2
    return covariance + count_covariance(found.values)
