"""How uncertain an estimate of a workload is: standard deviations of ln(latency) and ln(power).

    σ² = (1 − p)·σ_gpu² + p·σ_launch² + σ_family²

p is the share of the host's launches in the latency.  σ_gpu and σ_launch come from runs left out of the fit; σ_family
is added for a model family that the fit has not seen: what families have in common, and for each group of kernels that
fewer than two fitted families used, (share of the time · spread of a group that nobody, or one family, has tested)².
Where no whole runs were fitted, σ_gpu² is the sum over kernel groups of (share of the time · held-out error of the
group)²: kernels of one group err alike.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from estimator.bundle_content import Bundle
from estimator.errors import BundleError
from estimator.quantities import Array


def latency_log_std(bundle: Bundle, model_family: str, launch_share: float, groups: Sequence[str | None], time_shares: Array) -> float:
    """Standard deviation of ln(latency); nan where the bundle states none."""
    stated = _table(bundle.uncertainty.get("latency", {}))
    gpu = _gpu_error(bundle, stated, groups, time_shares)
    launch = _number(stated["launch"]) if "launch" in stated else gpu
    family = _family_error(stated, model_family)
    untested = 0.0 if model_family in _names(stated) else _untested_error(stated, groups, time_shares)
    return math.sqrt((1.0 - launch_share) * (gpu**2 + untested**2) + launch_share * launch**2 + family**2)


def power_log_std(bundle: Bundle, model_family: str, groups: Sequence[str | None], time_shares: Array) -> float:
    """Standard deviation of ln(power); nan where the bundle states none."""
    stated = _table(bundle.uncertainty.get("power", {}))
    if bundle.power is None:
        return math.nan
    return math.hypot(_gpu_error(bundle, stated, groups, time_shares), _family_error(stated, model_family))


def _family_error(stated: Mapping[str, Any], model_family: str) -> float:
    known = model_family in _names(stated)
    return 0.0 if known else _number(stated.get("family", 0.0))


def _names(stated: Mapping[str, Any]) -> frozenset[str]:
    """Model families that the fit has seen."""
    families = stated.get("families", ())
    return frozenset(name for name in families if isinstance(name, str)) if isinstance(families, list | tuple) else frozenset()


def _table(value: Any) -> Mapping[str, Any]:
    """A part of the `uncertainty` section.  Raises BundleError for anything but an object."""
    if not isinstance(value, Mapping):
        raise BundleError(f"the bundle's uncertainty is damaged: {value!r:.40} where an object should be; fit again")
    return value


def _number(value: Any) -> float:
    """A standard deviation in the `uncertainty` section.  Raises BundleError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0.0:
        raise BundleError(f"the bundle's uncertainty is damaged: {value!r:.40} is no standard deviation; fit again")
    return float(value)


def group_shares(groups: Sequence[str | None], time_shares: Array) -> dict[str, float]:
    """Share of the GPU time by group of kernels; "" holds those that no group serves."""
    shares: dict[str, float] = {}
    for group, weight in zip(groups, time_shares, strict=True):
        shares[group or ""] = shares.get(group or "", 0.0) + float(weight)
    return shares


ENOUGH_FAMILIES: Final = 2
"""A group that this many model families used has been tested: one family's way to use it is not all that is known."""

UNTESTED_STD: Final[dict[int, float]] = {0: 0.5, 1: 0.3}
"""Spread of ln(time) of a group that no fitted model family used, or one: the widths of the priors of a stream's and of a
convolution's time, and what published runs show: 7 % on one board and 25 % on another where convolutions of one family were
forecast from those of one other."""


def _untested_error(stated: Mapping[str, Any], groups: Sequence[str | None], time_shares: Array) -> float:
    """Root of the sum over groups that too few model families used of (time share · spread)²; 0 where a bundle does not count them."""
    counts = stated.get("families_by_group")
    if counts is None:
        return 0.0
    known = _table(counts)
    shares = group_shares(groups, time_shares)
    return math.sqrt(sum((share * UNTESTED_STD.get(known.get(group, 0), 0.0)) ** 2 for group, share in shares.items()))


PRIOR_STD: Final = 0.3
"""Spread of ln of the time, or power, of a group that the fit has not seen: the width of the priors of a matrix product's time."""


def _gpu_error(bundle: Bundle, stated: Mapping[str, Any], groups: Sequence[str | None], time_shares: Array) -> float:
    """The stated error of GPU-bound runs, else the root of the sum over groups of (time share · held-out error)²."""
    if "gpu" in stated:
        return _number(stated["gpu"])
    given = stated.get("groups", {})
    if not given:
        return math.nan
    known = {group: _number(value) for group, value in _table(given).items()}
    usual = max(known.values())
    unseen = max(usual, PRIOR_STD)
    seen = {name for name, group in bundle.groups.items() if group.rows > 0}
    shares = group_shares(groups, time_shares)
    errors = {group: known.get(group, usual if group in seen else unseen) for group in shares}
    return math.sqrt(sum((weight * errors[group]) ** 2 for group, weight in shares.items()))
