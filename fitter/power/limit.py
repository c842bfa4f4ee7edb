"""Kernels and runs at the power limit: the share of it that the board holds, and the clock at which it held it."""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.board import held_limit
from estimator.engine.kernel_table import alone_parts_w, bundle_times
from estimator.model.lowering import KnownTiles
from estimator.model.power_limit import LIMIT_SHARE, LIMIT_SHARE_STD, highest_clock_mhz
from estimator.vocabulary.quantities import Array
from fitter.rows.columns import KernelRows, WorkloadRows
from fitter.rows.kernel_table import AT_LIMIT_SHARE

LEAST_SCATTER: Final = 0.0075
"""Least scatter of the share among throttled rows [1]: that of 15 runs on an A100-PCIe (EnergAIzer artifact, start-up removed)."""


def with_limit_share(bundle: Bundle, kernels: KernelRows | None, runs: WorkloadRows | None) -> Bundle:
    """The bundle with the share of the limit that its board holds, from throttled rows and the usual share; unchanged without power."""
    limit_w, parts = bundle.gpu.power_limit_w, [np.zeros(0)]
    if kernels is not None:
        parts.append(kernels.power_w[kernels.at_limit] / limit_w)
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


def settled_rows(rows: KernelRows, bundle: Bundle) -> KernelRows:
    """The rows with the clock at which the power limit held sustained kernels, by the bundle's power at their measured latency.

    Rows with a measured clock, or a measured power below the limit, ran at their own clock.
    """
    gpu = bundle.gpu
    open_clock = rows.sustained & np.isnan(rows.sm_clock_mhz) & (np.isnan(rows.power_w) | rows.at_limit)
    if bundle.power is None or not open_clock.any():
        return rows
    own, index = rows.select(open_clock), np.flatnonzero(open_clock)
    free_mhz, known = own.free_clock_mhz(gpu), KnownTiles(tile_m=own.tile_m, tile_n=own.tile_n, split=own.split_k)
    times = bundle_times(own.row_operators(), bundle, gpu, sm_clock_mhz=free_mhz, warm=own.l2_warm, known=known)
    times = replace(times, latency_s=own.latency_s)

    def power_w(clock_mhz: Array) -> Array:
        return np.asarray(sum(alone_parts_w(times, bundle, gpu, clock_mhz, own.l2_warm, own.temperature_c).values()))

    settled = highest_clock_mhz(power_w, held_limit(bundle, gpu, gpu.power_limit_w).power_w, gpu.sm_clock_min_mhz, free_mhz)
    slowed = settled < (1.0 - CLOCK_TOLERANCE) * free_mhz
    clock = rows.settled_mhz.copy()
    clock[index[slowed]] = settled[slowed]
    return replace(rows, settled_mhz=clock)


CLOCK_TOLERANCE: Final = 0.005
"""Relative distance below which a clock counts as not lowered: a third of a step."""
