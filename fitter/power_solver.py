"""The linear problem behind the power coefficients: columns, priors, robust non-negative least squares."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from estimator.power import POWER_TERMS, OperatingPoint
from estimator.quantities import Array

PICO: Final = 1e-12

STATIC_TERMS: Final = ("busy", "active")
TERMS: Final = (*POWER_TERMS, *STATIC_TERMS)

PRIOR: Final[dict[str, tuple[float, float]]] = {
    "dram": (45.0, 0.15),
    "dram_path": (50.0, 0.5),
    "l2": (5.0, 0.6),
    "shared": (2.0, 1.0),
    "tensor": (0.7, 0.5),
    "cuda": (5.0, 0.5),
    "sfu": (20.0, 0.5),
    "busy": (25.0, 0.6),
    "active": (4.0, 0.5),
}
"""Centre [pJ per event, W for static terms] and relative width of every coefficient, on A100 and A10 at about 0.7 V.

DRAM's is tight: one clock cannot tell its memory part from its core part.  docs/model.md names the sources.
"""

PRIOR_WEIGHT: Final = 0.02
"""Relative error of one row against which the priors of a fit of `PRIOR_ROWS` rows are weighed."""

PRIOR_ROWS: Final = 30.0

ROBUST_SCALE: Final = 0.2
"""Relative power error beyond which a row's weight falls."""

ROBUST_PASSES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRows:
    """Power measurements as columns of shape (n,).

    event_rate (n, 7) events of POWER_TERMS per second of the row's time; busy (n,) share of the time that SMs run;
    relative_std the row's own measuring error, 0 where unknown.
    """

    power_w: Array
    clock_mhz: Array
    event_rate: Array
    busy: Array
    weight: Array
    relative_std: Array


def design_matrix(rows: PowerRows, point: OperatingPoint, exponent: float, reference_clock_mhz: float) -> Array:
    """Columns of TERMS [10¹² events/s, or 1], shape (n, 9): coefficients are then pJ per event and W."""
    core = point.voltage_ratio**exponent
    columns = rows.event_rate * PICO * core[:, None]
    columns[:, POWER_TERMS.index("dram")] = rows.event_rate[:, POWER_TERMS.index("dram")] * PICO
    clock_ratio = rows.clock_mhz / reference_clock_mhz
    return np.column_stack([columns, rows.busy * core * clock_ratio, point.idle_ratio])


def solve_power(rows: PowerRows, point: OperatingPoint, exponent: float, reference_clock_mhz: float) -> tuple[Array, Array, float]:
    """Coefficients, final row weights and the cost of a voltage exponent."""
    design = design_matrix(rows, point, exponent, reference_clock_mhz) / rows.power_w[:, None]
    target = (rows.power_w - point.idle_w) / rows.power_w
    base = rows.weight / (1.0 + (rows.relative_std / ROBUST_SCALE) ** 2)
    weight = base
    prior, prior_target = _prior_rows(len(target))
    values = np.zeros(len(TERMS))
    for _ in range(ROBUST_PASSES):
        root = np.sqrt(weight)
        values, _ = nnls(np.vstack([design * root[:, None], prior]), np.concatenate([target * root, prior_target]))
        error = design @ values - target
        weight = base / np.sqrt(1.0 + (error / ROBUST_SCALE) ** 2)
    cost = float(np.mean(weight * error**2)) + float(np.sum((prior @ values - prior_target) ** 2)) / max(len(target), 1)
    return values, weight, cost


def _prior_rows(count: int) -> tuple[Array, Array]:
    """Rows that pull each coefficient to its centre; they keep their share of influence up to MOST_PRIOR_ROWS rows of data."""
    strength = PRIOR_WEIGHT * np.sqrt(min(count, MOST_PRIOR_ROWS) / PRIOR_ROWS)
    centres = np.array([PRIOR[term][0] for term in TERMS])
    widths = np.array([PRIOR[term][1] for term in TERMS])
    return np.diag(strength / (centres * widths)), strength / widths


MOST_PRIOR_ROWS: Final = 60
"""With more rows than this the data, which then come from kernels measured alone, gain on the priors."""


def power_covariance(design: Array, residual: Array, weight: Array) -> Array:
    """Sandwich covariance of the coefficients, shape (9, 9), with the priors as further data.

    The scatter of the rows counts in blocks of neighbours: rows of one kernel or workload err alike.
    """
    prior, _ = _prior_rows(len(residual))
    variance = max(float(np.average(residual**2, weights=weight)), 1e-8)
    hessian = design.T @ (design * weight[:, None]) / variance + prior.T @ prior / PRIOR_WEIGHT**2
    inverse = np.linalg.pinv(hessian)
    scores = design * (weight * residual)[:, None] / variance
    blocks = np.array_split(np.arange(len(residual)), min(len(residual), MOST_BLOCKS))
    sums = np.array([scores[block].sum(axis=0) for block in blocks])
    middle = sums.T @ sums + prior.T @ prior / PRIOR_WEIGHT**2
    covariance = inverse @ middle @ inverse
    symmetric: Array = (covariance + covariance.T) / 2.0  # rounding leaves it a little lopsided where rows are few
    return symmetric


MOST_BLOCKS: Final = 40
"""Blocks of neighbouring rows for the sandwich covariance."""
