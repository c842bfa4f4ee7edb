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

Kinds are combined with weights 1/variance.  A shift counts as drift if it exceeds LEAST_SHIFT and its two-sided normal probability is
below 1 − (1 − FALSE_ALARM)^(1/m) over all m statements (Šidák): at most about 1 in 100 checks of an unchanged board raises an alarm.
Source: R. DerSimonian, N. Laird, Controlled Clinical Trials 7 (1986) 177 (τ by moments); Z. Šidák, JASA 62 (1967) 626.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from estimator.model.coefficients import group_key, longest_prefix
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.unseen import unseen_precisions
from estimator.uncertainty.validity import TOLERATED_FACTOR, clock_warning, shape_excess
from estimator.vocabulary.workload import Operator
from fitter.rows.columns import KernelRows, WorkloadRows
from fitter.validate.predictions import LABEL, PERCENT, QUANTITIES
from fitter.validate.tables import kind_text

FALSE_ALARM: Final = 0.01
"""Probability that a check of an unchanged board reports drift [1]."""

LEAST_SHIFT: Final = 1.0
"""Least shift that counts as drift [percent]."""

FEWEST: Final = 3
"""Least kernels of a kind, or workloads, for a shift; least kinds for an estimate of their common error."""

SHARED: Final = 0.5
"""Common error as a share of the stated standard deviation if there are fewer kinds (assumed) [1]."""

TOGETHER: Final = "all"

DIRECTIONS: Final = {"latency": ("slower", "faster"), "power": ("more power", "less power")}
"""Words for a measured value above the stated one, and below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The shift of one quantity for one kind of kernel, or for all together.

    shift, std   predicted over measured of held-out rows, less that of new rows, and its standard deviation [percent]
    limit        standard deviations beyond which it counts
    """

    quantity: str
    kind: str
    kernels: int
    rows: int
    shift: float
    std: float
    limit: float = np.inf

    @property
    def sigmas(self) -> float:
        """The shift in standard deviations."""
        return abs(self.shift) / self.std

    @property
    def drifted(self) -> bool:
        """Whether the board has drifted beyond its stated error."""
        return self.sigmas > self.limit and abs(self.shift) > LEAST_SHIFT

    def document(self) -> dict[str, object]:
        """The drift as plain data; shift_percent is measured over predicted, less 1: positive means slower, or more power."""
        stretch = 1.0 / max(1.0 - self.shift / PERCENT, 0.01)  # from shares of the measured value to shares of the stated one
        return {
            **{name: getattr(self, name) for name in ("quantity", "kind", "kernels", "rows", "limit", "sigmas", "drifted")},
            "shift_percent": self.shift * stretch,
            "std_percent": self.std * stretch,
            "direction": DIRECTIONS[self.quantity][self.shift < 0.0],
        }

    def text(self) -> str:
        """For people."""
        d = self.document()
        what = "all kernels" if self.kind == TOGETHER else self.kind
        verb = "measured" if self.quantity == "latency" else "drawing"
        figure = f"{abs(d['shift_percent']):.1f} ± {d['std_percent']:.1f} %"  # type: ignore[arg-type]
        return f"{what} {verb} {figure} {d['direction']} than the bundle says ({self.sigmas:.1f} standard deviations)"


def drifts(bundle: Bundle, found: Sequence[pd.DataFrame]) -> tuple[Drift, ...]:
    """Shifts of the bundle's own GPU by kind and together, for latency and for power; empty without stated errors.

    found: as from `predict_kernel_rows`, with the reasons of `outside_reasons` as the column "outside"; such rows are left out.
    """
    shifts: list[Drift] = []
    for quantity in QUANTITIES:
        stated = {(row["family"], row["operator"], row["precision"]): row[quantity] for row in bundle.errors if row[quantity]}
        tau, kinds = _tau(list(stated.values())), []
        for rows in found:
            error = (rows[f"predicted_{quantity}"] / rows[f"measured_{quantity}"] - 1.0) * PERCENT
            own = rows.assign(error=error, std=rows[f"std_{quantity}"] * PERCENT)
            own = own[(own["outside"] == INSIDE) & (own["gpu"] == bundle.gpu.name)].dropna(subset=["error", "std"])
            for label, members in own.groupby(LABEL[1:], sort=False):
                one = _shift(quantity, kind_text(label), members, stated[label], tau) if label in stated else None
                kinds += [] if one is None else [one]
        shifts += kinds if len(kinds) < 2 else [_together(kinds), *kinds]
    each = 1.0 - (1.0 - FALSE_ALARM) ** (1.0 / max(len(shifts), 1))
    return tuple(replace(one, limit=NormalDist().inv_cdf(1.0 - each / 2.0)) for one in shifts)


def _shift(quantity: str, kind: str, own: pd.DataFrame, then: Mapping[str, float], tau: float | None) -> Drift | None:
    """The shift of one kind; None for too few kernels, and without a stated error."""
    means = own.groupby("same")["error"].mean()
    std, kernels = float(np.sqrt((own["std"] ** 2).mean())), len(means)
    if kernels < FEWEST or not std > 0.0:
        return None
    before = max(float(then["n"]) * kernels / len(own), 1.0)
    shared = SHARED * std if tau is None else tau
    spread = float(np.sqrt(std**2 / kernels + std**2 / before + shared**2))
    return Drift(quantity=quantity, kind=kind, kernels=kernels, rows=len(own), shift=float(then["bias"]) - float(means.mean()), std=spread)


def _tau(stated: Sequence[Mapping[str, float]]) -> float | None:
    """Standard deviation of the means of kinds beyond their own scatter [percent]; None if there are too few kinds."""
    known = [errors for errors in stated if errors["n"] >= FEWEST]
    if len(known) < FEWEST:
        return None
    own = [float(errors["bias"]) ** 2 - (math.sqrt(math.pi / 2.0) * float(errors["mape"])) ** 2 / errors["n"] for errors in known]
    return float(np.sqrt(max(float(np.mean(own)), 0.0)))


def _together(kinds: list[Drift]) -> Drift:
    """Kinds combined with weights 1/variance."""
    weight = np.array([one.std**-2.0 for one in kinds])
    shift = float(weight @ np.array([one.shift for one in kinds]) / weight.sum())
    counts = {name: sum(getattr(one, name) for one in kinds) for name in ("kernels", "rows")}
    return Drift(quantity=kinds[0].quantity, kind=TOGETHER, shift=shift, std=float(weight.sum() ** -0.5), **counts)


def drift_lines(found: Sequence[Drift]) -> list[str]:
    """Text of `fit check` on drift."""
    if not found:
        return []
    shown = [one for one in found if one.kind == TOGETHER or one.drifted] or list(found)
    limit = f"drift counts beyond {found[0].limit:.1f} standard deviations and {LEAST_SHIFT:g} %"
    return [f"drift, rows inside the range fitted ({limit}):", *(f"  {one.text()}{'  DRIFT' if one.drifted else ''}" for one in shown)]


def drift_warnings(found: Sequence[Drift]) -> list[str]:
    """One warning if the board has drifted; it names kinds only if there is no common shift."""
    drifted = [one for one in found if one.drifted]
    together = [one for one in drifted if one.kind == TOGETHER]
    if not drifted:
        return []
    listed = ", ".join(one.text() for one in (together or drifted))
    return [f"drift: {listed}; the board, its cooling or its sensor changed: measure again, or fit anew"]


INSIDE: Final = ""
REASONS: Final = ("kind", "precision", "shape", "clock")
"""Unseen properties of a row, the most serious first."""


def outside_reasons(bundle: Bundle, rows: KernelRows | WorkloadRows) -> list[str]:
    """Reason why each row lies outside the range of the fit, INSIDE for other rows.

    Rows of another GPU than the bundle's are always forecasts and have no such reason.
    """
    if isinstance(rows, KernelRows):
        own, index = _of_operators(bundle, rows.operators), rows.operator_index
    else:
        sets = [_of_operators(bundle, workload.operators) for workload in rows.workloads]
        own, index = [min(filter(None, found), key=REASONS.index, default=INSIDE) for found in sets], rows.workload_index
    reasons = []
    for i, gpu, clock in zip(index.tolist(), rows.gpu_index.tolist(), rows.clock_mhz(bundle.gpu).tolist(), strict=True):
        beyond = "clock" if clock_warning(bundle.clocks_mhz, clock) else INSIDE
        reasons.append((own[i] or beyond) if rows.gpus[gpu] == bundle.gpu.name else INSIDE)
    return reasons


def _of_operators(bundle: Bundle, operators: Sequence[Operator]) -> list[str]:
    groups = [longest_prefix(group_key(operator), bundle.groups) for operator in operators]
    unfitted = set(unfitted_groups(bundle, groups))
    reasons = []
    for operator, group, unseen in zip(operators, groups, unseen_precisions(bundle, operators, groups), strict=True):
        if group is None or group in unfitted:
            reasons.append("kind")
        elif unseen is not None:
            reasons.append("precision")
        else:
            reasons.append("shape" if shape_excess(operator, group, bundle.domain)[0] > TOLERATED_FACTOR else INSIDE)
    return reasons
