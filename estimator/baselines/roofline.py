"""The roofline: each operator takes as long as its flop at the peak rate or its bytes at the DRAM's, whichever is longer.

    T = Σ count · max(W / (r·S·f), Q / B)
    P = min(P_limit, P_idle(f) + Σ count · (ε_flop·s(V)·W + ε_byte·Q) / T)

W are useful multiply-add flop, Q compulsory bytes (`estimator.reckoning`), r the peak rate of the operator's precision.  No start of a
kernel, no tile, no launch: T is a lower bound of the GPU's time wherever operands come from DRAM.

The energies need no measurement either: a kernel that holds one resource at its published peak, at the clock for which that is quoted,
draws the board's power limit.  Hence ε_byte = (P_limit − P_idle) / B, and ε_flop = (P_limit − P_idle) / peak for each precision.
s(V) = (V/V_peak)² where the voltage is known.
Sources: Williams, Waterman, Patterson (CACM 2009); Choi, Bedard, Fowler, Vuduc, "A roofline model of energy" (IPDPS 2013).
"""

import numpy as np

from estimator.gpu import GpuSpec
from estimator.power import BoardTables
from estimator.quantities import HZ_PER_MHZ, Array
from estimator.reckoning import operator_work
from estimator.workload import Workload


def roofline_seconds(workload: Workload, gpu: GpuSpec, sm_clock_mhz: Array) -> Array:
    """Time of one launch of each operator [s], shape (n, c), at clocks of shape (c,); nan where the GPU has no rate for a precision."""
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
