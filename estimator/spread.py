"""How uncertain an estimate of a workload is: standard deviations of ln(latency) and ln(power), by independent sources of error.

    σ² = (1 − p)·(σ_gpu² + σ_untested² + σ_untried² + σ_forecast²) + p·σ_launch² + σ_family²

p is the share of the host's launches in the latency.  σ_gpu and σ_launch come from runs left out of the fit; σ_family
is added for a model family that the fit has not seen: what families have in common, and for each group of kernels that
fewer than two fitted families used, (share of the time · spread of a group that nobody, or one family, has tested)².
Matrix products in a precision that no fitted row had add (share of the time · spread of a prior)², and so does another GPU
than the fitted one.  Where no whole runs were fitted, σ_gpu² is the sum over kernel groups of (share of the time · held-out
error of the group)²: kernels of one group err alike.

Sources have names, so that two predictions that share one can be compared (`estimator.questions.comparison`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.errors import BundleError
from estimator.gpu import GpuSpec
from estimator.quantities import Array
from estimator.workload import Operator

Loading = float | Array
"""What a source adds to the error of a logarithm: a number, or one for each of several operating points."""

NOTHING: Final[Mapping[str, Loading]] = {}

ENOUGH_FAMILIES: Final = 2
"""A group that this many model families used has been tested: one family's way to use it is not all that is known."""

UNTESTED_STD: Final[dict[int, float]] = {0: 0.5, 1: 0.3}
"""Spread of ln(time) of a group that no fitted model family used, or one: the widths of the priors of a stream's and of a
convolution's time, and what published runs show: 7 % on one board and 25 % on another where convolutions of one family were
forecast from those of one other."""

PRIOR_STD: Final = 0.3
"""Spread of ln of the time, or power, of a group that the fit has not seen: the width of the priors of a matrix product's time."""

FORECAST_STD: Final[dict[str, tuple[float, float]]] = {"alike": (0.05, 0.2), "other": (0.2, 0.35)}
"""Spread of ln(time) and ln(power) on another GPU than the fitted one, of the same architecture or of another.  Between A100-PCIe
and A10, GPU-bound runs of the EnergAIzer artifact deviate by 5 to 6 % in time, of which 3 to 4 % are added by the change of board, and by
12 to 24 % in power; for other architectures assumed."""

PRODUCTS: Final = frozenset({"gemm", "conv", "attention"})
"""Families whose kernels are other ones in another precision; streams only move more or fewer bytes."""

ALIKE_PRECISIONS: Final[dict[str, str]] = {"fp16": "bf16"}
"""Precisions whose kernels have the same tiles and rates as another's."""


def joined(loadings: Iterable[Loading]) -> Loading:
    """Root of the sum of squares of independent errors."""
    total: Loading = 0.0
    for loading in loadings:
        total = total + loading * loading
    return np.sqrt(total)


def latency_sources(
    bundle: Bundle,
    model_family: str,
    launch_share: Loading,
    shares: Mapping[str, Loading],
    *,
    gpu: GpuSpec | None = None,
    untried: Mapping[str, Loading] = NOTHING,
) -> dict[str, Loading]:
    """Independent sources of error of ln(latency) and how much of each a prediction has.

    launch_share: of the host in the latency, a number or shape (c,).  shares: of the GPU time by group of kernels ("" for
    those without one), numbers or shape (c,).  gpu: what is estimated for; None: the bundle's own.  untried: as `untried_shares`.
    A bundle that states nothing gives nan.  Raises BundleError for a damaged section.
    """
    stated = _table(bundle.uncertainty.get("latency", {}))
    gpu_error = _kernel_sources(bundle, stated, shares)
    launch = _number(stated["launch"]) if "launch" in stated else joined(gpu_error.values())
    gpu_error |= _untested_sources(stated, shares, unfitted_groups(bundle, shares), known=model_family in _names(stated))
    gpu_error |= {f"precision:{name}": share * PRIOR_STD for name, share in untried.items()} | _forecast_source(bundle, gpu, 0)
    own_share = np.sqrt(1.0 - launch_share)
    sources: dict[str, Loading] = {name: own_share * loading for name, loading in gpu_error.items()}
    sources["launch"] = np.sqrt(launch_share) * launch
    return sources | _family_source(stated, model_family)


def power_sources(
    bundle: Bundle,
    model_family: str,
    shares: Mapping[str, Loading],
    *,
    gpu: GpuSpec | None = None,
    untried: Mapping[str, Loading] = NOTHING,
) -> dict[str, Loading]:
    """Independent sources of error of ln(power).  Arguments and errors as those of `latency_sources`."""
    stated = _table(bundle.uncertainty.get("power", {}))
    if bundle.power is None:
        return {"unknown": np.nan}
    sources = _kernel_sources(bundle, stated, shares) | _forecast_source(bundle, gpu, 1)
    return sources | {f"precision:{name}": share * PRIOR_STD for name, share in untried.items()} | _family_source(stated, model_family)


def group_shares(groups: Sequence[str | None], time_shares: Array) -> dict[str, Loading]:
    """Share of the GPU time by group of kernels; "" holds those that no group serves.  time_shares: shape (n,), or (n, c) at c clocks."""
    shares: dict[str, Loading] = {}
    for group, weight in zip(groups, time_shares, strict=True):
        shares[group or ""] = shares.get(group or "", 0.0) + weight
    return shares


def untried_precisions(bundle: Bundle, operators: Sequence[Operator], groups: Sequence[str | None]) -> list[str]:
    """For each operator the precision that makes it a matrix product unlike any that was fitted, "" for all others.

    A group that names its precision was fitted on it; of others the bundle's held-out errors tell which ones the rows had.
    """
    tried = {ALIKE_PRECISIONS.get(name, name) for row in bundle.errors if isinstance(name := row.get("precision"), str)}
    names = [""] * len(operators)
    for i, operator in enumerate(operators):
        if operator.family in PRODUCTS and tried and ALIKE_PRECISIONS.get(operator.precision, operator.precision) not in tried:
            named = operator.precision in (groups[i] or "").split(".")
            names[i] = "" if named else operator.precision
    return names


def untried_shares(precisions: Sequence[str], time_shares: Array) -> dict[str, Loading]:
    """Share of the GPU time by untried precision, from what `untried_precisions` tells."""
    return {name: share for name, share in group_shares(precisions, time_shares).items() if name} if any(precisions) else {}


def _family_source(stated: Mapping[str, Any], model_family: str) -> dict[str, Loading]:
    if model_family in _names(stated):
        return {}
    return {f"family:{model_family}": _number(stated.get("family", 0.0))}


def _forecast_source(bundle: Bundle, gpu: GpuSpec | None, quantity: int) -> dict[str, Loading]:
    if gpu is None or gpu.name == bundle.gpu.name:
        return {}
    kind = "alike" if gpu.architecture == bundle.gpu.architecture else "other"
    return {f"forecast:{gpu.name}": FORECAST_STD[kind][quantity]}


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


def _untested_sources(
    stated: Mapping[str, Any], shares: Mapping[str, Loading], unfitted: Sequence[str], *, known: bool
) -> dict[str, Loading]:
    """Groups that too few model families used, time share times spread; none where a bundle does not count families.

    known: the fit has seen this model family; then only those `unfitted` are uncertain beyond what its runs showed.
    """
    counts = stated.get("families_by_group")
    if counts is None:
        return {}
    seen = _table(counts)
    spreads = {group: UNTESTED_STD[0] if group in unfitted else 0.0 for group in shares}
    if not known:
        spreads |= {group: UNTESTED_STD.get(seen.get(group, 0), 0.0) for group in shares}
    return {f"untested:{group}": share * spreads[group] for group, share in shares.items() if spreads[group]}


def unfitted_groups(bundle: Bundle, groups: Iterable[str | None]) -> list[str]:
    """Those of the groups whose coefficients are priors: no row had such a kernel, or a fit of runs left them all as they were."""
    chosen = [(group, bundle.groups[group]) for group in dict.fromkeys(groups) if group]
    of_runs = bool(bundle.latency_parameters.names)
    return [name for name, group in chosen if group.rows == 0 or (of_runs and not group.ln_std)]


def _kernel_sources(bundle: Bundle, stated: Mapping[str, Any], shares: Mapping[str, Loading]) -> dict[str, Loading]:
    """The stated error of GPU-bound runs, spread over the groups by their time; else time share times held-out error of each group."""
    if "gpu" in stated:
        error = _number(stated["gpu"])
        norm = joined(shares.values())
        return {f"kernels:{group}": error * (share / norm) for group, share in shares.items()} if np.all(norm > 0.0) else {"kernels": error}
    given = stated.get("groups", {})
    if not given:
        return {"unknown": np.nan}
    known = {group: _number(value) for group, value in _table(given).items()}
    usual = max(known.values())
    unseen = max(usual, PRIOR_STD)
    seen = {name for name, group in bundle.groups.items() if group.rows > 0}
    return {f"kernels:{group}": share * known.get(group, usual if group in seen else unseen) for group, share in shares.items()}
