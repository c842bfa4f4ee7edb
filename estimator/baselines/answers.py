"""The baselines' answers to a question, at the operating points of the bundle's own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.baselines.components import component_power_w
from estimator.baselines.roofline import roofline_power_w, roofline_seconds
from estimator.engine import Prediction, predict
from estimator.quantities import Array
from estimator.questions.estimates import Estimate, estimates_of
from estimator.questions.judging import Asked

METHODS: Final[dict[str, str]] = {
    "roofline": "time: longer of flop/peak and bytes/bandwidth, no launches; power: energy roofline from the specification",
    "accelwattch-style": "time: the bundle's; power: constant + static + V²-scaled component energies, the bundle's",
}
"""The baselines, and where their figures come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEstimate:
    """One iteration of a workload by another model, at the clock at which the bundle's own estimate runs.

    method                        a key of METHODS; `basis` says where its figures come from
    latency_s, power_w, energy_j  of one iteration; nan where the model cannot say, with the reason in `missing`
    ratios                        latency, power and energy over those of the bundle's estimate
    """

    method: str
    basis: str
    workload: str
    bundle: str
    gpu: str
    sm_clock_mhz: float
    latency_s: float
    power_w: float
    energy_j: float
    ratios: Mapping[str, float]
    missing: str


def baseline_estimates(asked: Asked) -> tuple[BaselineEstimate, ...]:
    """Every baseline at every clock asked, clocks outermost.  Errors as those of `estimate`."""
    prediction = predict([asked.variant.workload], asked.board())
    own = estimates_of(prediction)
    with np.errstate(all="ignore"):  # a GPU without a rate for a precision gives nan, which is said
        columns = {"roofline": _roofline(prediction), "accelwattch-style": _components(prediction)}
    return tuple(
        _answer(method, own[i], float(latency[i]), float(power[i]), missing)
        for i in range(len(own))
        for method, (latency, power, missing) in columns.items()
    )


def _roofline(prediction: Prediction) -> tuple[Array, Array, str]:
    prepared, board, clock = prediction.prepared, prediction.prepared.board, prediction.sm_clock_mhz[0]
    workload = prepared.workloads[0]
    latency = prepared.counts @ roofline_seconds(workload, board.gpu, clock)
    power = roofline_power_w(workload, board.gpu, board.tables, board.limit_w, clock)
    return latency, power, "" if np.isfinite(latency).all() else f"{board.gpu.name} has no published rate for a precision of this workload"


def _components(prediction: Prediction) -> tuple[Array, Array, str]:
    latency, model = prediction.latency_s[0], prediction.prepared.board.model
    if model is None:
        return latency, np.full_like(latency, np.nan), "the bundle has no power coefficients"
    return latency, component_power_w(prediction, model), ""


def _answer(method: str, own: Estimate, latency_s: float, power_w: float, missing: str) -> BaselineEstimate:
    values = {"latency": (latency_s, own.latency_s), "power": (power_w, own.power_w), "energy": (latency_s * power_w, own.energy_j)}
    return BaselineEstimate(
        method=method,
        basis=METHODS[method],
        workload=own.workload,
        bundle=own.bundle,
        gpu=own.gpu,
        sm_clock_mhz=own.sm_clock_mhz,
        latency_s=latency_s,
        power_w=power_w,
        energy_j=latency_s * power_w,
        ratios={name: one / other if other else math.nan for name, (one, other) in values.items()},
        missing=missing,
    )
