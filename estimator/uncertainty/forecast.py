"""Forecasts: estimates for a board that was not fitted (another GPU, a changed one, other efficiencies), and their uncertainty."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.specifications import FIGURES, RATE_TABLES

FORECAST_STD: Final[dict[str, tuple[float, float]]] = {"alike": (0.05, 0.2), "other": (0.2, 0.35)}
"""Uncertainty of ln(time) and ln(power) on another GPU than the fitted one, of the same architecture or of another.  Between A100-PCIe
and A10, GPU-bound runs of the EnergAIzer artifact deviate by 5 to 6 % in time (the change of board adds 3 to 4 %) and by 12 to 24 % in
power; the values for other architectures are assumed."""

EFFICIENCY_STD: Final = (FORECAST_STD["alike"][0],) * 2
"""Uncertainty of ln(time) and ln(power) if only an efficiency is set: event energies stay, so that power errs like time (assumed)."""

LIMITS: Final = frozenset({"power_limit_w", "sm_clock_limit_mhz", "sm_clock_min_mhz", "sm_clock_step_mhz", "dram_bytes"})
"""Figures that limit the operation of a board and do not affect coefficients: a change of them makes no forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A request for a board that was not fitted.

    name    equal for equal boards and settings: their errors are the same
    ln_std  uncertainty of ln(time) and of ln(power) in addition to the bundle's
    text    difference between the board and the fitted one, a line for people
    """

    name: str
    ln_std: tuple[float, float]
    text: str


def forecast_of(fitted: GpuSpec, asked: GpuSpec, efficiency: Mapping[str, float]) -> Forecast | None:
    """The forecast of a request; None for the fitted board with any limits."""
    other, changes = asked.name != fitted.name, changed_figures(fitted, asked)
    shares = tuple(f"efficiency of {module} → {value:g}" for module, value in efficiency.items())
    if not (other or changes or shares):
        return None
    known = "alike" if asked.architecture == fitted.architecture else "other"
    settings = ", ".join(shares if other else (*changes, *shares))
    what = f"the bundle was fitted on {fitted.name}, not on {asked.name}" if other else f"{asked.name}"
    return Forecast(
        name=f"forecast:{asked.name} {' '.join((*changes, *shares))}",
        ln_std=FORECAST_STD[known] if other or changes else EFFICIENCY_STD,
        text=f"forecast: {what}{settings and ' with '}{settings}; the fit has not seen it, so the interval is wider",
    )


def changed_figures(fitted: GpuSpec, asked: GpuSpec) -> tuple[str, ...]:
    """Figures other than LIMITS in which two specifications differ, "num_sms 108 → 132"."""
    if asked is fitted:
        return ()
    before, after = _figures(fitted), _figures(asked)
    names = [name for name in (before | after) if name not in LIMITS and before.get(name) != after.get(name)]
    return tuple(f"{name} {before.get(name, math.nan):.6g} → {after.get(name, math.nan):.6g}" for name in names)


def _figures(gpu: GpuSpec) -> dict[str, float]:
    """Every number of a specification except its tables over the clock."""
    figures = {name: getattr(gpu, name) for name in FIGURES}
    return figures | {f"{table}.{precision}": rate for table in RATE_TABLES for precision, rate in getattr(gpu, table).items()}
