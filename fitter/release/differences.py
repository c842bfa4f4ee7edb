"""Differences between two bundles: coefficients, and predictions of workloads."""

from collections.abc import Sequence
from math import hypot, isfinite, log, nan
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.formats import read_workload
from estimator.questions.estimates import estimate
from estimator.vocabulary.reader import plain
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen
from fitter.release.version_rule import needed_step

LEAST_CHANGE: Final = 0.02
"""Least relative change of a prediction that counts [1]."""

UNKNOWN: Final = (nan, nan)

Stated = tuple[float, float]
"""A value and the standard deviation of its logarithm."""


@frozen
class Difference:
    """One value that differs between two bundles; nan if one of them lacks it.

    factor   new over old
    sigmas   |ln(new / old)| in standard deviations of both, nan if none is known
    """

    place: str
    old: float
    new: float
    factor: float
    sigmas: float


def _differences(before: dict[str, Stated], after: dict[str, Stated]) -> list[Difference]:
    """Every value that differs, in the order of the new bundle, then those that it lacks."""
    found = []
    for place in dict.fromkeys((*after, *before)):
        (old, old_std), (new, new_std) = before.get(place, UNKNOWN), after.get(place, UNKNOWN)
        factor, spread = new / old if old else nan, hypot(old_std, new_std)
        sigmas = abs(log(factor)) / spread if factor > 0.0 and spread > 0.0 else nan
        if old != new and (isfinite(old) or isfinite(new)):
            found.append(Difference(place=place, old=old, new=new, factor=factor, sigmas=sigmas))
    return found


def coefficient_differences(old: Bundle, new: Bundle) -> list[Difference]:
    """Coefficients that differ."""
    return _differences(_coefficients(old), _coefficients(new))


def workload_differences(old: Bundle, new: Bundle, files: Sequence[str]) -> list[Difference]:
    """Latency, power and energy of workloads (of the examples without files) that change by more than LEAST_CHANGE.

    At the lowest, the middle and the highest clock in the range of both bundles; each bundle on its own GPU.
    """
    low, high = (max(old.clocks_mhz[0], new.clocks_mhz[0]), min(old.clocks_mhz[1], new.clocks_mhz[1]))
    clocks = sorted({low, 0.5 * (low + high), high}) if low <= high else None
    workloads = [read_workload(path) for path in [Path(name) for name in files] or sorted(resource_folder("examples").glob("*.json"))]
    predictions: list[dict[str, Stated]] = []
    for bundle in (old, new):
        own: dict[str, Stated] = {}
        for workload in workloads:
            for one in estimate(workload, bundle, sm_clock_mhz=clocks):
                for name in ("latency_s", "power_w", "energy_j"):
                    value = float(getattr(one, name))
                    std = float(getattr(one, f"{name}_std")) / value if value else nan
                    own[f"{workload.name} at {one.asked_clock_mhz:g} MHz: {name}"] = (value, std)
        predictions.append(own)
    return [one for one in _differences(*predictions) if not abs(one.factor - 1.0) <= LEAST_CHANGE]


def _coefficients(bundle: Bundle) -> dict[str, Stated]:
    found: dict[str, Stated] = {}
    for key, group in bundle.groups.items():
        found |= {f"{key}.{name}": (value, group.ln_std.get(name, nan)) for name, value in group.coefficients.items()}
    found["host.launch_s"] = (bundle.host.launch_s, bundle.host.launch_ln_std)
    found["host.overlap_exponent"] = (bundle.host.overlap_exponent, nan)
    if (power := bundle.power) is not None:
        stated = {f"capacitance_f.{name}": (value, power.capacitance_std_f.get(name, nan)) for name, value in power.capacitance_f.items()}
        stated |= {"busy_w": (power.busy_w, power.busy_std_w), "active_w": (power.active_w, power.active_std_w)}
        found |= {f"power.{name}": (value, std / value if value else nan) for name, (value, std) in stated.items()}
        found["power.voltage_exponent"] = (power.voltage_exponent, nan)
    return found


def differences_document(old: Bundle, new: Bundle, workloads: Sequence[Difference]) -> dict[str, object]:
    """Output of `fit diff --json`; `workloads` as from `workload_differences`."""
    step, reasons = needed_step(old, new)
    changes = coefficient_differences(old, new)
    sides = {"old": identity(old), "new": identity(new)}
    return {**sides, "step": step, "reasons": list(reasons), "changes": plain(changes), "workloads": plain(list(workloads))}


def identity(bundle: Bundle) -> dict[str, str]:
    """Which bundle it is, for programs."""
    return {"name": bundle.name, "version": bundle.version, "digest": bundle.digest, "gpu": bundle.gpu.name}
