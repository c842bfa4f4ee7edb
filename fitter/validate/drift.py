"""Whether a board has drifted: measurements against what its bundle states, with its stated errors.

Rows outside what the bundle was fitted on (`fitter.validate.outside`) say nothing about drift: the equations may not hold there, on any
board.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.quantities import Array, BoolArray, IntArray
from fitter.rows.columns import Selection
from fitter.validate.outside import INSIDE
from fitter.validate.predictions import PERCENT, Prediction

FALSE_ALARM: Final = 0.01
"""Probability that a check of an unchanged board says drift [1]."""

LEAST_SHIFT: Final = 1.0
"""Shifts below this are no drift however sure they are [percent]."""

FEWEST_KERNELS: Final = 3
"""Fewer kernels of a kind, or workloads, say nothing about the board."""

FEWEST_KINDS: Final = 3
"""Fewer kinds do not tell how much of their error kernels of a kind share."""

SHARED: Final = 0.5
"""That share of the stated standard deviation where kinds are fewer (assumed) [1]."""

MEAN_TO_STD: Final = 1.2533141373155001
"""Standard deviation over mean magnitude of a normal error, √(π/2) [1]."""

TOGETHER: Final = "all"

DIRECTIONS: Final = {"latency": ("slower", "faster"), "power": ("more power", "less power")}
"""What a measured value above the stated one is, and one below."""

LEAST_SHARE: Final = 0.01
"""A board a hundred times slower is no clearer a case than one still slower [1]."""


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
    limit: float

    @property
    def sigmas(self) -> float:
        """The shift in standard deviations."""
        return abs(self.shift) / self.std

    @property
    def drifted(self) -> bool:
        """Whether the board has drifted beyond its stated error."""
        return self.sigmas > self.limit and abs(self.shift) > LEAST_SHIFT

    @property
    def change(self) -> float:
        """Measured over what the bundle says, less 1 [percent]; above 0: slower, or more power."""
        return self.shift * self._stretch

    @property
    def change_std(self) -> float:
        """Its standard deviation [percent]."""
        return self.std * self._stretch

    @property
    def _stretch(self) -> float:
        """From shares of the measured value to shares of the stated one."""
        return 1.0 / max(1.0 - self.shift / PERCENT, LEAST_SHARE)

    @property
    def direction(self) -> str:
        """What the measured value is against the stated one."""
        return DIRECTIONS[self.quantity][self.shift < 0.0]

    def text(self) -> str:
        """For people."""
        what = "all kernels" if self.kind == TOGETHER else self.kind
        verb = "measured" if self.quantity == "latency" else "drawing"
        figure = f"{abs(self.change):.1f} ± {self.change_std:.1f} %"
        return f"{what} {verb} {figure} {self.direction} than the bundle says ({self.sigmas:.1f} standard deviations)"

    def document(self) -> dict[str, Any]:
        """As plain data."""
        names = ("quantity", "kind", "kernels", "rows", "limit")
        figures = {"shift_percent": self.change, "std_percent": self.change_std, "direction": self.direction}
        return {**{name: getattr(self, name) for name in names}, **figures, "sigmas": self.sigmas, "drifted": self.drifted}


def drifts(
    bundle: Bundle, selection: Selection, predictions: Mapping[str, Prediction], outside: Mapping[str, Sequence[str]]
) -> tuple[Drift, ...]:
    """Shifts of the bundle's own GPU by kind and together, for latency and for power; none where no errors are stated.

    outside: as from `outside_reasons`; such rows are left out.
    """
    inside = {name: np.array([reason == INSIDE for reason in outside[name]], dtype=np.bool_) for name in predictions}
    kinds = [one for quantity in ("latency", "power") for one in _by_kind(bundle, selection, predictions, inside, quantity)]
    found = [one for quantity in ("latency", "power") for one in _with_all([kind for kind in kinds if kind.quantity == quantity])]
    if not found:
        return ()
    each = 1.0 - (1.0 - FALSE_ALARM) ** (1.0 / len(found))
    limit = NormalDist().inv_cdf(1.0 - each / 2.0)
    return tuple(Drift(**{name: getattr(one, name) for name in Drift.__slots__ if name != "limit"}, limit=limit) for one in found)


def _by_kind(
    bundle: Bundle, selection: Selection, predictions: Mapping[str, Prediction], inside: Mapping[str, BoolArray], quantity: str
) -> list[Drift]:
    stated = {(row["family"], row["operator"], row["precision"]): row[quantity] for row in bundle.errors if row[quantity]}
    tau = _tau(list(stated.values()))
    found = []
    for name, prediction in predictions.items():
        same = _same(selection, name)
        measured, predicted, std = _columns(prediction, quantity)
        labels = {label: number for number, label in enumerate(dict.fromkeys(prediction.labels))}
        number = np.fromiter(map(labels.__getitem__, prediction.labels), np.int64, len(prediction))
        known = np.isfinite(measured) & np.isfinite(predicted) & np.isfinite(std) & inside[name]
        for label, own_number in labels.items():
            own = np.flatnonzero(known & (number == own_number))
            then = stated.get(label[1:])
            if label[0] == bundle.gpu.name and then is not None and len(own):
                error = (predicted[own] / measured[own] - 1.0) * PERCENT
                one = _shift(quantity, " ".join(label[1:]), error, same[own], float(np.sqrt(np.mean(std[own] ** 2))) * PERCENT, then, tau)
                found += [] if one is None else [one]
    return found


def _same(selection: Selection, name: str) -> IntArray:
    """Number of the kernel, or of the workload, of each row."""
    if name == "kernels" and selection.kernels is not None:
        return selection.kernels.operator_index
    return np.zeros(0, dtype=np.int64) if selection.workloads is None else selection.workloads.workload_index


def _columns(prediction: Prediction, quantity: str) -> tuple[Array, Array, Array]:
    p = prediction
    return (p.measured_s, p.predicted_s, p.latency_ln_std) if quantity == "latency" else (p.measured_w, p.predicted_w, p.power_ln_std)


def _shift(quantity: str, kind: str, error: Array, same: IntArray, std: float, then: Mapping[str, Any], tau: float | None) -> Drift | None:
    """The shift of one kind; None for too few kernels, and without a stated error."""
    _, index = np.unique(same, return_inverse=True)
    index = index.reshape(-1)
    counts = np.bincount(index)
    kernels = len(counts)
    if kernels < FEWEST_KERNELS or not std > 0.0:
        return None
    mean = float((np.bincount(index, error) / counts).mean())
    before = max(float(then["n"]) * kernels / len(error), 1.0)
    shared = SHARED * std if tau is None else tau
    spread = float(np.sqrt(std**2 / kernels + std**2 / before + shared**2))
    return Drift(quantity=quantity, kind=kind, kernels=kernels, rows=len(error), shift=float(then["bias"]) - mean, std=spread, limit=np.inf)


def _tau(stated: Sequence[Mapping[str, Any]]) -> float | None:
    """How far kinds' means lie from 0 beyond what their own scatter makes [percent]; None where kinds are too few to tell."""
    known = [errors for errors in stated if errors["n"] >= FEWEST_KERNELS]
    if len(known) < FEWEST_KINDS:
        return None
    bias = np.array([float(errors["bias"]) for errors in known])
    own = np.array([(MEAN_TO_STD * float(errors["mape"])) ** 2 / errors["n"] for errors in known])
    return float(np.sqrt(max(float(np.mean(bias**2 - own)), 0.0)))


def _with_all(kinds: list[Drift]) -> list[Drift]:
    """Kinds, and before them all together where they are several."""
    if len(kinds) < 2:
        return kinds
    weight = np.array([one.std**-2.0 for one in kinds])
    shift = float(weight @ np.array([one.shift for one in kinds]) / weight.sum())
    together = Drift(
        quantity=kinds[0].quantity,
        kind=TOGETHER,
        kernels=sum(one.kernels for one in kinds),
        rows=sum(one.rows for one in kinds),
        shift=shift,
        std=float(weight.sum() ** -0.5),
        limit=np.inf,
    )
    return [together, *kinds]


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
