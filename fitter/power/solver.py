"""The linear problem behind the power coefficients: columns, priors, robust non-negative least squares."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from estimator.engine.kernel_table import warm_events
from estimator.model.power import POWER_TERMS, SWITCHING_EXPONENT, BoardTables
from estimator.model.silicon import energy_factors
from estimator.vocabulary.quantities import Array, BoolArray
from estimator.vocabulary.values import Columns, arrays, frozen

PICO: Final = 1e-12

STATIC_TERMS: Final = ("busy", "active")
TERMS: Final = (*POWER_TERMS, *STATIC_TERMS)

PRIOR: Final[dict[str, tuple[float, float]]] = {
    "dram": (60.0, 0.15),
    "dram_path": (30.0, 0.3),
    "l2": (5.0, 0.4),
    "shared": (3.0, 0.5),
    "tensor": (0.66, 0.3),
    "cuda": (18.0, 0.3),
    "sfu": (40.0, 0.3),
    "busy": (8.0, 0.3),
    "active": (4.0, 0.5),
}
"""Centre [pJ per event, W for static terms] and relative width of every coefficient of an A100 at PRIOR_CLOCK_MHZ.

Centres: one fit of whole models on A100-PCIe, A10 and H100-SXM, their energies carried to the A100 (`estimator.model.silicon`); L2 and the
parts of DRAM, which models do not tell apart, are moved a third of the way towards a fit that has H200's kernels, too (9; 90 and 3).
Widths: the scatter of the boards' own fits.  DRAM's is tight: one clock cannot tell its memory part from its core part.  So is that of
busy SMs, which runs of whole models do not tell from others (A10 0 ± 4, A100 3 ± 3): an H200's kernels say 11, and 6 is the slope of an
RTX 5090's power over its clock while it waits for memory at 810 MHz (noonghunna/club-3090).
"""

PRIOR_CLOCK_MHZ: Final = 900.0
"""Clock of an A100 at which the centres hold [MHz]."""

PowerPriors = Mapping[str, tuple[float, float]]


def usual_priors(tables: BoardTables) -> dict[str, tuple[float, float]]:
    """PRIOR for a board at its reference clock (`estimator.model.silicon`)."""
    core = tables.reference_ratio**SWITCHING_EXPONENT
    own = energy_factors(tables.gpu)
    factors = {term: core * own.get(term, 1.0) for term in TERMS} | {"dram": own["dram"], "active": 1.0}
    factors["busy"] *= tables.reference_clock_mhz / PRIOR_CLOCK_MHZ
    return {term: (centre * factors[term], width) for term, (centre, width) in PRIOR.items()}


PRIOR_WEIGHT: Final = 0.02
"""Relative error of one row that sets the weight of the priors in a fit of `PRIOR_ROWS` rows."""

PRIOR_ROWS: Final = 30.0
"""Rows for which `PRIOR_WEIGHT` is stated."""


@arrays
class PowerRows(Columns):
    """Power measurements as columns of shape (n,).

    asked_mhz clock that was locked, nan if none; event_rate (n, 7) events of POWER_TERMS per second of the row's time, operands cold;
    warm_ratio working set in L2 sizes of reused operands, infinite for others; busy active share of the busy power; relative_std
    the row's own measuring error, 0 if unknown; kind of kernel or model: rows of one kind have similar errors.
    """

    power_w: Array
    clock_mhz: Array
    asked_mhz: Array
    event_rate: Array
    warm_ratio: Array
    busy: Array
    weight: Array
    relative_std: Array
    kind: NDArray[np.str_]


@frozen
class PowerSolution:
    """Coefficients (9,) in the order of the design's columns, final row weights (n,), relative residuals (P̂ − P) / P (n,) and the cost."""

    values: Array
    weight: Array
    residual: Array
    cost: float


@frozen
class PowerProblem:
    """Rows of one board, for any exponent of the voltage; priors: as PRIOR."""

    rows: PowerRows
    tables: BoardTables
    priors: PowerPriors

    def select(self, keep: BoolArray) -> "PowerProblem":
        """The rows `keep`."""
        return replace(self, rows=self.rows.select(keep))

    def design(self, exponent: float) -> Array:
        """Columns of TERMS [10¹² events/s or 1], shape (n, 9): coefficients are then pJ per event and W."""
        rows, point = self.rows, self.tables.at(self.rows.clock_mhz)
        core = point.voltage_ratio**exponent
        rate = warm_events(rows.event_rate, rows.warm_ratio) * PICO
        columns = rate * core[:, None]
        columns[:, POWER_TERMS.index("dram")] = rate[:, POWER_TERMS.index("dram")]
        clock_ratio = rows.clock_mhz / self.tables.reference_clock_mhz
        return np.column_stack([columns, rows.busy * core * clock_ratio, point.idle_ratio])

    def solve(self, exponent: float) -> PowerSolution:
        """Fit coefficients that are not negative to power beyond idle by relative errors, with the priors as further rows."""
        rows = self.rows
        relative = self.design(exponent) / rows.power_w[:, None]
        target = (rows.power_w - self.tables.at(rows.clock_mhz).idle_w) / rows.power_w
        # The weight of a row falls from a relative measuring error of 20 % on.
        weight = rows.weight / (1.0 + (rows.relative_std / 0.2) ** 2)
        root = np.sqrt(weight)
        prior, prior_target = prior_rows(len(target), self.priors)
        values, _ = nnls(np.vstack([relative * root[:, None], prior]), np.concatenate([target * root, prior_target]))
        error = relative @ values - target
        prior_cost = float(np.sum((prior @ values - prior_target) ** 2)) / max(len(target), 1)
        return PowerSolution(values=values, weight=weight, residual=error, cost=float(np.mean(weight * error**2)) + prior_cost)


def prior_rows(count: int, priors: PowerPriors) -> tuple[Array, Array]:
    """Rows that add the priors to the problem; their share of influence is constant up to MOST_PRIOR_ROWS rows of data."""
    strength = PRIOR_WEIGHT * np.sqrt(min(count, MOST_PRIOR_ROWS) / PRIOR_ROWS)
    centres, widths = np.array([priors[term] for term in TERMS]).T
    return np.diag(strength / (centres * widths)), strength / widths


MOST_PRIOR_ROWS: Final = 60
"""Rows beyond which the priors lose weight against the data; such data come from kernels measured alone."""
