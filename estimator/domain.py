"""What the fit has seen, and how far outside a request lies."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.gpu import GpuSpec
from estimator.reckoning import workload_warnings
from estimator.spread import unfitted_groups
from estimator.workload import FAMILY_FIELDS, Operator, Workload

TOLERATED_FACTOR: Final = 2.0
"""Shapes up to this factor beyond the range that the fit has seen pass without a warning."""

TOLERATED_CLOCK_MHZ: Final = 30.0
"""Clocks up to this far outside the fitted ones pass without a warning [MHz], two steps of the usual table."""

UNCHECKED_FIELDS: Final = frozenset({"stride", "padding", "groups", "causal", "window", "kernel_h", "kernel_w"})
"""Shape fields whose size says nothing about time."""


def domain_warnings(
    workload: Workload, bundle: Bundle, gpu: GpuSpec, groups: Sequence[str | None], untried: Sequence[str]
) -> tuple[str, ...]:
    """One line for each way in which a request leaves what the bundle was fitted on; untried: as from `untried_precisions`."""
    found = list(workload_warnings(workload))
    if gpu.name != bundle.gpu.name:
        found.append(f"forecast: the bundle was fitted on {bundle.gpu.name}, not on {gpu.name}")
    unmodelled = sum(count for group, count in zip(groups, workload.counts, strict=True) if group is None)
    total = sum(workload.counts) + sum(unknown.count for unknown in workload.unknown)
    if unmodelled:
        names = sorted({o.family for o, group in zip(workload.operators, groups, strict=True) if group is None})
        found.append(f"no coefficients for {', '.join(names)}: {unmodelled:g} of {total:g} operators are estimated without any fit")
    guessed = sorted(unfitted_groups(bundle, groups))
    if guessed:
        found.append(f"coefficients of {', '.join(guessed)} are priors: the fit has seen no such kernel")
    strange = sorted(set(untried) - {""})
    if strange:
        found.append(f"matrix products in {', '.join(strange)}: the fit has seen none in that precision; the interval is wider for it")
    found.extend(_shape_warnings(workload.operators, groups, bundle.domain))
    return tuple(found)


def clock_warning(fitted_mhz: tuple[float, float], sm_clock_mhz: float) -> tuple[str, ...]:
    """A line where a clock lies outside those that the fit has seen (`Bundle.clocks_mhz`); none inside."""
    low, high = fitted_mhz
    if not np.isfinite(low) or low - TOLERATED_CLOCK_MHZ <= sm_clock_mhz <= high + TOLERATED_CLOCK_MHZ:
        return ()
    return (f"SM clock {sm_clock_mhz:g} MHz is outside the fitted range {low:g} to {high:g} MHz",)


def _shape_warnings(
    operators: Sequence[Operator], groups: Sequence[str | None], domain: Mapping[str, Mapping[str, tuple[float, float]]]
) -> list[str]:
    """The widest excess of each group beyond the shapes that the fit has seen."""
    worst: dict[str, tuple[float, str]] = {}
    for operator, group in zip(operators, groups, strict=True):
        if group is None or group not in domain:
            continue
        excess, field = shape_excess(operator, group, domain)
        if excess > max(TOLERATED_FACTOR, worst.get(group, (0.0, ""))[0]):
            low, high = domain[group][field]
            worst[group] = (excess, f"{group}: {field} = {operator[field]:g} is outside the fitted range {low:g} to {high:g}")
    return [text for _, text in worst.values()]


def shape_excess(operator: Operator, group: str | None, domain: Mapping[str, Mapping[str, tuple[float, float]]]) -> tuple[float, str]:
    """The largest factor by which a shape field lies outside what the fit has seen, and that field; 1 and "" inside."""
    ranges = domain.get(group, {}) if group is not None else {}
    worst, field = 1.0, ""
    if not ranges:
        return worst, field
    for name, value in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True):
        if name in UNCHECKED_FIELDS or name not in ranges or value <= 0:
            continue
        low, high = ranges[name]
        excess = max(value / max(high, 1e-300), low / value)
        if excess > worst:
            worst, field = excess, name
    return worst, field
