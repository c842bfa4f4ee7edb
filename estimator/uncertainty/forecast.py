"""Forecasts: estimates for a board that was not fitted (another GPU, a changed one, other efficiencies), and their uncertainty."""

import math
from collections.abc import Mapping
from typing import Final

from estimator.bundle.content import Bundle
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.specifications import FIGURES, RATE_TABLES, gpu_names, load_gpu
from estimator.vocabulary.values import frozen

FORECAST_TIME_STD: Final = {"changed": 0.05, "alike": 0.1, "other": 0.2}
"""Uncertainty of ln(time) on the fitted GPU with changed figures, on another one of its architecture, and of another architecture.  Between
A100-PCIe and A10, GPU-bound runs of the EnergAIzer artifact deviate by 5 to 6 %; published products of A40, L4, H100-PCIe and RTX 4090 by
0, 5, −18 and 0 % on average from the nearest bundle's (`benchmarks/published.py`).  The value for other architectures is assumed."""

FORECAST_POWER_STD: Final = {"table": 0.10, "usual": 0.15, "new": 0.20, "gddr": 0.25, "unknown": 0.30}
"""Uncertainty of ln(power) on another GPU: voltage or rest power from a table, or rest power read on the board; from the usual rules; a
process that no fit has seen; a board with GDDR; or a process or kind of memory that nobody states: taken as N7 and HBM, which moves
powers of the shipped GPUs by 17 % (root mean square).  Between A100, A10 and H100 the rules err by 3 to 6 %; their inputs (rise of the
voltage and process ±15 %) make 9 %.  Boards with GDDR err by more (`benchmarks/published.py`), also from each other: two editions of one
board differ by 30 % at the same clock."""

SEEN_PROCESSES: Final = ("samsung-8n", "tsmc-7n", "tsmc-4n")
"""Processes of the boards on which the rules were chosen."""

EFFICIENCY_STD: Final = (FORECAST_TIME_STD["changed"],) * 2
"""Uncertainty of ln(time) and ln(power) if only an efficiency is set: event energies stay, so that power errs like time (assumed)."""

LIMITS: Final = frozenset(
    {"power_limit_w", "sm_clock_limit_mhz", "sm_clock_min_mhz", "sm_clock_step_mhz", "sm_clock_usual_mhz", "dram_bytes"}
)
"""Figures that limit the operation of a board and do not affect coefficients: a change of them makes no forecast."""


@frozen
class Forecast:
    """A request for a board that was not fitted.

    name    equal for equal boards and settings: their errors are the same
    ln_std  uncertainty of ln(time) and of ln(power) in addition to the bundle's
    text    difference between the board and the fitted one, a line for people
    """

    name: str
    ln_std: tuple[float, float]
    text: str


def forecast_of(bundle: Bundle, asked: GpuSpec, efficiency: Mapping[str, float], rest_known: bool = False) -> Forecast | None:
    """The forecast of a request; None for the fitted board with any limits.  rest_known: power at rest was read on the asked board.

    The stated errors of a bundle that is itself a forecast, corrected by anchors, hold that.
    """
    fitted, anchored = bundle.gpu, bundle.environment.get("anchored", "")
    other, changes = asked.name != fitted.name, changed_figures(fitted, asked)
    shares = tuple(f"efficiency of {module} → {value:g}" for module, value in efficiency.items())
    if not (other or changes or shares):
        return Forecast(name="anchored", ln_std=(0.0, 0.0), text=anchored) if anchored else None
    own = load_gpu(asked.name) if other and asked.name in gpu_names() else asked if other else fitted
    settings = ", ".join((*changed_figures(own, asked), *shares))
    what = f"the bundle was fitted on {fitted.name}, not on {asked.name}" if other else f"{asked.name}"
    return Forecast(
        name=f"forecast:{asked.name} {' '.join((*changes, *shares))}",
        ln_std=forecast_std(fitted, asked, rest_known) if other or changes else EFFICIENCY_STD,
        text=f"forecast: {what}{settings and ' with '}{settings}; the fit has not seen it, so the interval is wider",
    )


def forecast_std(fitted: GpuSpec, asked: GpuSpec, rest_known: bool = False) -> tuple[float, float]:
    """Uncertainty of ln(time) and of ln(power) on a GPU by the fit of another."""
    kind = "table" if rest_known or asked.voltage_v or asked.idle_w else "usual"
    kind = "gddr" if asked.memory.startswith("gddr") else kind if asked.process in SEEN_PROCESSES else "new"
    kind = kind if asked.process and asked.memory else "unknown"
    return (
        FORECAST_TIME_STD["changed" if asked.name == fitted.name else "alike" if asked.architecture == fitted.architecture else "other"],
        FORECAST_POWER_STD[kind],
    )


def distance(fitted: GpuSpec, asked: GpuSpec) -> tuple[float, float]:
    """How far a forecast goes, for the order of bundles: its stated deviation of ln(energy), then the mean |ln ratio| of all figures and
    rates but LIMITS; (0, 0) for the same GPU.
    """
    if fitted.name == asked.name:
        return 0.0, 0.0
    before, after = _figures(fitted), _figures(asked)
    ratios = [abs(math.log(after[name] / before[name])) for name in before.keys() & after.keys() - LIMITS if before[name] and after[name]]
    return math.hypot(*forecast_std(fitted, asked)), sum(ratios) / len(ratios)


def changed_figures(fitted: GpuSpec, asked: GpuSpec) -> tuple[str, ...]:
    """Figures other than LIMITS in which two specifications differ, "num_sms 108 → 132"; one that was unknown, 0, is no change."""
    if asked is fitted:
        return ()
    before, after = _figures(fitted), _figures(asked)
    names = [name for name in (before | after) if name not in LIMITS and before.get(name) not in (after.get(name), 0.0)]
    return tuple(f"{name} {before.get(name, math.nan):.6g} → {after.get(name, math.nan):.6g}" for name in names)


def _figures(gpu: GpuSpec) -> dict[str, float]:
    """Every number of a specification except its tables over the clock."""
    figures = {name: getattr(gpu, name) for name in FIGURES}
    return figures | {f"{table}.{precision}": rate for table in RATE_TABLES for precision, rate in getattr(gpu, table).items()}
