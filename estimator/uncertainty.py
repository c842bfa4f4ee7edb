"""How uncertain the predicted time of a single kernel is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from estimator.quantities import Array
from estimator.residuals import NORMAL_90, log_corrections
from estimator.workload import Operator


def kernel_log_std(
    operators: Sequence[Operator],
    groups: Sequence[str | None],
    residuals: Mapping[str, Mapping[str, Any]],
    group_std: Mapping[str, float],
) -> Array:
    """Standard deviation of ln(time) of kernels, shape (n,); nan where nothing is known.

    From the kernels nearest in shape that were left out of the fit, else from the error of the group that served it
    (`group_std`, as in a bundle's uncertainty.latency.groups).  A 90 % interval is NORMAL_90 times as wide on each side.
    """
    _, local = log_corrections(operators, groups, residuals)
    common = np.array([group_std.get(group or "", np.nan) for group in groups], dtype=np.float64)
    result: Array = np.where(np.isfinite(local), local, common)
    return result


def interval_90(latency_s: Array, log_std: Array) -> tuple[Array, Array]:
    """Low and high end of 90 % intervals [s], shapes (n,)."""
    factor = np.exp(NORMAL_90 * log_std)
    return latency_s / factor, latency_s * factor
