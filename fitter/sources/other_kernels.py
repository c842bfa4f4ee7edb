"""Decode rows that another kernel ran than the fused one that the equations describe.

Serving libraries leave the fused kernel for shapes that it does not take: more than 32 query heads to a key head
(TensorRT-LLM), heads of 512 (vLLM).  What runs then reads keys once for every query head or computes without matrix
units, and takes ten to a hundred times what cache traffic and padded products explain, while rows of the fused kernel stay
within a factor of three.  Nothing in the row names the kernel, and one set of coefficients cannot serve both.
Source: measured on the public decode tables of AIConfigurator, see docs/model.md.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.coefficients import COEFFICIENTS
from estimator.gpu import GpuSpec
from estimator.kernel_prediction import kernel_times
from estimator.quantities import Array, BoolArray
from estimator.workload import Operator
from fitter.priors import GROUP_PRIORS

GROUP: Final = "attention.decode"

FIXED_S: Final = 20e-6
"""Launches and a serving library's small kernels beside the one in question [s]."""

OTHER_KERNEL_FACTOR: Final = 5.0
"""A row this many times slower than fixed cost and the priors' time together ran another kernel [1]."""

USUAL_FACTOR: Final = 3.0
LEAST_USUAL_SHARE: Final = 0.25
"""At least this share of the rows must lie within USUAL_FACTOR, else the whole collection is slow and no row stands out [1]."""


def other_kernel_rows(operators: Sequence[Operator], gpu: GpuSpec, latency_s: Array, sm_clock_mhz: Array) -> BoolArray:
    """Decode rows of one collection that another kernel ran, shape (n,); rows of other operators are never among them.

    sm_clock_mhz: nan where unknown, then the clock of the published rates.
    """
    found = np.zeros(len(operators), dtype=np.bool_)
    decode = np.flatnonzero([operator.family == "attention" and operator.operator == "decode" for operator in operators])
    if not len(decode):
        return found
    centres = {name: prior.centre for name, prior in GROUP_PRIORS[GROUP].items() if name in COEFFICIENTS}
    clock = np.where(np.isfinite(sm_clock_mhz[decode]), sm_clock_mhz[decode], gpu.sm_clock_max_mhz)
    chosen = [operators[i] for i in decode.tolist()]
    usual = kernel_times(chosen, gpu, {GROUP: centres}, sm_clock_mhz=clock, warm=np.zeros(len(decode), dtype=np.bool_)).equations_s
    ratio = latency_s[decode] / (FIXED_S + usual)
    if float((ratio <= USUAL_FACTOR).mean()) >= LEAST_USUAL_SHARE:
        found[decode] = ratio > OTHER_KERNEL_FACTOR
    return found
