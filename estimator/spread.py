"""How uncertain an estimate of a workload is: standard deviations of ln(latency) and ln(power).

    σ² = (1 − p)·σ_gpu² + p·σ_launch² + σ_family²

p is the share of the host's launches in the latency.  σ_gpu and σ_launch come from runs left out of the fit; σ_family
is added for a model family that the fit has not seen.  Where no whole runs were fitted, σ_gpu² is the sum over
kernel groups of (share of the time · held-out error of the group)²: kernels of one group err alike.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from estimator.bundle_content import Bundle
from estimator.quantities import Array


def latency_log_std(bundle: Bundle, model_family: str, launch_share: float, groups: Sequence[str | None], time_shares: Array) -> float:
    """Standard deviation of ln(latency); nan where the bundle states none."""
    stated = bundle.uncertainty.get("latency", {})
    gpu = _gpu_error(stated, groups, time_shares)
    launch = stated.get("launch", gpu)
    family = _family_error(stated, model_family)
    return math.sqrt((1.0 - launch_share) * gpu**2 + launch_share * launch**2 + family**2)


def power_log_std(bundle: Bundle, model_family: str, groups: Sequence[str | None], time_shares: Array) -> float:
    """Standard deviation of ln(power); nan where the bundle states none."""
    stated = bundle.uncertainty.get("power", {})
    if bundle.power is None:
        return math.nan
    return math.hypot(_gpu_error(stated, groups, time_shares), _family_error(stated, model_family))


def _family_error(stated: Mapping[str, Any], model_family: str) -> float:
    known = model_family in stated.get("families", ())
    return 0.0 if known else float(stated.get("family", 0.0))


def _gpu_error(stated: Mapping[str, Any], groups: Sequence[str | None], time_shares: Array) -> float:
    """The stated error of GPU-bound runs, else the root of the sum over groups of (time share · held-out error)²."""
    if "gpu" in stated:
        return float(stated["gpu"])
    known: Mapping[str, float] = stated.get("groups", {})
    if not known:
        return math.nan
    fallback = max(known.values())
    shares: dict[str | None, float] = {}
    for group, weight in zip(groups, time_shares, strict=True):
        shares[group] = shares.get(group, 0.0) + float(weight)
    return math.sqrt(sum((weight * known.get(group or "", fallback)) ** 2 for group, weight in shares.items()))
