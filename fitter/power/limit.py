"""The share of its power limit that a board holds, from throttled kernels and runs."""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.power_limit import LIMIT_SHARE, LIMIT_SHARE_STD
from fitter.rows.columns import KernelRows, WorkloadRows
from fitter.rows.kernel_table import AT_LIMIT_SHARE

LEAST_SCATTER: Final = 0.0075
"""Least scatter of the share among throttled rows [1]: that of 15 runs on an A100-PCIe (EnergAIzer artifact, start-up removed)."""


def with_limit_share(bundle: Bundle, kernels: KernelRows | None, runs: WorkloadRows | None) -> Bundle:
    """The bundle with the share of the limit that its board holds, from throttled rows and the usual share; unchanged without power."""
    limit_w, parts = bundle.gpu.power_limit_w, [np.zeros(0)]
    if kernels is not None:
        held = kernels.at_limit & (kernels.power_w <= limit_w)  # above, the limit had not acted on the kernel yet
        parts.append(kernels.power_w[held] / limit_w)
    if runs is not None:
        slowed = runs.sm_clock_measured_mhz < (1.0 - CLOCK_TOLERANCE) * runs.asked_clock_mhz(bundle.gpu)
        parts.append(runs.power_w[slowed] / limit_w)
    share = np.concatenate(parts)
    share = share[np.abs(share - 1.0) < 2.0 * (1.0 - AT_LIMIT_SHARE)]  # others had another limit
    if bundle.power is None or not len(share):
        return bundle
    scatter = max(float(share.std()), LEAST_SCATTER)
    weights = np.array([LIMIT_SHARE_STD**-2.0, len(share) * scatter**-2.0])
    mean = float(weights @ [LIMIT_SHARE, share.mean()] / weights.sum())
    return replace(bundle, power=replace(bundle.power, limit_share=mean, limit_share_std=float(np.hypot(scatter, weights.sum() ** -0.5))))


CLOCK_TOLERANCE: Final = 0.005
"""Relative distance below which a clock counts as not lowered: a third of a step."""
