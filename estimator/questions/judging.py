"""Predictions with the sources of their errors, so that shared errors cancel in the difference of two predictions.

    ln x̂ − ln x = Σ_k loading_k · (source k),      Var(ln x̂ − ln ŷ) = Σ_k (loading_k(x) − loading_k(y))²

Sources are independent, of unit variance, and have names: the coefficients of a bundle, by the covariance of its fit;
further held-out errors, by groups of kernels; the host; a model family; a precision; a GPU that was not fitted.  The
squares of one prediction's loadings sum up to the variance that `estimate` states: held-out errors include the errors of
the coefficients, so these are not added again, and if the covariance exceeds the held-out errors, they are scaled down.

Two clocks of one workload share nearly all errors except a slope over the clock: CLOCK_SLOPE_STD, among the fitted clocks here,
beyond them a separate source (`estimator.uncertainty.sources.far_clock`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.board import Board, BoardSettings, open_board
from estimator.engine.prediction import Prepared, predict
from estimator.model.coefficients import COLUMN, HOST_LAUNCH, parameter_targets
from estimator.model.power import POWER_TERMS, term_scale
from estimator.model.timeline import sweep_parts, sweep_seconds
from estimator.questions.points import Sweep
from estimator.questions.sweeping import table
from estimator.transforms.variation import Variant
from estimator.uncertainty.sources import CLOCK_SLOPE_STD, joined, nearest_fitted_mhz
from estimator.uncertainty.unseen import Loading
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array

QUANTITIES: Final[dict[str, tuple[int, int]]] = {
    "latency": (1, 0),
    "power": (0, 1),
    "energy": (1, 1),
    "edp": (2, 1),
    "ed2p": (3, 1),
}
"""Powers of latency and of mean power in each quantity; edp: energy · latency, ed2p: energy · latency²."""

STEP: Final = 1e-4
"""Step of numeric derivatives in the logarithm of a coefficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A query: a workload on a board under settings.  Fields are the arguments of `estimate`."""

    variant: Variant
    bundle: Bundle
    sm_clock_mhz: tuple[float, ...] | None = None
    gpu: GpuSpec | None = None
    power_cap_w: float | None = None
    host_launch_s: float | None = None
    efficiency: Mapping[str, float] | None = None

    def board(self) -> Board:
        """The board under these settings.  Raises the errors of `estimate`."""
        return open_board(self.bundle, gpu=self.gpu, **self.settings())

    def settings(self) -> BoardSettings:
        """The settings of the board."""
        return {name: getattr(self, name) for name in BoardSettings.__annotations__}  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Predictions at c clocks with their error sources.

    points             columns of shape (c,)
    latency, power     loadings of ln(latency) and ln(power) by source, each of shape (c,)
    """

    points: Sweep
    latency: Mapping[str, Array]
    power: Mapping[str, Array]

    def value(self, quantity: str) -> Array:
        """A quantity of QUANTITIES, shape (c,), in SI units."""
        of_time, of_power = QUANTITIES[quantity]
        result: Array = self.points.latency_s**of_time * self.points.power_w**of_power
        return result

    def loadings(self, quantity: str) -> dict[str, Array]:
        """Loadings of the quantity's logarithm."""
        of_time, of_power = QUANTITIES[quantity]
        joint: dict[str, Array] = {}
        for power, sources in ((of_time, self.latency), (of_power, self.power)):
            for name, loading in sources.items() if power else ():
                joint[name] = joint.get(name, 0.0) + power * loading
        return joint


def judged(asked: Asked) -> Judged:
    """Predict, with error sources.  Raises the errors of `estimate`."""
    prediction = predict([asked.variant.workload], asked.board())
    prepared, points = prediction.prepared, table([asked.variant], prediction)
    bundle, gpu = prepared.board.bundle, prepared.board.gpu
    with np.errstate(all="ignore"):
        by_coefficient = _latency_loadings(prepared, points) * np.sqrt(1.0 - points.launch_bound_share)
        of_time = _split(prediction.latency[0], by_coefficient, len(points))
        of_power = _split(prediction.power[0], _power_loadings(prepared, points), len(points))
    felt, delayed = _through_limit(points, joined(of_time.values()), joined(of_power.values()))
    slope = np.log(nearest_fitted_mhz(bundle, points.sm_clock_mhz) / gpu.sm_clock_max_mhz)
    owner = bundle.digest or f"{bundle.name} {bundle.version}"
    named_power = _named(f"power:{owner}", asked, of_power, slope * CLOCK_SLOPE_STD[1])
    return Judged(
        points=points,
        latency=_named(f"time:{owner}", asked, of_time, slope * CLOCK_SLOPE_STD[0])
        | {name: delayed * loading for name, loading in named_power.items() if np.any(delayed)},
        power={name: felt * loading for name, loading in named_power.items()},
    )


def _through_limit(points: Sweep, time_ln_std: Loading, power_ln_std: Loading) -> tuple[Array, Array]:
    """Shares of the power equation's error that remain in ln(power) and that become an error of ln(latency) at a limit, shapes (c,).

    They follow from the stated deviations (`estimator.model.power_limit`): 1 and 0 far from the limit.
    """
    stated_time, stated_power = points.latency_s_std / points.latency_s, points.power_w_std / points.power_w
    with np.errstate(divide="ignore", invalid="ignore"):
        felt = np.where(np.greater(power_ln_std, 0.0), stated_power / power_ln_std, 1.0)
        added = np.sqrt(np.maximum(stated_time**2 - time_ln_std**2, 0.0)) / power_ln_std
    return felt, np.where(np.isfinite(added) & (added > NO_DELAY), added, 0.0)


NO_DELAY: Final = 1e-6
"""Share below which a value is a rounding error."""


def log_ratio_std(left: Judged, i: int | slice, right: Judged, j: int | slice, quantity: str) -> Array:
    """Standard deviation of ln(left[i] / right[j]) of a quantity, a number or (c,); nan if a bundle states no errors."""
    a, b = left.loadings(quantity), right.loadings(quantity)
    none, empty = np.zeros(len(left.points)), np.zeros(len(right.points))
    result: Array = np.sqrt(sum((a.get(name, none)[i] - b.get(name, empty)[j]) ** 2 for name in a.keys() | b.keys()))
    return result


def _named(owner: str, asked: Asked, sources: Mapping[str, Array], slope: Array) -> dict[str, Array]:
    """Sources with their owner: sources of a host and a clock belong to the workload, all others to the bundle."""
    of_workload = ("launch", "far clock")
    workload = asked.variant.workload.name
    named = {f"{owner}:{name}" + (f":{workload}" if name in of_workload else ""): loading for name, loading in sources.items()}
    return named | {f"{owner}:clock:{workload}": slope}


def _split(sources: Mapping[str, Loading], coefficients: Array, clocks: int) -> dict[str, Array]:
    """Sources, where the part of `kernels:…` that the coefficients explain (loadings of shape (k, c)) is separate."""
    wide = {name: np.broadcast_to(np.asarray(loading, dtype=np.float64), (clocks,)) for name, loading in sources.items()}
    stated = joined(loading for name, loading in wide.items() if name.startswith("kernels"))
    claimed = joined(coefficients) if len(coefficients) else np.zeros(clocks)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(claimed > stated, stated / claimed, 1.0)
        rest = np.where(stated > 0.0, np.sqrt(np.maximum(1.0 - (scale * claimed / stated) ** 2, 0.0)), 0.0)
    split = {name: loading * rest if name.startswith("kernels") else loading for name, loading in wide.items()}
    return split | {f"coefficient {k}": loading * scale for k, loading in enumerate(coefficients)}


def _latency_loadings(prepared: Prepared, points: Sweep) -> Array:
    """Loadings of ln(GPU time) on the independent directions of the coefficients' covariance, shape (k, c)."""
    bundle = prepared.board.bundle
    served = dict.fromkeys(group for group in prepared.groups if group is not None)
    names = bundle.latency_parameters.names
    targets = [parameter_targets(name, served) if name != HOST_LAUNCH else [] for name in names]
    rows = [_slope(prepared, points, target) for target in targets]
    joint = _independent(np.array(bundle.latency_parameters.covariance), np.array(rows)) if names else np.zeros((0, len(points)))
    covered = {pair for target in targets for pair in target}
    alone = [
        std * _slope(prepared, points, [(group, name)])
        for group in served
        for name, std in bundle.groups[group].ln_std.items()
        if (group, name) not in covered and name in COLUMN
    ]
    return np.concatenate([joint, np.array(alone)]) if alone else joint


def _slope(prepared: Prepared, points: Sweep, targets: list[tuple[str, str]]) -> Array:
    """∂ ln(GPU time) / ∂ ln θ of coefficients that change together, shape (c,)."""
    total, clock_hz = np.zeros(len(points)), points.sm_clock_mhz * HZ_PER_MHZ
    for group in dict.fromkeys(group for group, _ in targets):
        rows = np.array([i for i, name in enumerate(prepared.groups) if name == group])
        phases, before = prepared.phases.select(rows), prepared.coefficients[rows]
        moved = before.copy()
        moved[:, [COLUMN[name] for owner, name in targets if owner == group]] *= np.exp(STEP)
        change_s = sweep_seconds(sweep_parts(phases, moved), clock_hz) - sweep_seconds(sweep_parts(phases, before), clock_hz)
        total += (prepared.counts[rows] * np.exp(prepared.log_correction[rows])) @ change_s
    slope: Array = total / (STEP * points.gpu_s)
    return slope


def _independent(covariance: Array, slopes: Array) -> Array:
    """Loadings L'·slopes of shape (k, c), with covariance = L L'; directions with a negative variance from rounding count 0."""
    values, vectors = np.linalg.eigh(covariance)
    loadings: Array = (vectors * np.sqrt(np.maximum(values, 0.0))).T @ slopes
    return loadings


def _power_loadings(prepared: Prepared, points: Sweep) -> Array:
    """Loadings of ln(power) on the independent directions of the power coefficients' covariance, shape (k, c).

    None if the bundle has no power or no covariance.
    """
    board, power = prepared.board, prepared.board.bundle.power
    if board.model is None or power is None or not power.terms:
        return np.zeros((0, len(points)))
    model, point = board.model, board.tables.at(points.sm_clock_mhz)
    per_event = 1e-12 * (prepared.events * term_scale(model, point)).T / points.latency_s
    core = point.voltage_ratio**model.voltage_exponent * point.sm_clock_hz / (model.reference_clock_mhz * HZ_PER_MHZ)
    columns = dict(zip(POWER_TERMS, per_event, strict=True))  # power for one unit (pJ, W) of each term
    columns |= {"busy": core * np.minimum(points.gpu_s / points.latency_s, 1.0), "active": point.idle_ratio}
    known = [name for name in power.terms if name in columns]
    covariance = np.array(power.covariance)[np.ix_(*([[power.terms.index(name) for name in known]] * 2))]
    return _independent(covariance, np.array([columns[name] for name in known]) / points.power_w)


def at_clocks(asked: Asked, clocks: tuple[float, ...] | None) -> Asked:
    """The same query at other clocks; None: at the usual one."""
    return replace(asked, sm_clock_mhz=clocks)
