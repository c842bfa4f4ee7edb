"""Power coefficients: energy per event and static terms, from kernels, from runs of whole workloads, or from both.

P − P_idle(f) is linear in the coefficients once time is known, and a run's energy is a sum over its kernels, so both
kinds of row enter one non-negative least squares with relative errors, pulled to physical priors.  Columns are
scaled before solving: events in 10¹²/s with picojoules.  The two nonlinear parameters – the exponent of the voltage,
and the edge beyond which operands leave L2 – are chosen among candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.model.power import WARM_KNEE, WARM_SHARPNESS, BoardTables, OperatingPoint
from estimator.uncertainty.sources import TELLING_VOLTAGE_RANGE, VOLTAGE_EXPONENT_STD
from estimator.vocabulary.quantities import Array, BoolArray
from fitter.power.solver import (
    LEAKAGE,
    PRIOR,
    PRIOR_WEIGHT,
    TERMS,
    PowerPriors,
    PowerRows,
    PowerShape,
    PowerSolution,
    design_matrix,
    solve_power,
)
from fitter.power.uncertainty import block_covariance, count_covariance, kind_covariance
from fitter.power.voltage import SWITCHING_EXPONENT, infer_voltage

IDENTIFIED_SHRINKAGE: Final = 0.7
"""A coefficient is identified if the data shrink its prior's width to below this share."""

EXPONENTS: Final = (2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5)
"""Candidates for the effective voltage exponent; 2 is pure switching."""

DEFAULT_EXPONENT: Final = 3.0
"""Default effective exponent, used with one clock or a flat voltage."""

KNEES: Final = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9, 1.0, 1.2)
"""Candidates for the edge beyond which warm operands leave L2."""

KNEE_SPAN: Final = (0.3, 2.0)
KNEE_ROWS: Final = 30
"""Working sets near the edge [L2 size], and the number of rows needed there to determine it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageFit:
    """Leakage per kelvin above the board at rest, its standard deviation [W/K], and the temperature under load.

    The temperature is operating_c + operating_k_per_w · power [°C], [K/W].
    """

    w_per_k: float
    std_w_per_k: float
    operating_c: float
    operating_k_per_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerFit:
    """Coefficients in pJ per event and W, in the order of TERMS, their covariance, and details of the fit.

    relative_residuals: (P̂ − P) / P of each row.  exponent_fitted: whether the rows determine the voltage exponent.
    leakage: None if temperatures, under load or at rest, are unknown.
    voltage_std_v: standard deviations of the tables' voltages if these were inferred from the rows [V].
    """

    values: Array
    covariance: Array
    identified: Mapping[str, bool]
    voltage_exponent: float
    reference_clock_mhz: float
    tables: BoardTables
    relative_residuals: Array
    rows: int
    warm_knee: float = WARM_KNEE
    warm_sharpness: float = WARM_SHARPNESS
    leakage: LeakageFit | None = None
    voltage_std_v: tuple[float, ...] | None = None


def fit_power(rows: PowerRows, tables: BoardTables, reference_clock_mhz: float, priors: PowerPriors = PRIOR) -> PowerFit:
    """Non-negative relative least squares with priors.

    An unknown voltage is inferred if the rows show it.  For a known voltage the effective exponent is chosen if clocks with different
    voltages were measured.
    """
    line = operating_line(rows) if tables.idle_temperature_c is not None else None
    warmer_k = np.zeros(len(rows.power_w))
    if line is not None and tables.idle_temperature_c is not None:
        usual_c = line[0] + line[1] * rows.power_w
        warmer_k = np.where(np.isfinite(rows.temperature_c), rows.temperature_c, usual_c) - tables.idle_temperature_c
    inferred = infer_voltage(rows, tables, reference_clock_mhz, warmer_k) if tables.voltage_v is None else None
    board = replace(tables, voltage_v=tables.voltage_v if inferred is None else inferred.table, reference_clock_mhz=reference_clock_mhz)
    problem = _Problem(rows=rows, point=board.at(rows.clock_mhz), reference_clock_mhz=reference_clock_mhz, warmer_k=warmer_k, priors=priors)
    tellable = inferred is None and bool(np.ptp(problem.point.voltage_ratio) > TELLING_VOLTAGE_RANGE)
    exponents: Sequence[float] = EXPONENTS if tellable else (DEFAULT_EXPONENT if inferred is None else SWITCHING_EXPONENT,)
    shape = _chosen_shape(problem, exponents)
    design, found = problem.design(shape), problem.solve(shape)
    covariance = _covariance(problem, shape, design, found, tellable)
    count = len(TERMS)
    widths = np.array([centre * width for centre, width in (priors[term] for term in TERMS)])
    spread = np.sqrt(np.diag(covariance))
    leakage = None
    if line is not None:
        leakage = LeakageFit(
            w_per_k=float(found.values[LEAKAGE]), std_w_per_k=float(spread[LEAKAGE]), operating_c=line[0], operating_k_per_w=line[1]
        )
    return PowerFit(
        values=found.values[:count],
        covariance=covariance[:count, :count],
        identified={term: bool(s < IDENTIFIED_SHRINKAGE * w) for term, s, w in zip(TERMS, spread, widths, strict=False)},
        voltage_exponent=shape.exponent,
        reference_clock_mhz=reference_clock_mhz,
        tables=board,
        relative_residuals=(problem.point.idle_w + design @ found.values - rows.power_w) / rows.power_w,
        rows=len(rows.power_w),
        warm_knee=shape.warm_knee,
        warm_sharpness=shape.warm_sharpness,
        leakage=leakage,
        voltage_std_v=None if inferred is None else inferred.std_v,
    )


def operating_line(rows: PowerRows) -> tuple[float, float] | None:
    """Temperature of the measured board as a line in its power [°C], [K/W]; None if rows do not determine it."""
    known = np.isfinite(rows.temperature_c)
    # So many rows with a temperature, over such a range [K], tell leakage apart.
    if known.sum() < 30 or np.ptp(rows.temperature_c[known]) < 5.0:
        return None
    slope, base = np.polyfit(rows.power_w[known], rows.temperature_c[known], 1)
    return (float(base), float(slope)) if slope > 0.0 else (float(rows.temperature_c[known].mean()), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """The rows with the board's state at their clocks, for any shape."""

    rows: PowerRows
    point: OperatingPoint
    reference_clock_mhz: float
    warmer_k: Array
    priors: PowerPriors

    def design(self, shape: PowerShape) -> Array:
        return design_matrix(self.rows, self.point, shape, self.reference_clock_mhz, self.warmer_k)

    def solve(self, shape: PowerShape, keep: BoolArray | None = None) -> PowerSolution:
        """The coefficients of all rows, or of the rows `keep`."""
        if keep is None:
            return solve_power(self.rows, self.point, self.design(shape), self.priors)
        point = OperatingPoint(**{name: getattr(self.point, name)[keep] for name in OperatingPoint.__slots__})
        return solve_power(self.rows.select(keep), point, self.design(shape)[keep], self.priors)


def _chosen_shape(problem: _Problem, exponents: Sequence[float]) -> PowerShape:
    """The shape of least cost: searches the exponent, then the edge of L2 if rows lie near it, then the exponent again."""
    shape = PowerShape(exponent=exponents[-1], warm_knee=WARM_KNEE, warm_sharpness=WARM_SHARPNESS)
    by_exponent = [replace(shape, exponent=exponent) for exponent in exponents]
    shape = _cheapest(problem, by_exponent)
    near = (problem.rows.warm_ratio > KNEE_SPAN[0]) & (problem.rows.warm_ratio < KNEE_SPAN[1])
    if near.sum() < KNEE_ROWS:
        return shape
    shape = _cheapest(problem, [replace(shape, warm_knee=knee, warm_sharpness=edge) for knee in KNEES for edge in (3.0, 4.0, 5.0, 6.0)])
    return _cheapest(problem, [replace(shape, exponent=exponent) for exponent in exponents])


def _cheapest(problem: _Problem, shapes: Sequence[PowerShape]) -> PowerShape:
    if len(shapes) == 1:
        return shapes[0]
    count = len(problem.rows.power_w)
    # The data gain on the priors of exponent and edge from 30 rows on.
    costs = [problem.solve(shape).cost + _shape_cost(shape) * PRIOR_WEIGHT**2 * min(1.0, 30.0 / count) for shape in shapes]
    return shapes[int(np.argmin(costs))]


def _shape_cost(shape: PowerShape) -> float:
    """Squared distance of a shape from its prior, in widths."""
    exponent = (shape.exponent - DEFAULT_EXPONENT) / VOLTAGE_EXPONENT_STD
    knee = np.log(shape.warm_knee / WARM_KNEE) / 0.25
    sharpness = np.log(shape.warm_sharpness / WARM_SHARPNESS) / 0.35
    return float(exponent**2 + knee**2 + sharpness**2)


def _covariance(problem: _Problem, shape: PowerShape, design: Array, found: PowerSolution, tellable: bool) -> Array:
    """Covariance of the coefficients, shape (10, 10): scatter, exponent and counts."""
    rows, point = problem.rows, problem.point
    residual = (point.idle_w + design @ found.values - rows.power_w) / rows.power_w
    covariance = block_covariance(design / rows.power_w[:, None], residual, found.weight, problem.priors)
    by_kind = kind_covariance(rows.kind, found.values, lambda keep: problem.solve(shape, keep).values)
    if by_kind is not None:
        larger = np.sqrt(np.maximum(np.diag(by_kind) / np.diag(covariance), 1.0))
        covariance = covariance * np.outer(larger, larger)
    if tellable:
        moved = problem.solve(replace(shape, exponent=shape.exponent + 0.25)).values - found.values
        # Two candidates lie 0.25 apart, and the chosen one's standard deviation about the truth is half of that.
        covariance = covariance + np.outer(moved, moved) * 0.5**2
    return covariance + count_covariance(found.values)
