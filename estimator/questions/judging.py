"""Predictions with the sources of their errors, so that shared errors cancel in the difference of two predictions.

    ln x̂ − ln x = Σ_k loading_k · (source k),      Var(ln x̂ − ln ŷ) = Σ_k (loading_k(x) − loading_k(y))²

Sources are independent, of unit variance, and have names: held-out errors by groups of kernels; the host; a model family; a precision;
a GPU that was not fitted.  The squares of one prediction's loadings sum up to the variance that `estimate` states, apart from the slope
over the clock, CLOCK_SLOPE_STD, which two clocks of one workload do not share.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.board import Board, BoardSettings, open_board
from estimator.engine.prediction import Prediction, predict
from estimator.questions.sweeping import Sweep, table
from estimator.transforms.variation import Variant
from estimator.uncertainty.sources import CLOCK_SLOPE_STD, joined
from estimator.uncertainty.unseen import Loading, sums
from estimator.vocabulary.errors import reals, require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

QUANTITIES: Final = {
    "latency": (1, 0),
    "power": (0, 1),
    "energy": (1, 1),
    "edp": (2, 1),
    "ed2p": (3, 1),
}
"""Powers of latency and of mean power in each quantity; edp: energy · latency, ed2p: energy · latency²."""


def value_of(points: Sweep, quantity: str) -> Array:
    """A quantity of QUANTITIES at each point, shape (n,), in SI units."""
    of_time, of_power = QUANTITIES[quantity]
    return points.latency_s**of_time * points.power_w**of_power


@frozen
class Asked:
    """A query: a workload on a board under settings.  Fields are the arguments of `estimate`."""

    variant: Variant
    bundle: Bundle
    sm_clock_mhz: tuple[float, ...] | None = None
    gpu: GpuSpec | None = None
    power_cap_w: float | None = None
    host_launch_s: float | None = None
    efficiency: Mapping[str, float] | None = None
    idle_power: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        require(self.variant, Variant, "variant", "a Variant, as variants gives it")
        require(self.bundle, Bundle, "bundle", "a Bundle, as load_bundle gives it")
        if self.sm_clock_mhz is not None:
            object.__setattr__(self, "sm_clock_mhz", tuple(reals(self.sm_clock_mhz, "sm_clock_mhz", "MHz").tolist()))

    def board(self) -> Board:
        """The board under these settings.  Raises the errors of `estimate`."""
        return open_board(self.bundle, gpu=self.gpu, **self.settings())

    def settings(self) -> BoardSettings:
        """The settings of the board."""
        return {name: getattr(self, name) for name in BoardSettings.__annotations__}  # type: ignore[return-value]


@frozen
class Judged:
    """Predictions at c clocks with their error sources.

    points             columns of shape (c,)
    latency, power     loadings of ln(latency) and ln(power) by source, each of shape (c,)
    """

    points: Sweep
    latency: Mapping[str, Array]
    power: Mapping[str, Array]

    def loadings(self, quantity: str) -> dict[str, Array]:
        """Loadings of the quantity's logarithm."""
        of_time, of_power = QUANTITIES[quantity]
        weighted = ((of_time, self.latency), (of_power, self.power))
        return sums((name, power * loading) for power, sources in weighted if power for name, loading in sources.items())


def predicted(asked: Asked) -> Prediction:
    """Predict.  Raises the errors of `estimate`."""
    require(asked, Asked, "a query", "an Asked: Asked(variant=variants(workload)[0], bundle=bundle)")
    return predict([asked.variant.workload], asked.board())


def judged(asked: Asked) -> Judged:
    """Predict, with error sources.  Raises the errors of `estimate`."""
    prediction = predicted(asked)
    points, of_time, of_power = table([asked.variant], prediction), prediction.latency[0], prediction.power[0]
    felt, delayed = _through_limit(points, joined(of_time.values()), joined(of_power.values()))
    slope = np.log(points.sm_clock_mhz / prediction.prepared.board.gpu.sm_clock_max_mhz)
    time, power = (
        _named(quantity, asked, sources, slope * std)
        for quantity, sources, std in zip(("time", "power"), (of_time, of_power), CLOCK_SLOPE_STD, strict=True)
    )
    through = {name: delayed * loading for name, loading in power.items() if np.any(delayed)}
    return Judged(points=points, latency=time | through, power={name: felt * loading for name, loading in power.items()})


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
    return np.sqrt(sum((a.get(name, none)[i] - b.get(name, empty)[j]) ** 2 for name in a.keys() | b.keys()))


def _named(quantity: str, asked: Asked, sources: Mapping[str, Loading], slope: Array) -> dict[str, Array]:
    """Loadings of shape (c,) by source and owner: a workload owns errors of its host, its clocks and OWN_SHARE of its kernels' errors."""
    owner, workload = f"{quantity}:{asked.bundle.digest or asked.bundle.name}", asked.variant.workload.name
    named = {}
    for name, loading in {**sources, "clock": slope}.items():
        own_share = OWN_SHARE if name.startswith("kernels") else float(name in ("launch", "far clock", "clock"))
        for whose, share in ((owner, 1.0 - own_share), (f"{owner}:{workload}", own_share)):
            if share:
                named[f"{whose}:{name}"] = np.broadcast_to(loading * math.sqrt(share), slope.shape)
    return named


OWN_SHARE: Final = 0.1
"""Share of the variance of a workload's kernels that other workloads do not share [1].  Chosen on pairs of measured runs (A10, H100; fits
of one half, pairs of the other): of these same pairs 90 % intervals of ratios hold 82 to 90 %, without it 77 to 84 %."""


def at_clocks(asked: Asked, clocks: tuple[float, ...] | None) -> Asked:
    """The same query at other clocks; None: at the usual one."""
    return replace(asked, sm_clock_mhz=clocks)
