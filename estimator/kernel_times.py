"""Times of kernels launched by themselves: equations, tiles and residual tier, with their uncertainty."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimator.coefficients import coefficient_rows, group_key
from estimator.frozen import FrozenMapping
from estimator.gpu import GpuSpec
from estimator.kernels.registry import KnownTiles, lower
from estimator.kriging import phase_features
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.residuals import log_corrections
from estimator.tiles.predictor import predicted_tiles
from estimator.timeline import kernel_seconds, measured_seconds, warm_ratio
from estimator.workload import Operator

NOTHING: FrozenMapping[Any] = FrozenMapping({})


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Columns of shape (n,).

    equations_s, latency_s   by the equations alone, and with the residual tier [s]
    log_std                  standard deviation of ln(latency), nan where the tier says nothing
    groups                   the group that served each kernel; None: none does
    """

    equations_s: Array
    latency_s: Array
    log_std: Array
    groups: tuple[str | None, ...]


def kernel_times(
    operators: Sequence[Operator],
    gpu: GpuSpec,
    groups: Mapping[str, Mapping[str, float]],
    *,
    sm_clock_mhz: Array,
    warm: BoolArray,
    known: KnownTiles | None = None,
    tile_predictors: Mapping[str, Mapping[str, Any]] = NOTHING,
    residuals: Mapping[str, Mapping[str, Any]] = NOTHING,
) -> KernelTimes:
    """What a host would measure for each kernel, launched over and over by itself at its own clock.

    sm_clock_mhz, warm (n,): SM clock, and whether operands stay in L2 from launch to launch as far as they fit.
    known: tiles told by kernel names; without them `tile_predictors` say, else the fastest candidate is taken.  A
    residual tier that holds only what predicted tiles leave over needs these, so its kernels take them whatever is known.
    """
    coefficients, served = coefficient_rows(groups, [group_key(operator) for operator in operators])
    unnamed = [group is not None and group in residuals and "named" not in residuals[group] for group in served]
    known = _unless(known, np.array(unnamed, dtype=np.bool_))
    tiles = merged_tiles(known, predicted_tiles(operators, gpu, tile_predictors, coefficients))
    phases = lower(operators, gpu, coefficients, tiles).phases
    clock_hz, ratio = sm_clock_mhz * HZ_PER_MHZ, warm_ratio(phases, gpu, warm)
    seconds = kernel_seconds(phases, coefficients, clock_hz, ratio)
    equations_s = measured_seconds(seconds, coefficients)
    features = phase_features(phases, coefficients, clock_hz, ratio) if residuals else None
    correction, log_std = log_corrections(operators, served, residuals, None if known is None else np.isfinite(known.tile_m), features)
    return KernelTimes(equations_s=equations_s, latency_s=equations_s * np.exp(correction), log_std=log_std, groups=tuple(served))


def merged_tiles(known: KnownTiles | None, predicted: KnownTiles | None) -> KnownTiles | None:
    """Known tiles, and predicted ones where none is known."""
    if known is None or predicted is None:
        return predicted if known is None else known
    unknown = np.isnan(known.tile_m)
    return KnownTiles(**{name: np.where(unknown, getattr(predicted, name), getattr(known, name)) for name in KnownTiles.__slots__})


def _unless(tiles: KnownTiles | None, ignored: BoolArray) -> KnownTiles | None:
    if tiles is None:
        return None
    return KnownTiles(**{name: np.where(ignored, np.nan, getattr(tiles, name)) for name in KnownTiles.__slots__})
