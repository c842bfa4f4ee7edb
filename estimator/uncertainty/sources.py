"""Uncertainty of an estimate of a workload: standard deviations of ln(latency) and ln(power), by independent sources of error.

    σ² = (1 − w)·σ_gpu² + w·σ_launch² + (1 − p)·(σ_untested² + σ_unseen² + σ_forecast² + σ_clock²) + σ_family²

p is the share of the host's launches in the latency, w their weight in its error (`launch_weight`).  σ_gpu and σ_launch come from held-out
runs.  σ_family is added for an unseen model family: the common error of a family, and for each group of kernels that fewer than two
fitted families used, (share of the time · uncertainty of a group tested by none or one family)².
Kernels in a precision that no fitted row of their family had add σ_unseen² = (share of the time · width of a prior)²
(`estimator.uncertainty.unseen`).  Another GPU than the fitted one, or one with other figures, adds to it too
(`estimator.uncertainty.forecast`).  If no whole runs were fitted, σ_gpu² is the sum over kernel groups of
(share of the time · held-out error of the group)²: kernels of one group have a common error.

ln(power) has its own σ_gpu, σ_launch and σ_family; kernels that few families used do not add to it, and unseen precisions and
forecasts count fully at any launch share.  Clocks beyond the fitted ones add to the errors of both GPU time and power.  Held-out
errors include all errors of the coefficients at the fitted clocks, so only the distance from the nearest of these counts: one clock
hardly determines the shares of time and power that follow the clock, and errors grow with ln(f).

Sources have names, so that predictions with a common source can be compared (`estimator.questions.choosing`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from estimator.bundle.content import Bundle, StatedErrors
from estimator.model.power import BoardTables
from estimator.uncertainty.unseen import PRIOR_STD, Loading, sums
from estimator.vocabulary.quantities import Array

ENOUGH_FAMILIES: Final = 2
"""Number of fitted model families with which a group counts as tested: one family uses a group in only one way."""

UNTESTED_STD: Final = {0: 0.5, 1: 0.3}
"""Uncertainty of ln(time) of a group that no fitted model family used, or one: the widths of the priors of a stream's and of a
convolution's time.  Published runs agree: errors of 7 % on one board and 25 % on another for convolutions of one family,
forecast from those of another."""


def joined(loadings: Iterable[Loading]) -> Loading:
    """Root of the sum of squares of independent errors."""
    return np.sqrt(sum(loading * loading for loading in loadings))


def error_sources(
    bundle: Bundle,
    quantity: Literal["latency", "power"],
    model_family: str,
    launch_share: Loading,
    shares: Mapping[str, Loading],
    outside: Mapping[str, Loading] | None = None,
    *,
    launch_ln_std: float = 0.0,
) -> dict[str, Loading]:
    """Independent sources of error of ln(latency), or of ln(power), with their loadings in a prediction.

    launch_share: share of the host in the latency, a number or shape (c,).  shares: shares of the GPU time by group of kernels ("" for
    those without one), numbers or shape (c,).  outside: sources for unseen conditions (precisions, another board, far clocks), for
    GPU-bound kernels.  A bundle without stated errors gives nan; a bundle without a power error of launch-bound runs uses the error of all
    runs.  launch_ln_std: that of the launch cost.
    """
    if quantity == "power" and bundle.power is None:
        return {"unknown": np.nan}
    stated: StatedErrors = bundle.uncertainty.get(quantity, {})
    sources = _kernel_sources(bundle, stated, shares)
    if quantity == "latency" or "launch" in stated:
        launch = np.hypot(stated["launch"] if "launch" in stated else joined(sources.values()), launch_ln_std)
        weight = launch_weight(launch_share)
        own = np.sqrt(1.0 - weight)
        sources = dict[str, Loading]({name: own * loading for name, loading in sources.items()}, launch=np.sqrt(weight) * launch)
    known = model_family in stated.get("families", ())
    unseen = dict(outside or {})
    if quantity == "latency":
        unseen |= _untested_sources(stated, shares, unfitted_groups(bundle, shares), known=known)
        own_share = np.sqrt(1.0 - launch_share)
        unseen = {name: own_share * loading for name, loading in unseen.items()}
    return sources | unseen | ({} if known else {f"family:{model_family}": stated.get("family", 0.0)})


def launch_weight(launch_share: Loading) -> Loading:
    """Weight of the host's launches in the variance of ln(latency), h⁴ / (g⁴ + h⁴), from their share in the latency, h⁸ / (g⁸ + h⁸).

    g, h: GPU time and launch time.  If the two times are close, the host adds more error than its share in the smooth maximum: published
    runs on two boards with shares of 1 to 50 % err 1.4 to 2 times as much as GPU-bound runs.  The exponent 4 was chosen on these runs.
    """
    host, own = np.sqrt(launch_share), np.sqrt(1.0 - launch_share)
    weight: Loading = host / (host + own)
    return weight


def group_shares(groups: Sequence[str | None], time_shares: Array | Sequence[Loading]) -> dict[str, Loading]:
    """Share of the GPU time by group of kernels; "" holds kernels without a group.  time_shares: shape (n,), or (n, c) at c clocks."""
    return sums((group or "", share) for group, share in zip(groups, time_shares, strict=True))


def _untested_sources(stated: StatedErrors, shares: Mapping[str, Loading], unfitted: Sequence[str], *, known: bool) -> dict[str, Loading]:
    """Sources for groups that too few model families used: time share times uncertainty; empty if a bundle does not count families.

    known: this model family was fitted; then only the groups `unfitted` add uncertainty to that of its runs.
    """
    counts = stated.get("families_by_group")
    if counts is None:
        return {}
    spreads = {group: UNTESTED_STD[0] if group in unfitted else 0.0 for group in shares}
    if not known:
        spreads |= {group: UNTESTED_STD.get(counts.get(group, 0), 0.0) for group in shares}
    return {f"untested:{group}": share * spreads[group] for group, share in shares.items() if spreads[group]}


def unfitted_groups(bundle: Bundle, groups: Iterable[str | None]) -> list[str]:
    """The groups whose coefficients are priors: no row had such a kernel, or a fit of runs changed none of them."""
    priors = bundle.once(_prior_groups)
    return [name for name in dict.fromkeys(groups) if name is not None and name in priors]


def _prior_groups(bundle: Bundle) -> frozenset[str]:
    of_runs = bool(bundle.latency_parameters.names)
    return frozenset(name for name, group in bundle.groups.items() if group.rows == 0 or (of_runs and not group.ln_std))


def _kernel_sources(bundle: Bundle, stated: StatedErrors, shares: Mapping[str, Loading]) -> dict[str, Loading]:
    """The stated error of GPU-bound runs, divided among the groups by their time; else time share times held-out error of each group."""
    if "gpu" in stated:
        error = stated["gpu"]
        norm = joined(shares.values())
        return {f"kernels:{group}": error * (share / norm) for group, share in shares.items()} if np.all(norm > 0.0) else {"kernels": error}
    if not stated.get("groups"):
        return {"unknown": np.nan}
    known, seen = stated["groups"], {name for name, group in bundle.groups.items() if group.rows > 0}
    usual = float(np.median(list(known.values())))  # the largest of a hundred classes is one of few rows
    unseen = max(usual, PRIOR_STD)
    return {f"kernels:{group}": share * known.get(group, usual if group in seen else unseen) for group, share in shares.items()}


CLOCK_SLOPE_STD: Final = (0.03, 0.02)
"""Standard deviation of the slope of ln(predicted / measured) latency and power over ln(clock) among workloads: 18 models at 11 clocks of
an A100 (EnergAIzer artifact) have root mean squares of 0.031 and 0.016.  The covariance of coefficients fitted at one clock gives 0.02 to
0.05 and 0.01 to 0.03."""

VOLTAGE_EXPONENT_STD: Final = 0.35
"""Standard deviation of the exponent of s(V) among boards: its uncertainty if no fitted row determines it [1]."""

TELLING_VOLTAGE_RANGE: Final = 0.05
"""Least range of V / V₀ among fitted rows that determines the exponent [1]."""


class FarClock(NamedTuple):
    """Independent sources of error of ln(GPU time) and ln(power) with their loadings in a prediction; empty at fitted clocks."""

    latency: Mapping[str, Array]
    power: Mapping[str, Array]


def far_clock(bundle: Bundle, tables: BoardTables, clock_mhz: Array, power_w: Array) -> FarClock:
    """Sources at the actual clocks, loadings of the shape of `clock_mhz`; power_w: power at these clocks, same shape."""
    low, high = bundle.clocks_mhz
    nearest = np.fmin(np.fmax(clock_mhz, low), high)  # fitted clocks; the actual ones if the fitted ones are unknown (nan)
    if np.array_equal(nearest, clock_mhz):
        return FarClock(latency={}, power={})
    way = np.log(clock_mhz / nearest)
    of_time, of_power = ({"far clock": slope * way} for slope in CLOCK_SLOPE_STD)
    return FarClock(latency=of_time, power=of_power | {"voltage": _voltage_loading(bundle, tables, clock_mhz, nearest, power_w)})


def _voltage_loading(bundle: Bundle, tables: BoardTables, clock_mhz: Array, nearest_mhz: Array, power_w: Array) -> Array:
    """Loading of a voltage exponent that no fitted row determines; power at rest does not scale with it."""
    lowest, highest = tables.at(np.array(bundle.clocks_mhz)).voltage_ratio
    if highest - lowest > TELLING_VOLTAGE_RANGE:
        return np.zeros_like(clock_mhz)
    there, nearest = tables.at(clock_mhz), tables.at(nearest_mhz)
    above_rest = 1.0 - there.idle_w / np.maximum(power_w, there.idle_w)
    return VOLTAGE_EXPONENT_STD * above_rest * np.log(there.voltage_ratio / nearest.voltage_ratio)
