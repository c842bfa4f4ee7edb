"""What the fit has seen, and how far outside a request lies."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from estimator.bundles.content import Bundle
from estimator.forecast import Forecast
from estimator.gpu import GpuSpec
from estimator.quantities import Array, BoolArray
from estimator.spread import unfitted_groups
from estimator.untried import Untried, untried_warnings
from estimator.workload import FAMILY_FIELDS, Operator, Workload

TOLERATED_FACTOR: Final = 2.0
"""Shapes up to this factor beyond the range that the fit has seen pass without a warning."""

TOLERATED_CLOCK_MHZ: Final = 30.0
"""Clocks up to this far outside the fitted ones pass without a warning [MHz], two steps of the usual table."""

UNCHECKED_FIELDS: Final = frozenset({"stride", "padding", "groups", "causal", "window", "kernel_h", "kernel_w"})
"""Shape fields whose size says nothing about time."""


Validity = Literal["inside", "outside", "forecast"]
"""Whether the fit has seen the like of what is asked: yes; not all of it; or the board is another or a changed one."""


def domain_warnings(workload: Workload, bundle: Bundle, groups: Sequence[str | None], untried: Mapping[Untried, float]) -> tuple[str, ...]:
    """One line for each way in which a workload leaves what the bundle was fitted on; untried: as from `untried_shares`."""
    found = []
    unmodelled = sum(count for group, count in zip(groups, workload.counts, strict=True) if group is None)
    total = sum(workload.counts) + sum(unknown.count for unknown in workload.unknown)
    if unmodelled:
        names = sorted({o.family for o, group in zip(workload.operators, groups, strict=True) if group is None})
        found.append(f"no coefficients for {', '.join(names)}: {unmodelled:g} of {total:g} operators are estimated without any fit")
    guessed = sorted(unfitted_groups(bundle, groups))
    if guessed:
        found.append(f"coefficients of {', '.join(guessed)} are priors: the fit has seen no such kernel")
    found.extend(untried_warnings(untried))
    found.extend(_shape_warnings(workload.operators, groups, bundle.domain))
    return tuple(found)


SIMULATED: Final = "bundle {} was fitted on a simulated board: its numbers say nothing about a GPU"


def simulated_notes(bundle: Bundle) -> tuple[str, ...]:
    """A line for every answer from a bundle that was fitted on a simulated board; none for a measured one."""
    return (SIMULATED.format(bundle.name),) if bundle.simulated else ()


def validity_of(forecast: Forecast | None, outside: Sequence[str]) -> Validity:
    """Whether an answer holds: outside: lines on how its request leaves what the bundle was fitted on."""
    return "forecast" if forecast is not None else "outside" if outside else "inside"


def clock_warning(fitted_mhz: tuple[float, float], asked_mhz: float, settled_mhz: float | None = None) -> tuple[str, ...]:
    """A line where a clock lies outside those that the fit has seen (`Bundle.clocks_mhz`); none inside.

    settled_mhz: the clock to which a power limit lowers the asked one, if it does.
    """
    low, high = fitted_mhz
    if outside_clock(low, high, asked_mhz):
        return (f"SM clock {asked_mhz:g} MHz is outside the fitted range {low:g} to {high:g} MHz",)
    if settled_mhz is not None and outside_clock(low, high, settled_mhz):
        return (f"SM clock {settled_mhz:.0f} MHz, to which the power limit lowers it, is outside the fitted range {low:g} to {high:g} MHz",)
    return ()


def outside_clock(low_mhz: float | Array, high_mhz: float | Array, sm_clock_mhz: float | Array) -> BoolArray:
    """Where clocks lie outside the fitted range, shape of the clocks; a range that is not known (nan) excludes none."""
    below, above = sm_clock_mhz < low_mhz - TOLERATED_CLOCK_MHZ, sm_clock_mhz > high_mhz + TOLERATED_CLOCK_MHZ
    result: BoolArray = np.logical_or(below, above)
    return result


def step_warning(gpu: GpuSpec, asked_mhz: Sequence[float]) -> tuple[str, ...]:
    """A line where asked clocks lie between those that a board can lock; none where all can be."""
    clocks = np.asarray(asked_mhz, dtype=np.float64)
    odd = clocks[~lockable(gpu, clocks)]
    if not len(odd):
        return ()
    step = gpu.sm_clock_step_mhz
    lower = gpu.sm_clock_min_mhz + step * np.floor((odd[0] - gpu.sm_clock_min_mhz) / step)
    upper = min(lower + step, gpu.sm_clock_limit_mhz)
    others = f" (nor {len(odd) - 1} more of the clocks asked)" if len(odd) > 1 else ""
    return (
        f"{gpu.name} cannot be locked at {odd[0]:g} MHz{others}, only in steps of {step:g} MHz: nearest are {lower:g} and {upper:g} MHz",
    )


def lockable(gpu: GpuSpec, clocks_mhz: Array) -> BoolArray:
    """Which SM clocks are among those that a board can lock, shape (n,)."""
    steps = (clocks_mhz - gpu.sm_clock_min_mhz) / gpu.sm_clock_step_mhz
    result: BoolArray = np.abs(steps - np.round(steps)) * gpu.sm_clock_step_mhz <= TOLERATED_STEP_MHZ
    return result


TOLERATED_STEP_MHZ: Final = 1.0
"""Clocks this near to a step are that step [MHz]: drivers round halves, and step by 7 and 8 where boards step by 7.5."""


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
    worst, field = 1.0, ""
    ranges = domain.get(group) if group is not None else None
    if not ranges:
        return worst, field
    for name, value in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True):
        if name in UNCHECKED_FIELDS or name not in ranges or value <= 0:
            continue
        low, high = ranges[name]
        if low <= value <= high:
            continue
        excess = max(value / max(high, 1e-300), low / value)
        if excess > worst:
            worst, field = excess, name
    return worst, field
