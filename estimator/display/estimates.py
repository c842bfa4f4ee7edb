"""Estimates as text: tables for people, JSON and CSV for programs."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from estimator.display.text import (
    Document,
    aligned,
    csv_lines,
    json_text,
    printable,
    quantity_texts,
    reason_lines,
    seconds,
    unknown_values,
    values_of,
)

if TYPE_CHECKING:
    from estimator.questions.estimates import Estimate

SUMMARY_FIELDS: Final = (
    "workload", "bundle", "sm_clock_mhz", "latency_s", "latency_s_std", "power_w", "power_w_std", "energy_j", "energy_j_std",
    "asked_clock_mhz", "gpu_s", "sm_clock_mhz_low", "sm_clock_mhz_high", "latency_s_low", "latency_s_high", "power_w_low", "power_w_high",
    "energy_j_low", "energy_j_high",
)  # fmt: skip
"""Fields of one result, without kernels and warnings."""

KERNEL_FIELDS: Final = ("operator", "count", "latency_s", "power_w", "energy_j")
KERNEL_DETAILS: Final = ("utilization", "outside_validity")
MARK: Final = " *"


def result_document(result: "Estimate") -> Document:
    """One result as JSON data; `unknown` holds the reasons of unknown numbers."""
    return {
        **{name: getattr(result, name) for name in SUMMARY_FIELDS},
        "kernels": [{name: getattr(kernel, name) for name in (*KERNEL_FIELDS, *KERNEL_DETAILS)} for kernel in result.kernels],
        "warnings": result.warnings,
        "notes": result.notes,
        "unknown": unknown_values(values_of(result)),
        "validity": result.validity,
    }


def results_json(results: Sequence["Estimate"]) -> str:
    """One JSON document: an object for one result, a list for several."""
    documents = [result_document(result) for result in results]
    return json_text(documents[0] if len(documents) == 1 else documents)


def results_csv(results: Sequence["Estimate"]) -> str:
    """CSV with a header and a line per result; unknown numbers are empty, warnings are joined by "; "."""
    rows = ([*(getattr(result, name) for name in SUMMARY_FIELDS), "; ".join(result.warnings), result.validity] for result in results)
    return csv_lines(rows, header=[*SUMMARY_FIELDS, "warnings", "validity"])


def results_table(results: Sequence["Estimate"], kernels: int | None, simulated: bool) -> str:
    """Tables for people: per workload a line for every clock and, if `kernels` is not 0, the kernels by time.

    kernels: number to show, None for all.  simulated: whether the bundle was fitted on a simulated board.
    """
    blocks = []
    for workload in dict.fromkeys(result.workload for result in results):
        own = [result for result in results if result.workload == workload]
        blocks.append(f"{printable(workload)} on {own[0].gpu} ({bundle_text(own[0], simulated)})\n" + _summary(own))
        blocks.extend(_kernel_table(result, kernels) for result in own if kernels != 0)
    return "\n".join(blocks)


def bundle_text(result: "Estimate", simulated: bool) -> str:
    """A line that names the bundle of a result."""
    return f"bundle {result.bundle}{', fitted on a simulated board' if simulated else ''}"


def clock_text(clock_mhz: float) -> str:
    """A clock for people: a locked clock exactly, the mean of a changing clock to a tenth of a MHz."""
    return f"{round(clock_mhz, 1):g} MHz"


def _summary(results: Sequence["Estimate"]) -> str:
    rows = [["asked", "SM clock", "latency", "power", "energy", "GPU time"]]
    for one in results:
        rows.append([f"{one.asked_clock_mhz:g}", clock_text(one.sm_clock_mhz), *quantity_texts(values_of(one)), seconds(one.gpu_s)])
    return aligned(rows) + reason_lines(map(values_of, results), (result.validity for result in results))


def _kernel_table(result: "Estimate", most: int | None) -> str:
    """Kernels of one result, the longest total time first."""
    ranked = sorted(result.kernels, key=lambda kernel: -kernel.count * kernel.latency_s)
    shown = ranked[:most]
    total = sum(kernel.count * kernel.latency_s for kernel in ranked) or math.nan
    modules = list(ranked[0].utilization) if ranked else []
    rows = [["share", "count", "one launch", "power", "energy", *(f"{module} %" for module in modules), "kernel"]]
    for kernel in shown:
        rows.append(
            [
                f"{kernel.count * kernel.latency_s / total:.1%}",
                f"{kernel.count:g}",
                *quantity_texts({name: getattr(kernel, name) for name in KERNEL_FIELDS}),
                *(f"{100.0 * share:.0f}" for share in kernel.utilization.values()),
                kernel.operator + MARK * kernel.outside_validity,
            ]
        )
    left = sum(kernel.count * kernel.latency_s for kernel in ranked[len(shown) :]) / total
    marked = f"  {MARK.strip()} the fit has seen no kernel like it\n" if any(kernel.outside_validity for kernel in shown) else ""
    table = aligned(rows, left_columns={len(rows[0]) - 1}) + more_kernels(len(ranked) - len(shown), left)
    return f"kernels at {clock_text(result.sm_clock_mhz)}\n{table}{marked}"


def more_kernels(rest: int, share: float) -> str:
    """A line about the kernels that a table leaves out."""
    return f"  … {rest} more kernels with {share:.1%} of the time (--kernels all)\n" if rest else ""
