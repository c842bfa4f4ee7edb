"""The estimate of a roofline for a query, at the operating points of the bundle's estimate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from estimator.engine.prediction import predict
from estimator.model.power import BoardTables
from estimator.questions.estimates import estimates_of
from estimator.questions.judging import Asked
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEstimate:
    """One iteration of a workload by another model, at the actual clock of the bundle's own estimate.

    method                        "roofline": time is the longer of flop/peak and bytes/bandwidth, no launches; power by an energy roofline
    latency_s, power_w, energy_j  of one iteration; nan if the specification has no rate for a precision
    ratios                        latency, power and energy over those of the bundle's estimate
    """

    method: str
    sm_clock_mhz: float
    latency_s: float
    power_w: float
    energy_j: float
    ratios: Mapping[str, float]


def baseline_estimates(asked: Asked) -> tuple[BaselineEstimate, ...]:
    """The roofline at every requested clock.  Raises the errors of `estimate`."""
    prediction = predict([asked.variant.workload], asked.board())
    board, clock, workload = prediction.prepared.board, prediction.sm_clock_mhz[0], prediction.prepared.workloads[0]
    with np.errstate(all="ignore"):  # a GPU without a rate for a precision gives nan
        latency_s = prediction.prepared.counts @ roofline_seconds(workload, board.gpu, clock)
        power_w = roofline_power_w(workload, board.gpu, board.tables, board.limit_w, clock)
    found = []
    for own, seconds, watt in zip(estimates_of(prediction), latency_s.tolist(), power_w.tolist(), strict=True):
        values = {"latency": (seconds, own.latency_s), "power": (watt, own.power_w), "energy": (seconds * watt, own.energy_j)}
        found.append(
            BaselineEstimate(
                method="roofline",
                sm_clock_mhz=own.sm_clock_mhz,
                latency_s=seconds,
                power_w=watt,
                energy_j=seconds * watt,
                ratios={name: one / other if other else math.nan for name, (one, other) in values.items()},
            )
        )
    return tuple(found)


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
