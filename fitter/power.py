"""Power coefficients: energy per event and static terms, from kernels, from runs of whole workloads, or from both.

P − P_idle(f) is linear in the coefficients once time is known, and a run's energy is a sum over its kernels, so both
kinds of row enter one non-negative least squares with relative errors, pulled to physical priors.  Columns are
scaled before solving: events in 10¹²/s with picojoules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.power import BoardTables
from estimator.quantities import Array
from fitter.power_solver import PRIOR, PRIOR_WEIGHT, TERMS, PowerRows, design_matrix, power_covariance, solve_power
from fitter.voltage import SWITCHING_EXPONENT, infer_voltage

IDENTIFIED_SHRINKAGE: Final = 0.7
"""A coefficient is identified when the data shrink its prior's width to below this share."""

EXPONENTS: Final = (2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5)
"""Candidates for the effective voltage exponent: 2 is switching alone."""

EXPONENT_STEP: Final = 0.25
EXPONENT_SHARE: Final = 0.5
"""Distance of two candidates, and the standard deviation of the chosen one about the truth in these steps."""

DEFAULT_EXPONENT: Final = 3.0
"""Effective exponent where one clock, or a flat voltage, cannot tell."""

EXPONENT_WIDTH: Final = 0.35
"""Prior width of the exponent about its default."""


EXPONENT_ROWS: Final = 30.0
"""Rows from which on the data gain on the exponent's prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerFit:
    """Coefficients in pJ per event and W, in the order of TERMS, their covariance, and how they were found.

    relative_residuals: (P̂ − P) / P of each row.  exponent_fitted: whether the rows decided the voltage exponent.
    """

    values: Array
    covariance: Array
    identified: Mapping[str, bool]
    voltage_exponent: float
    exponent_fitted: bool
    reference_clock_mhz: float
    tables: BoardTables
    relative_residuals: Array
    rows: int


def fit_power(rows: PowerRows, tables: BoardTables, reference_clock_mhz: float) -> PowerFit:
    """Non-negative relative least squares with priors.

    Where the voltage is unknown it is inferred, if the rows show it.  Where it is known, its effective exponent is
    chosen, if clocks with different voltages were measured.
    """
    inferred = infer_voltage(rows, tables, reference_clock_mhz) if tables.voltage_v is None else None
    board = BoardTables(
        voltage_v=inferred or tables.voltage_v,
        idle_w=tables.idle_w,
        reference_clock_mhz=reference_clock_mhz,
        power_limit_w=tables.power_limit_w,
    )
    point = board.at(rows.clock_mhz)
    tellable = inferred is None and bool(np.ptp(point.voltage_ratio) > TELLING_VOLTAGE_RANGE)
    exponents: Sequence[float] = EXPONENTS if tellable else (DEFAULT_EXPONENT if inferred is None else SWITCHING_EXPONENT,)
    best = None
    for exponent in exponents:
        values, weight, cost = solve_power(rows, point, exponent, reference_clock_mhz)
        cost += ((exponent - DEFAULT_EXPONENT) / EXPONENT_WIDTH) ** 2 * PRIOR_WEIGHT**2 * min(1.0, EXPONENT_ROWS / len(rows.power_w))
        if best is None or cost < best[0]:
            best = (cost, exponent, values, weight)
    assert best is not None  # EXPONENTS is not empty
    _, exponent, values, weight = best
    design = design_matrix(rows, point, exponent, reference_clock_mhz)
    residual = (point.idle_w + design @ values - rows.power_w) / rows.power_w
    covariance = power_covariance(design / rows.power_w[:, None], residual, weight)
    if tellable:
        beside, _, _ = solve_power(rows, point, exponent + EXPONENT_STEP, reference_clock_mhz)
        covariance = covariance + np.outer(beside - values, beside - values) * EXPONENT_SHARE**2
    widths = np.array([centre * width for centre, width in PRIOR.values()])
    spread = np.sqrt(np.diag(covariance))
    return PowerFit(
        values=values,
        covariance=covariance,
        identified={term: bool(s < IDENTIFIED_SHRINKAGE * w) for term, s, w in zip(TERMS, spread, widths, strict=True)},
        voltage_exponent=exponent,
        exponent_fitted=tellable,
        reference_clock_mhz=reference_clock_mhz,
        tables=board,
        relative_residuals=residual,
        rows=len(rows.power_w),
    )


TELLING_VOLTAGE_RANGE: Final = 0.05
"""Range of V / V₀ among the rows from which on they can tell the exponent."""
