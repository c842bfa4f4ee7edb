"""Estimates as text: tables for people, JSON and CSV for programs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from estimator.questions.estimates import Estimate, KernelEstimate

TIME_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
POWER_UNITS: Final = ((1.0, "W"),)
ENERGY_UNITS: Final = ((1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"), (1e-6, "µJ"), (1e-9, "nJ"))

SUMMARY_FIELDS: Final = (
    "workload", "bundle", "sm_clock_mhz", "latency_s", "latency_s_std", "power_w", "power_w_std", "energy_j", "energy_j_std",
    "asked_clock_mhz", "gpu_s", "sm_clock_mhz_low", "sm_clock_mhz_high", "latency_s_low", "latency_s_high", "power_w_low", "power_w_high",
    "energy_j_low", "energy_j_high",
)  # fmt: skip
"""Fields of one result, besides kernels and warnings."""

PREDICTED: Final = ("latency_s", "latency_s_std", "power_w", "power_w_std", "energy_j", "energy_j_std")

KERNEL_FIELDS: Final = ("operator", "count", "latency_s", "power_w", "energy_j")
SIGNIFICANT_DIGITS: Final = 4
LEAST_HUNDRED: Final = 99.5
"""From here on two significant digits would need an exponent."""
MOST_WHOLE_DIGITS: Final = 9
"""A number with more digits before the point is written with an exponent."""
LEAST_PLAIN: Final = 0.01
"""Below this, in the smallest unit, fewer than two significant digits would be left of a number without an exponent."""
UNKNOWN: Final = "–"


NO_ERRORS: Final = "the bundle states no uncertainty: it holds no errors of rows outside its fit"
NO_ERRORS_OF: Final = "the bundle states no uncertainty of {0}: it holds no errors of {0} of rows outside its fit"
NO_POWER: Final = "the bundle has no power coefficients"


def unknown_values(values: Mapping[str, float]) -> dict[str, str]:
    """Why numbers among latency_s, power_w, energy_j and their `…_std` are unknown: field → reason; empty where all are known."""
    unknown = [name for name, value in values.items() if not math.isfinite(value)]
    powerless = "power_w" in unknown
    latency, power = (math.isfinite(values.get(name, math.nan)) for name in ("latency_s_std", "power_w_std"))
    errors = NO_ERRORS if latency == power or powerless else NO_ERRORS_OF.format("power" if latency else "latency")
    return {name: NO_POWER if powerless and not name.startswith("latency") else errors for name in unknown}


def result_document(result: "Estimate") -> dict[str, Any]:
    """One result as JSON data; a number that is unknown is null, and `unknown` says why."""
    return {
        **{name: _known(getattr(result, name)) for name in SUMMARY_FIELDS},
        "kernels": [_kernel_document(kernel) for kernel in result.kernels],
        "warnings": list(result.warnings),
        "notes": list(result.notes),
        "unknown": unknown_values({name: getattr(result, name) for name in PREDICTED}),
        "validity": result.validity,
    }


def _kernel_document(kernel: "KernelEstimate") -> dict[str, Any]:
    values = {name: _known(getattr(kernel, name)) for name in KERNEL_FIELDS}
    utilization = {module: _known(share) for module, share in kernel.utilization.items()}
    return {**values, "utilization": utilization, "outside_validity": kernel.outside_validity}


def json_text(results: Sequence["Estimate"]) -> str:
    """One JSON document: an object for one result, a list for several."""
    import json

    documents = [result_document(result) for result in results]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=1, allow_nan=False) + "\n"


def csv_text(results: Sequence["Estimate"]) -> str:
    """A line per result under a header; unknown numbers are empty, warnings are joined by "; "."""
    from estimator.display.csv_lines import csv_lines

    rows = ([*(getattr(result, name) for name in SUMMARY_FIELDS), "; ".join(result.warnings), result.validity] for result in results)
    return csv_lines(rows, header=[*SUMMARY_FIELDS, "warnings", "validity"])


def table_text(results: Sequence["Estimate"], kernels: int | None, simulated: bool) -> str:
    """Tables for people: per workload a line for every clock and, where `kernels` is not 0, the kernels by time.

    kernels: how many to show, None for all.  simulated: whether the bundle was fitted on a simulated board.
    """
    blocks = []
    for workload in dict.fromkeys(result.workload for result in results):
        own = [result for result in results if result.workload == workload]
        origin = ", fitted on a simulated board" if simulated else ""
        blocks.append(f"{printable(workload)} on {own[0].gpu} (bundle {own[0].bundle}{origin})\n" + _summary(own))
        blocks.extend(_kernel_table(result, kernels) for result in own if kernels != 0)
    return "\n".join(blocks)


def clock_text(clock_mhz: float) -> str:
    """A clock for people: that of a lock as it is, the mean of a board that changes its clock to a tenth of a MHz."""
    return f"{round(clock_mhz, 1):g} MHz"


def _summary(results: Sequence["Estimate"]) -> str:
    header = ["asked", "SM clock", "latency", "power", "energy", "GPU time"]
    rows = [
        [
            f"{result.asked_clock_mhz:g}",
            clock_text(result.sm_clock_mhz),
            with_spread(result.latency_s, result.latency_s_std, TIME_UNITS),
            with_spread(result.power_w, result.power_w_std, POWER_UNITS),
            with_spread(result.energy_j, result.energy_j_std, ENERGY_UNITS),
            with_spread(result.gpu_s, math.nan, TIME_UNITS),
        ]
        for result in results
    ]
    unknown = unknown_lines({name: getattr(result, name) for name in PREDICTED} for result in results)
    return aligned([header, *rows]) + unknown + validity_lines(result.validity for result in results)


FORECAST: Final = "a forecast: the bundle was not fitted on this board as it is asked for"
OUTSIDE: Final = "outside the validity of the bundle: the warnings say of what its fit has not seen the like"


def validity_lines(found: Iterable[str]) -> str:
    """Below a table of predictions, whether any of them is a forecast or leaves what was fitted; nothing where none does."""
    seen = set(found)
    return "".join(f"  {line}\n" for kind, line in (("forecast", FORECAST), ("outside", OUTSIDE)) if kind in seen)


def unknown_lines(rows: Iterable[Mapping[str, float]]) -> str:
    """Below a table of predictions, each reason for a missing number or ± once; nothing where all are known."""
    reasons = {reason: None for row in rows for reason in unknown_values(row).values()}
    return "".join(f"  {reason}\n" for reason in reasons)


def _kernel_table(result: "Estimate", most: int | None) -> str:
    """Kernels of one result, the longest total time first."""
    ranked = sorted(result.kernels, key=lambda kernel: -kernel.count * kernel.latency_s)
    shown = ranked if most is None else ranked[:most]
    total = sum(kernel.count * kernel.latency_s for kernel in ranked) or math.nan
    modules = list(ranked[0].utilization) if ranked else []
    rows = [["share", "count", "one launch", "power", "energy", *(f"{module} %" for module in modules), "kernel"]]
    for kernel in shown:
        rows.append(
            [
                f"{kernel.count * kernel.latency_s / total:.1%}",
                f"{kernel.count:g}",
                with_spread(kernel.latency_s, math.nan, TIME_UNITS),
                with_spread(kernel.power_w, math.nan, POWER_UNITS),
                with_spread(kernel.energy_j, math.nan, ENERGY_UNITS),
                *(f"{100.0 * share:.0f}" for share in kernel.utilization.values()),
                kernel.operator + (MARK if kernel.outside_validity else ""),
            ]
        )
    rest = ranked[len(shown) :]
    left = sum(kernel.count * kernel.latency_s for kernel in rest) / total
    more = f"  … {len(rest)} more kernels with {left:.1%} of the time (--kernels all)\n" if rest else ""
    marked = f"  {MARK.strip()} the fit has seen no kernel like it\n" if any(kernel.outside_validity for kernel in shown) else ""
    return f"kernels at {clock_text(result.sm_clock_mhz)}\n" + aligned(rows, left_columns={len(rows[0]) - 1}) + more + marked


MARK: Final = " *"


def aligned(rows: Sequence[Sequence[str]], left_columns: Iterable[int] = ()) -> str:
    """Rows of text in columns, to the right but for `left_columns`, two blanks between them."""
    left = set(left_columns)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  "
        + "  ".join(cell.ljust(width) if i in left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "".join(line.rstrip() + "\n" for line in lines)


def printable(text: str) -> str:
    """A text from a file on one line of a terminal: control characters, which could move its cursor, become "?"."""
    return "".join(character if character.isprintable() else "?" for character in text)


def with_spread(value: float, std: float, units: Sequence[tuple[float, str]]) -> str:
    """A quantity in the unit that suits its size, with its standard deviation where it is known."""
    if not math.isfinite(value):
        return UNKNOWN
    scale, unit = next((pair for pair in units if abs(value) >= pair[0]), units[-1] if value else units[0])
    scaled = value / scale
    whole_digits = max(1, math.floor(math.log10(abs(scaled))) + 1) if scaled else 1
    if whole_digits > MOST_WHOLE_DIGITS:
        return f"{scaled:.{SIGNIFICANT_DIGITS - 1}e} {unit}"
    if 0.0 < abs(scaled) < LEAST_PLAIN:
        spread = f" ± {std / scale:.1e}" if math.isfinite(std) else ""
        return f"{scaled:.{SIGNIFICANT_DIGITS - 1}e}{spread} {unit}"
    decimals = max(0, SIGNIFICANT_DIGITS - whole_digits)
    spread = f" ± {std / scale:{'.2g' if std / scale < LEAST_HUNDRED else '.0f'}}" if math.isfinite(std) else ""
    return f"{scaled:.{decimals}f}{spread} {unit}"


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
