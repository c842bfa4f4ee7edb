"""A roofline: the time of a workload by published rates alone."""

import numpy as np

from estimator.engine.prediction import predict
from estimator.questions.judging import Asked
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Workload


def roofline_latency_s(asked: Asked) -> Array:
    """Time of an iteration at every requested clock, at the actual clock of the bundle's estimate [s], shape (c,).

    nan if the GPU has no rate for a precision.  Raises the errors of `estimate`.
    """
    prediction = predict([asked.variant.workload], asked.board())
    return prediction.prepared.counts @ roofline_seconds(asked.variant.workload, prediction.prepared.board.gpu, prediction.sm_clock_mhz[0])


@np.errstate(all="ignore")
def roofline_seconds(workload: Workload, gpu: GpuSpec, sm_clock_mhz: Array) -> Array:
    """Time of one launch of each operator [s], shape (n, c), at clocks of shape (c,): the longer of flop/peak and bytes/bandwidth.

    nan if the GPU has no rate for a precision.
    """
    work = np.array([operator_work(operator) for operator in workload.operators]).reshape(-1, 3)
    rate = np.array([gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) for operator in workload.operators])
    per_clock = np.where(work[:, 0] > 0.0, work[:, 0] / rate, 0.0) / gpu.num_sms
    math_s = per_clock[:, None] / (sm_clock_mhz * HZ_PER_MHZ)[None, :]
    result: Array = np.maximum(math_s, ((work[:, 1] + work[:, 2]) / gpu.dram_bytes_per_s)[:, None])
    return result
