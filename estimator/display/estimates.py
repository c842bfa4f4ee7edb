"""Estimates and their explanations: tables for people, JSON and CSV for programs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from estimator.display.sweeps import TOO_LARGE
from estimator.display.text import (
    ENERGY_UNITS,
    PREDICTED,
    TIME_UNITS,
    UNKNOWN,
    Document,
    Units,
    aligned,
    csv_lines,
    fields_of,
    indented,
    percent,
    quantity_texts,
    seconds,
    together,
    with_uncertainty,
)
from estimator.questions.sweeping import VALUES
from estimator.vocabulary.documents import printable
from estimator.vocabulary.workload import FAMILY_FIELDS

if TYPE_CHECKING:
    from estimator.questions.estimates import Estimate, KernelEstimate
    from estimator.questions.explanation import Explanation, KernelExplanation

SUMMARY_FIELDS: Final = ("workload", "bundle", "gpu", "gpus", "validity", "fits", *VALUES)
"""Fields of one result, without kernels and warnings."""

KERNEL_FIELDS: Final = ("operator", "count", "latency_s", "power_w", "energy_j", "utilization", "outside_validity")
MARK: Final = " *"


def result_document(result: "Estimate") -> Document:
    """One result as JSON data."""
    return {
        **fields_of(result, SUMMARY_FIELDS),
        "kernels": [fields_of(kernel, KERNEL_FIELDS) for kernel in result.kernels],
        "warnings": result.warnings,
        "notes": result.notes,
    }


def kernel_table(result: "Estimate", most: int | None) -> str:
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
                *quantity_texts(fields_of(kernel, KERNEL_FIELDS)),
                *(f"{100.0 * share:.0f}" for share in kernel.utilization.values()),
                _named(kernel),
            ]
        )
    left = sum(kernel.count * kernel.latency_s for kernel in ranked[len(shown) :]) / total
    table = aligned(rows, left_columns={len(rows[0]) - 1}) + _below(shown, len(ranked), left)
    asked = f"{printable(result.workload)} on {result.gpu} at {round(result.sm_clock_mhz, 1):g} MHz (bundle {result.bundle})"
    return f"kernels of {asked}\n{table}"


def _named(kernel: "KernelEstimate | KernelExplanation") -> str:
    """A kernel with the names of its sizes, those that are not 0: "gemm.linear bf16 batch=1 m=512 n=768 k=3072", perhaps with MARK."""
    name, _, sizes = kernel.operator.rpartition(" ")
    named = zip(FAMILY_FIELDS[name.partition(".")[0]], sizes.split("x"), strict=True)
    return " ".join([name, *(f"{field}={size}" for field, size in named if size != "0")]) + MARK * kernel.outside_validity


def _below(shown: "Sequence[KernelEstimate | KernelExplanation]", count: int, share: float) -> str:
    """Lines below the first of so many kernels: on the others, with their share of the time, and on MARK."""
    rest = count - len(shown)
    more = f"  … {rest} more kernels with {share:.1%} of the time (--kernels all)\n" if rest else ""
    return more + f"  {MARK.strip()} the fit has seen no kernel like it\n" * any(kernel.outside_validity for kernel in shown)


# Explanations ---------------------------------------------------------------------------------------------------------

EXPLAINED_FIELDS: Final = ("operator", "count", "time_s", "time_share", "energy_j", "limit", "ideal_s", "outside_validity")
"""Plain fields of an explained kernel; `limits` and `phases_s` are mappings."""

EXPLAINED_HEADS: Final = ("time", "energy", "count", "all launches", "limited by", "ideal", "kernel")

LEAST_SHARE: Final = 5e-4
"""Least share of a part that gets a line."""


def explanation_document(answer: "Explanation") -> Document:
    """The explanation as JSON data."""
    result, summary = answer.result, result_document(answer.result)
    del summary["kernels"]
    return {
        **summary,
        "host_s": result.host_s,
        **fields_of(answer, ("waiting_s", "capped_s", "limits_s", "energy_parts_j")),
        "kernels": [fields_of(kernel, (*EXPLAINED_FIELDS, "limits", "phases_s")) for kernel in answer.kernels],
    }


def explanation_csv(answer: "Explanation") -> str:
    """CSV with a line for every kernel: its fields, the share of its time by limit, then what the answer rests on."""
    limits, basis = list(answer.limits_s), ("gpus", "bundle", "gpu", "validity")
    own = fields_of(answer.result, basis).values()
    rows = ([*fields_of(kernel, EXPLAINED_FIELDS).values(), *(kernel.limits[name] for name in limits), *own] for kernel in answer.kernels)
    return csv_lines(rows, header=[*EXPLAINED_FIELDS, *(f"share {name}" for name in limits), *basis])


def explanation_text(answer: "Explanation", most: int | None, simulated: bool) -> str:
    """Tables of the result, the limits, the parts of energy, and the longest kernels (`most`; None: all)."""
    result, kernels = answer.result, answer.kernels
    shown = kernels[:most]
    fitted = f"bundle {result.bundle}{', fitted on a simulated board' if simulated else ''}"
    too_large = "" if result.fits else f": {TOO_LARGE.format(result.gpu)}"
    text = f"{printable(result.workload)} on {result.gpu} at {result.sm_clock_mhz:g} MHz ({fitted}, {result.validity}){too_large}\n"
    text += f"  {', '.join(quantity_texts(fields_of(result, PREDICTED)))}\n"
    text += indented(together([result.gpus]))
    clocks = f"{result.sm_clock_mhz:.0f} instead of {result.asked_clock_mhz:g} MHz"
    more = {"waiting for the host's launches": answer.waiting_s, f"of these by the power limit: {clocks}": answer.capped_s}
    text += "time: what limits\n" + _parts(answer.limits_s, result.latency_s, "time", TIME_UNITS, more)
    if answer.energy_parts_j:
        text += "energy: what draws\n" + _parts(answer.energy_parts_j, result.energy_j, "energy", ENERGY_UNITS, {})
    joule = sum(kernel.energy_j for kernel in kernels) or math.nan
    table = aligned([EXPLAINED_HEADS, *(_explained_cells(kernel, joule) for kernel in shown)], left_columns={4, len(EXPLAINED_HEADS) - 1})
    left = sum(kernel.time_share for kernel in kernels[len(shown) :])
    return f"{text}kernels, the longest first\n{table}" + _below(shown, len(kernels), left)


def _parts(parts: Mapping[str, float], total: float, head: str, units: Units, more: Mapping[str, float]) -> str:
    """A table of parts above LEAST_SHARE, the largest first, then `more`."""
    own = sum(parts.values())
    ranked = sorted((item for item in parts.items() if abs(item[1]) > LEAST_SHARE * own), key=lambda item: -item[1])
    ranked += [item for item in more.items() if item[1] > LEAST_SHARE * total]
    rows = [[percent(value / total), with_uncertainty(value, math.nan, units), name] for name, value in ranked]
    return aligned([["share", head, ""], *rows], left_columns=(2,))


def _explained_cells(kernel: "KernelExplanation", total_j: float) -> list[str]:
    """Texts of an explained kernel under EXPLAINED_HEADS; total_j: energy of all kernels."""
    return [
        percent(kernel.time_share),
        percent(kernel.energy_j / total_j),
        f"{kernel.count:g}",
        seconds(kernel.time_s),
        f"{kernel.limit} {kernel.limits[kernel.limit]:.0%}",
        f"{kernel.ideal_s / kernel.time_s:.0%}" if kernel.time_s else UNKNOWN,
        _named(kernel),
    ]
