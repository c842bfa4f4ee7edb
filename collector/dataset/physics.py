"""The least time of a kernel: useful arithmetic at the peak rate, compulsory traffic beyond the L2 at the DRAM's bandwidth."""

from collections.abc import Sequence

import numpy as np

from estimator.gpu import GpuSpec
from estimator.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array
from estimator.workload import Operator


def least_seconds(operators: Sequence[Operator | str], gpu: GpuSpec, sm_clock_mhz: Array) -> Array:
    """The shortest time that a GPU's peak rates allow [s], shape (n,); 0 where there is no operator, or its work is not known here.

    `sm_clock_mhz` nan: the highest clock of the GPU.
    """
    clock_hz = np.where(np.isfinite(sm_clock_mhz), sm_clock_mhz, gpu.sm_clock_limit_mhz) * HZ_PER_MHZ
    times = np.zeros(len(operators))
    for row, operator in enumerate(operators):
        if isinstance(operator, str):
            continue
        flop, byte = _work(operator)
        rate = gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) if flop else np.nan
        compute = flop / (rate * gpu.num_sms * clock_hz[row]) if rate > 0 else 0.0
        times[row] = max(compute, (byte - gpu.l2_bytes) / gpu.dram_bytes_per_s)
    return times


def _work(operator: Operator) -> tuple[float, float]:
    """Useful flop on matrix or CUDA cores, and compulsory bytes."""
    width = BYTES_PER_ELEMENT[operator.precision]
    if operator.family == "gemm":
        batch, m, n, k = (operator[name] for name in ("batch", "m", "n", "k"))
        return 2.0 * batch * m * n * k, batch * (m * k + k * n) * width
    if operator.family in ("elementwise", "copy"):
        return 0.0, operator["reads"] * width
    if operator.family in ("softmax", "norm", "reduction"):
        return 0.0, operator["rows"] * operator["dim"] * width
    return 0.0, 0.0
