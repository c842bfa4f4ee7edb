"""What the power equation leaves over: what a group's kernels have in common, and the error of the nearest measured ones."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from estimator.quantities import Array
from estimator.residuals import log_corrections
from estimator.tier_records import PowerTier, PowerTrend, Tier
from estimator.workload import Operator

POWER_TIER: Final = "power"
"""Name of a tier's own tier of power."""


def log_power_corrections(
    operators: Sequence[Operator],
    groups: Sequence[str | None],
    residuals: Mapping[str, Tier],
    equation_w: Array | None = None,
) -> tuple[Array, Array]:
    """As `log_corrections`, for power: groups without a power tier have no correction and a deviation of nan.

    What a group has in common is no matter of distance: it holds for all its kernels.  equation_w (n,): power by the equation [W], with
    which it may change; without it, as at the group's mean power.
    """
    tiers = {group: tier["power"] for group, tier in residuals.items() if "power" in tier}
    trends = {group: _trend(tier) for group, tier in tiers.items()}
    correction, deviation = log_corrections(operators, groups, {group: tier for group, tier in tiers.items() if "points" in tier})
    rows = np.array([trends.get(group or "", NO_TREND) for group in groups]).reshape(len(groups), len(NO_TREND))
    common, slope, low, high, middle = rows.T
    at = middle if equation_w is None else np.log(np.maximum(np.nan_to_num(equation_w), LEAST_POWER_W))
    shared = common + slope * (np.clip(at, low, high) - middle)
    return correction + np.clip(shared, -LARGEST_COMMON, LARGEST_COMMON), deviation


NO_TREND: Final = (0.0, 0.0, 0.0, 0.0, 0.0)
"""Common factor [ln], slope, and least, largest and mean ln(power / W) of a group whose power the equation alone tells."""

LEAST_POWER_W: Final = 1e-3
"""Keeps the logarithm of no power finite [W]."""


def _trend(tier: PowerTrend | PowerTier) -> tuple[float, float, float, float, float]:
    """What a group's power has in common, in the order of NO_TREND."""
    if "slope" not in tier:
        return tier.get("common", 0.0), 0.0, 0.0, 0.0, 0.0
    return tier["common"], tier["slope"], math.log(tier["low_w"]), math.log(tier["high_w"]), math.log(tier["middle_w"])


LARGEST_COMMON: Final = 0.7
"""Bound of what a group's power may have in common beyond the equation: a factor of 2 either way [ln]."""
