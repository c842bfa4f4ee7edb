"""Drift of a board: new measurements compared with its bundle and the stated errors.

Rows outside the range of the fit do not show drift, because the equations may not hold there on any board.  The range is that of the
warnings of `estimate`: kernels of an unseen kind, precision or shape, and clocks beyond the fitted ones are outside.  A run of a whole
model is outside if one of its kernels is.

For each kind of kernel the shift is the mean of predicted over measured of the held-out rows of the fit, less the mean of the new rows,
with equal weights for all kernels.  Its variance is

    s²/k + s²/n + τ²

s     stated standard deviation of a prediction of this kind
k, n  distinct kernels among the new rows, and among the held-out rows
τ     standard deviation of the means of kinds beyond s/√n, from the held-out errors of all kinds (random effects): kernels of a kind
      share part of their error, which does not average out

Kinds are combined with weights 1/variance.  A shift counts as drift if it exceeds LEAST_SHIFT and MOST_SIGMAS standard deviations.
Source: R. DerSimonian, N. Laird, Controlled Clinical Trials 7 (1986) 177 (τ by moments); Z. Šidák, JASA 62 (1967) 626.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle, ErrorFigures
from estimator.model.coefficients import group_key, longest_prefix
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.unseen import unseen_precisions
from estimator.uncertainty.validity import TOLERATED_FACTOR, outside_clock, shape_excess
from estimator.vocabulary.quantities import BoolArray
from estimator.vocabulary.reader import plain
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from fitter.rows.columns import KernelRows, WorkloadRows
from fitter.validate.predictions import LABEL, PERCENT, QUANTITIES, label_of

FALSE_ALARM: Final = 0.01
"""Probability that a check of an unchanged board reports drift [1]."""

MOST_SIGMAS: Final = NormalDist().inv_cdf(0.5 + 0.5 * math.sqrt(1.0 - FALSE_ALARM))
"""Standard deviations beyond which one of two shifts, of latency and of power, counts (Šidák)."""

LEAST_SHIFT: Final = 1.0
"""Least shift that counts as drift [percent]."""

FEWEST: Final = 3
"""Least kernels of a kind, or workloads, for a shift; least kinds for an estimate of their common error."""

SHARED: Final = 0.5
"""Common error as a share of the stated standard deviation if there are fewer kinds (assumed) [1]."""

DIRECTIONS: Final = {"latency": ("slower", "faster"), "power": ("more power", "less power")}
"""Words for a measured value above the stated one, and below it."""


@frozen
class Drift:
    """The shift of latency or power over all kinds of kernels in a check.

    shift_percent, std_percent   how far measured values lie above the stated ones, and its standard deviation [% of the measured value]
    """

    quantity: str
    kernels: int
    rows: int
    shift_percent: float
    std_percent: float

    @property
    def sigmas(self) -> float:
        """The shift in standard deviations."""
        return abs(self.shift_percent) / self.std_percent

    @property
    def drifted(self) -> bool:
        """Whether the board has drifted beyond its stated error."""
        return self.sigmas > MOST_SIGMAS and abs(self.shift_percent) > LEAST_SHIFT

    def document(self) -> dict[str, object]:
        """The drift as plain data."""
        return {**plain(self), "sigmas": self.sigmas, "drifted": self.drifted}

    def text(self) -> str:
        """For people."""
        direction = DIRECTIONS[self.quantity][self.shift_percent < 0.0]
        figure = f"{abs(self.shift_percent):.1f} ± {self.std_percent:.1f} % {direction}"
        return f"{self.kernels} kernels: {figure} than stated ({self.sigmas:.1f} standard deviations)"


def drifts(bundle: Bundle, found: Sequence[pd.DataFrame], gain_std: float = 0.0) -> tuple[Drift, ...]:
    """Shifts of latency and of power on the bundle's own GPU and in its own collections; empty without stated errors.

    found: as from `predict_kernel_rows`, with `outside_range` as the column "outside"; such rows are left out.
    gain_std: relative error of the sensor's gain on one of both sides alone, which all kinds share.
    """
    shifts = []
    for quantity in QUANTITIES:
        stated = {label_of(row)[1:]: errors for row in bundle.errors if (errors := row[quantity]) is not None}
        tau = _tau(stated.values())
        kinds = []
        for rows in found:
            error = (rows[f"predicted_{quantity}"] / rows[f"measured_{quantity}"] - 1.0) * PERCENT
            own = rows.assign(error=error, std=rows[f"std_{quantity}"] * PERCENT)
            home = own["collection"].isin([one.name for one in bundle.collections])
            own = own[~own["outside"] & home & (own["gpu"] == bundle.gpu.name)].dropna(subset=["error", "std"])
            kinds += [_shift(members, stated[kind], tau) for kind, members in own.groupby(LABEL[1:], sort=False) if kind in stated]
        shift, variance, kernels, count = np.array([one for one in kinds if np.isfinite(one).all()]).reshape(-1, 4).T
        if len(shift):
            total = float((1.0 / variance).sum())
            size = {"kernels": int(kernels.sum()), "rows": int(count.sum())}
            std = math.hypot(total**-0.5, PERCENT * gain_std * (quantity == "power"))
            shifts.append(Drift(quantity=quantity, **size, shift_percent=float((shift / variance).sum()) / total, std_percent=std))
    return tuple(shifts)


def _shift(own: pd.DataFrame, then: ErrorFigures, tau: float | None) -> tuple[float, float, int, int]:
    """Shift of one kind [percent], its variance (nan for too few kernels, and without a stated error), kernels, and rows."""
    means = own.groupby("same")["error"].mean()
    std, kernels = float(np.sqrt((own["std"] ** 2).mean())), len(means)
    if kernels < FEWEST or not std > 0.0:
        return math.nan, math.nan, kernels, len(own)
    before = max(then["n"] * kernels / len(own), 1.0)
    shared = SHARED * std if tau is None else tau
    return then["bias"] - float(means.mean()), std**2 / kernels + std**2 / before + shared**2, kernels, len(own)


def _tau(stated: Iterable[ErrorFigures]) -> float | None:
    """Standard deviation of the means of kinds beyond their own scatter [percent]; None if there are too few kinds."""
    known = [errors for errors in stated if errors["n"] >= FEWEST]
    if len(known) < FEWEST:
        return None
    own = [errors["bias"] ** 2 - (math.sqrt(math.pi / 2.0) * errors["mape"]) ** 2 / errors["n"] for errors in known]
    return float(np.sqrt(max(float(np.mean(own)), 0.0)))


def drift_lines(found: Sequence[Drift]) -> list[str]:
    """Text of `fit check` on drift."""
    title = f"drift, rows inside the range fitted (counts beyond {MOST_SIGMAS:.1f} standard deviations and {LEAST_SHIFT:g} %):"
    return [title, *(f"  {one.text()}{'  DRIFT' if one.drifted else ''}" for one in found)] if found else []


def outside_range(bundle: Bundle, rows: KernelRows | WorkloadRows) -> BoolArray:
    """Mask of the rows outside the range of the fit, shape (n,); rows of another GPU than the bundle's are always forecasts."""
    if isinstance(rows, KernelRows):
        unseen = _unseen(bundle, rows.operators)[rows.operator_index]
    else:
        unseen = np.array([_unseen(bundle, workload.operators).any() for workload in rows.workloads], dtype=np.bool_)[rows.workload_index]
    beyond = unseen | outside_clock(*bundle.clocks_mhz, rows.clock_mhz(bundle.gpu))
    result: BoolArray = beyond & (np.array(rows.row_gpus) == bundle.gpu.name)
    return result


def _unseen(bundle: Bundle, operators: Sequence[Operator]) -> BoolArray:
    """Mask of the operators of a kind, precision or shape that the fit has not seen."""
    groups = [longest_prefix(group_key(operator), bundle.groups) for operator in operators]
    unfitted = set(unfitted_groups(bundle, groups))
    found = [
        group is None or group in unfitted or precision is not None or shape_excess(operator, group, bundle.domain)[0] > TOLERATED_FACTOR
        for operator, group, precision in zip(operators, groups, unseen_precisions(bundle, operators, groups), strict=True)
    ]
    return np.array(found, dtype=np.bool_)
