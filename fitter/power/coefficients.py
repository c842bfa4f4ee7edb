"""Power coefficients: energy per event and static terms, from kernels, from runs of whole workloads, or from both.

P − P_idle(f) is linear in the coefficients once time is known, and a run's energy is a sum over its kernels, so both
kinds of row enter one non-negative least squares with relative errors, pulled to physical priors.  Columns are
scaled before solving: events in 10¹²/s with picojoules.  The two nonlinear parameters – the exponent of the voltage,
and the edge beyond which operands leave L2 – are chosen among candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.model.power import WARM_KNEE, WARM_SHARPNESS, BoardTables
from estimator.uncertainty.sources import TELLING_VOLTAGE_RANGE, VOLTAGE_EXPONENT_STD
from estimator.vocabulary.quantities import Array
from fitter.power.solver import PRIOR, PRIOR_WEIGHT, PowerPriors, PowerProblem, PowerRows, PowerShape, PowerSolution
from fitter.power.uncertainty import block_covariance, count_covariance, kind_covariance
from fitter.power.voltage import SWITCHING_EXPONENT, infer_voltage

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
class PowerFit:
    """Coefficients in pJ per event and W, in the order of TERMS and leakage [W/K], their covariance, and details of the fit.

    tables: with the voltage of the fit.  voltage_std_v: standard deviations of its voltages if they were inferred from the rows [V].
    operating_line: temperature under load as a line in the power [°C], [K/W]; None, without leakage, if temperatures under load or at rest
    are unknown.
    """

    values: Array
    covariance: Array
    shape: PowerShape
    tables: BoardTables
    rows: int
    operating_line: tuple[float, float] | None = None
    voltage_std_v: tuple[float, ...] | None = None


def fit_power(rows: PowerRows, tables: BoardTables, priors: PowerPriors = PRIOR) -> PowerFit:
    """Non-negative relative least squares with priors.

    An unknown voltage is inferred if the rows show it.  For a known voltage the effective exponent is chosen if clocks with different
    voltages were measured.
    """
    line, warmer_k = None, np.zeros(len(rows.power_w))
    if tables.idle_temperature_c is not None:
        line = operating_line(rows)
    if line is not None and tables.idle_temperature_c is not None:
        usual_c = line[0] + line[1] * rows.power_w
        warmer_k = np.where(np.isfinite(rows.temperature_c), rows.temperature_c, usual_c) - tables.idle_temperature_c
    problem = PowerProblem(rows=rows, tables=tables, warmer_k=warmer_k, priors=priors)
    inferred = infer_voltage(problem) if tables.voltage_v is None else None
    if inferred is not None:
        problem = replace(problem, tables=replace(tables, voltage_v=inferred[0]))
    tellable = inferred is None and bool(np.ptp(problem.tables.at(rows.clock_mhz).voltage_ratio) > TELLING_VOLTAGE_RANGE)
    shape = _chosen_shape(problem, EXPONENTS if tellable else (DEFAULT_EXPONENT if inferred is None else SWITCHING_EXPONENT,))
    found = problem.solve(shape)
    return PowerFit(
        values=found.values,
        covariance=_covariance(problem, shape, found, tellable),
        shape=shape,
        tables=problem.tables,
        rows=len(rows.power_w),
        operating_line=line,
        voltage_std_v=None if inferred is None else inferred[1],
    )


def operating_line(rows: PowerRows) -> tuple[float, float] | None:
    """Temperature of the measured board as a line in its power [°C], [K/W]; None if rows do not determine it."""
    known = np.isfinite(rows.temperature_c)
    # So many rows with a temperature, over such a range [K], tell leakage apart.
    if known.sum() < 30 or np.ptp(rows.temperature_c[known]) < 5.0:
        return None
    slope, base = np.polyfit(rows.power_w[known], rows.temperature_c[known], 1)
    return (float(base), float(slope)) if slope > 0.0 else (float(rows.temperature_c[known].mean()), 0.0)


def _chosen_shape(problem: PowerProblem, exponents: Sequence[float]) -> PowerShape:
    """The shape of least cost: searches the exponent, then the edge of L2 if rows lie near it, then the exponent again."""
    shape = PowerShape(exponent=exponents[-1], warm_knee=WARM_KNEE, warm_sharpness=WARM_SHARPNESS)
    by_exponent = [replace(shape, exponent=exponent) for exponent in exponents]
    shape = _cheapest(problem, by_exponent)
    near = (problem.rows.warm_ratio > KNEE_SPAN[0]) & (problem.rows.warm_ratio < KNEE_SPAN[1])
    if near.sum() < KNEE_ROWS:
        return shape
    shape = _cheapest(problem, [replace(shape, warm_knee=knee, warm_sharpness=edge) for knee in KNEES for edge in (3.0, 4.0, 5.0, 6.0)])
    return _cheapest(problem, [replace(shape, exponent=exponent) for exponent in exponents])


def _cheapest(problem: PowerProblem, shapes: Sequence[PowerShape]) -> PowerShape:
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


def _covariance(problem: PowerProblem, shape: PowerShape, found: PowerSolution, tellable: bool) -> Array:
    """Covariance of the coefficients, shape (10, 10): scatter, exponent and counts."""
    rows = problem.rows
    covariance = block_covariance(problem.design(shape) / rows.power_w[:, None], found.residual, found.weight, problem.priors)
    by_kind = kind_covariance(rows.kind, found.values, lambda keep: problem.select(keep).solve(shape).values)
    if by_kind is not None:
        larger = np.sqrt(np.maximum(np.diag(by_kind) / np.diag(covariance), 1.0))
        covariance = covariance * np.outer(larger, larger)
    if tellable:
        moved = problem.solve(replace(shape, exponent=shape.exponent + 0.25)).values - found.values
        # Two candidates lie 0.25 apart, and the chosen one's standard deviation about the truth is half of that.
        covariance = covariance + np.outer(moved, moved) * 0.5**2
    return covariance + count_covariance(found.values)
