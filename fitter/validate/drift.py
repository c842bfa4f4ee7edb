"""Whether a board has drifted: measurements against what its bundle states, with its stated errors.

Rows outside what the bundle was fitted on say nothing about drift: the equations may not hold there, on any board.  The bounds are those
at which `estimate` warns: a kernel that no fitted row was like, in kind, precision or shape, or a clock beyond the fitted ones.  A run of a
whole model is outside where one of its kernels is.

For each kind of kernel the shift is the mean of predicted over measured that held-out rows had when the bundle was fitted, less the one
of now, kernels counting alike.  Its variance is

    s²/k + s²/n + τ²

s     stated standard deviation of a prediction of this kind
k, n  different kernels now, and among the held-out rows then
τ     how far the mean of a kind lies from 0 beyond s/√n, from the held-out errors of all kinds (random effects): kernels of a kind share
      some of their error, so that many of them do not average it away

Kinds are combined with weights 1/variance.  A shift counts as drift beyond LEAST_SHIFT and where its two-sided normal probability is
below 1 − (1 − FALSE_ALARM)^(1/m) over all m statements (Šidák): of checks of a board that has not changed at most about 1 in 100 raises
an alarm.
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
"""Probability that a check of an unchanged board says drift [1]."""

LEAST_SHIFT: Final = 1.0
"""Shifts below this are no drift however sure they are [percent]."""

FEWEST: Final = 3
"""Fewer kernels of a kind, or workloads, say nothing about the board; fewer kinds do not tell how much of their error they share."""

SHARED: Final = 0.5
"""That share of the stated standard deviation where kinds are fewer (assumed) [1]."""

TOGETHER: Final = "all"

DIRECTIONS: Final = {"latency": ("slower", "faster"), "power": ("more power", "less power")}
"""What a measured value above the stated one is, and one below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The shift of one quantity for one kind of kernel, or for all together.

    shift, std   predicted over measured then, less now, and its standard deviation [percent]
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
        """As plain data; shift_percent is measured over what the bundle says, less 1: above 0 slower, or more power."""
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
    """Shifts of the bundle's own GPU by kind and together, for latency and for power; none where no errors are stated.

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
    """How far kinds' means lie from 0 beyond what their own scatter makes [percent]; None where kinds are too few to tell."""
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
    """What `fit check` says of drift, for people."""
    if not found:
        return []
    shown = [one for one in found if one.kind == TOGETHER or one.drifted] or list(found)
    limit = f"drift counts beyond {found[0].limit:.1f} standard deviations and {LEAST_SHIFT:g} %"
    return [f"drift, rows inside the range fitted ({limit}):", *(f"  {one.text()}{'  DRIFT' if one.drifted else ''}" for one in shown)]


def drift_warnings(found: Sequence[Drift]) -> list[str]:
    """One line where the board has drifted; kinds only where nothing moved together."""
    drifted = [one for one in found if one.drifted]
    together = [one for one in drifted if one.kind == TOGETHER]
    if not drifted:
        return []
    listed = ", ".join(one.text() for one in (together or drifted))
    return [f"drift: {listed}; the board, its cooling or its sensor changed: measure again, or fit anew"]


INSIDE: Final = ""
REASONS: Final = ("kind", "precision", "shape", "clock")
"""What of a row the fit has not seen, the gravest first."""


def outside_reasons(bundle: Bundle, rows: KernelRows | WorkloadRows) -> list[str]:
    """Why each row lies outside what its bundle was fitted on, INSIDE where it does not.

    Rows of another GPU than the bundle's are forecasts whatever their shape, and none of these.
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
