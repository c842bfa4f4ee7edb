"""Estimates of the baselines for a query, at the operating points of the bundle's estimate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.engine.prediction import Prediction, Prepared, predict
from estimator.model.power import POWER_TERMS, BoardTables, OperatingPoint, PowerModel, power_events
from estimator.questions.estimates import Estimate, estimates_of
from estimator.questions.judging import Asked
from estimator.vocabulary.gpu import ClockTable, GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Workload

METHODS: Final[dict[str, str]] = {
    "roofline": "time: longer of flop/peak and bytes/bandwidth, no launches; power: energy roofline from the specification",
    "accelwattch-style": "time: the bundle's; power: constant + static + V²-scaled component energies, the bundle's",
}
"""The baselines and the sources of their figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEstimate:
    """One iteration of a workload by another model, at the actual clock of the bundle's own estimate.

    method                        a key of METHODS; `basis` states the source of its figures
    latency_s, power_w, energy_j  of one iteration; nan if the model has no value, with the reason in `missing`
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
    """Every baseline at every requested clock, clocks outermost.  Raises the errors of `estimate`."""
    prediction = predict([asked.variant.workload], asked.board())
    own = estimates_of(prediction)
    with np.errstate(all="ignore"):  # a GPU without a rate for a precision gives nan, which is reported
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


SHAPES: Final = ((0, 1, 2), (0, 2), (0, 1), (0,))
"""Sets of the terms f⁰, f¹, f³ of an idle-power curve: all, or fewer if one would be negative."""


def rest_curve_w(idle: ClockTable, sm_clock_mhz: Array) -> Array:
    """C + τ·f + β·f³ through an idle table [W], none of them negative, shape of `sm_clock_mhz`."""
    clocks = np.array(idle.sm_clock_mhz)
    scale = float(clocks.max())
    powers, values = _powers(clocks / scale), np.array(idle.value)
    fits = [(shape, np.linalg.lstsq(powers[:, shape], values, rcond=None)[0]) for shape in SHAPES]
    allowed = [(float(np.sum((powers[:, shape] @ found - values) ** 2)), shape, found) for shape, found in fits if np.all(found >= 0.0)]
    _, shape, found = min(allowed, key=lambda fit: fit[0])
    result: Array = _powers(sm_clock_mhz / scale)[:, shape] @ found
    return result


def _powers(relative: Array) -> Array:
    return np.stack([np.ones_like(relative), relative, relative**3], axis=-1)


def component_rates(prepared: Prepared, latency_s: Array, point: OperatingPoint) -> Array:
    """Events of POWER_TERMS a second, core terms times (V/V₀)², shape (c, 7): the linear terms of power in AccelWattch's form.

    latency_s (c,) of the iteration of a single workload.
    """
    totals = prepared.counts @ power_events(prepared.phases, prepared.board.gpu, credit=0.0)
    core = np.array([term != "dram" for term in POWER_TERMS])
    scale = np.where(core[None, :], (point.voltage_ratio**2)[:, None], 1.0)
    result: Array = totals[None, :] * scale / latency_s[:, None]
    return result


def component_power_w(prediction: Prediction, model: PowerModel) -> Array:
    """Mean power over an iteration of a single workload at its clocks and times [W], shape (c,)."""
    board, clock_mhz, latency_s = prediction.prepared.board, prediction.sm_clock_mhz[0], prediction.latency_s[0]
    point = board.tables.at(clock_mhz)
    rest_w = point.idle_w if board.tables.idle_w is None else rest_curve_w(board.tables.idle_w, clock_mhz)
    clocked = point.voltage_ratio**2 * point.sm_clock_hz / (model.reference_clock_mhz * HZ_PER_MHZ)
    dynamic_w = component_rates(prediction.prepared, latency_s, point) @ model.event_energy_j
    result: Array = rest_w + model.active_w + model.busy_w * clocked * np.minimum(prediction.gpu_s[0] / latency_s, 1.0) + dynamic_w
    return result


def roofline_seconds(workload: Workload, gpu: GpuSpec, sm_clock_mhz: Array) -> Array:
    """Time of one launch of each operator [s], shape (n, c), at clocks of shape (c,); nan if the GPU has no rate for a precision."""
    work = np.array([operator_work(operator) for operator in workload.operators]).reshape(-1, 3)
    rate = np.array([gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) for operator in workload.operators])
    per_clock = np.where(work[:, 0] > 0.0, work[:, 0] / rate, 0.0) / gpu.num_sms
    math_s = per_clock[:, None] / (sm_clock_mhz * HZ_PER_MHZ)[None, :]
    result: Array = np.maximum(math_s, ((work[:, 1] + work[:, 2]) / gpu.dram_bytes_per_s)[:, None])
    return result


def roofline_power_w(workload: Workload, gpu: GpuSpec, board: BoardTables, limit_w: float, sm_clock_mhz: Array) -> Array:
    """Mean power over the roofline's time [W], shape (c,); `board` holds voltage and idle power."""
    peak_clock = np.array([gpu.sm_clock_max_mhz])
    spare_w = max(limit_w - float(board.at(peak_clock).idle_w[0]), 0.0)
    point, at_peak = board.at(sm_clock_mhz), board.at(peak_clock)
    scale = (point.voltage_ratio / at_peak.voltage_ratio) ** 2
    counts = np.array(workload.counts)
    busy_s, busy_byte_s = 0.0, 0.0
    for operator, count in zip(workload.operators, counts.tolist(), strict=True):
        work = operator_work(operator)
        busy_byte_s += count * (work.read_byte + work.write_byte) / gpu.dram_bytes_per_s
        if work.flop:
            busy_s += count * work.flop / gpu.peak_flop_per_s(operator.precision, operator.cuda_cores)
    time_s = counts @ roofline_seconds(workload, gpu, sm_clock_mhz)
    result: Array = np.minimum(point.idle_w + spare_w * (scale * busy_s + busy_byte_s) / time_s, limit_w)
    return result
