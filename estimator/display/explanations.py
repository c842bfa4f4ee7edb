"""Explanations as text: tables for people, JSON and CSV for programs."""

import math
from collections.abc import Mapping
from typing import Final

from estimator.display.estimates import bundle_text, more_kernels, result_document
from estimator.display.text import (
    ENERGY_UNITS,
    TIME_UNITS,
    UNKNOWN,
    Document,
    Units,
    aligned,
    csv_lines,
    percent,
    printable,
    quantity_texts,
    reason_lines,
    seconds,
    values_of,
    with_uncertainty,
)
from estimator.questions.explanation import Explanation, KernelExplanation, by_family
from estimator.uncertainty.validity import TOLERATED_FACTOR

KERNEL_FIELDS: Final = (
    "operator", "family", "count", "time_s", "time_share", "energy_j", "energy_share", "limit", "ideal_s", "fixed_s", "intensity",
    "roof_share", "group", "excess", "excess_field", "origin",
)  # fmt: skip
"""Plain fields of an explained kernel; `limits` and `phases_s` are mappings."""

LEAST_SHARE: Final = 5e-4
"""Least share of a part that gets a line."""


def explanation_document(answer: Explanation) -> Document:
    """The explanation as JSON data."""
    result, summary = answer.result, result_document(answer.result)
    del summary["kernels"]
    return {
        **summary,
        **{name: getattr(result, name) for name in ("gpu", "gpu_s", "host_s", "launch_bound_share")},
        **{name: getattr(answer, name) for name in ("waiting_s", "waiting_j", "capped_s")},
        "limits_s": answer.limits_s,
        "energy_parts_j": answer.energy_parts_j,
        "families": {name: {"time_s": t, "energy_j": e} for name, (t, e) in by_family(answer.kernels).items()},
        "kernels": [{name: getattr(kernel, name) for name in (*KERNEL_FIELDS, "limits", "phases_s")} for kernel in answer.kernels],
    }


def explanation_csv(answer: Explanation) -> str:
    """CSV with a line for every kernel: its fields, then the share of its time by limit."""
    limits = list(answer.limits_s)
    rows = ([*(getattr(kernel, name) for name in KERNEL_FIELDS), *(kernel.limits[name] for name in limits)] for kernel in answer.kernels)
    return csv_lines(rows, header=[*KERNEL_FIELDS, *(f"share {name}" for name in limits)])


def explanation_text(answer: Explanation, most: int | None, simulated: bool) -> str:
    """Tables of the result, the limits, the parts of energy, and the longest kernels (`most`; None: all)."""
    result = answer.result
    text = f"{printable(result.workload)} on {result.gpu} at {result.sm_clock_mhz:g} MHz ({bundle_text(result, simulated)})\n"
    text += f"  {', '.join(quantity_texts(values_of(result)))}\n" + reason_lines([values_of(result)])
    clocks = f"{result.sm_clock_mhz:.0f} instead of {result.asked_clock_mhz:g} MHz"
    more = {"waiting for the host's launches": answer.waiting_s, f"of these by the power limit: {clocks}": answer.capped_s}
    text += "time: what limits\n" + _parts(answer.limits_s, result.latency_s, "time", TIME_UNITS, more)
    if answer.energy_parts_j:
        text += "energy: what draws\n" + _parts(answer.energy_parts_j, result.energy_j, "energy", ENERGY_UNITS, {})
    return text + "kernels, the longest first\n" + _kernel_table(answer, most)


def _parts(parts: Mapping[str, float], total: float, head: str, units: Units, more: Mapping[str, float]) -> str:
    """A table of parts above LEAST_SHARE, the largest first, then `more`."""
    own = sum(parts.values())
    ranked = sorted((item for item in parts.items() if item[1] > LEAST_SHARE * own), key=lambda item: -item[1])
    ranked += [item for item in more.items() if item[1] > LEAST_SHARE * total]
    rows = [[percent(value / total), with_uncertainty(value, math.nan, units), name] for name, value in ranked]
    return aligned([["share", head, ""], *rows], left_columns=(2,))


def outside_text(kernel: KernelExplanation) -> str:
    """The distance of a kernel outside the fitted range, if it is large enough to report."""
    return f"{kernel.excess:.1f}× {kernel.excess_field}" if kernel.excess > TOLERATED_FACTOR else ""


def _kernel_table(answer: Explanation, most: int | None) -> str:
    shown = answer.kernels[:most]
    rows = [["time", "energy", "count", "all launches", "limited by", "ideal", "fixed", "of roof", "outside", "kernel"]]
    for kernel in shown:
        rows.append(
            [
                percent(kernel.time_share),
                percent(kernel.energy_share),
                f"{kernel.count:g}",
                seconds(kernel.time_s),
                f"{kernel.limit} {kernel.limits[kernel.limit]:.0%}",
                *(f"{part / kernel.time_s:.0%}" if kernel.time_s else UNKNOWN for part in (kernel.ideal_s, kernel.fixed_s)),
                f"{kernel.roof_share:.0%}" if math.isfinite(kernel.roof_share) else UNKNOWN,
                outside_text(kernel) if kernel.group is not None else "no coefficients",
                kernel.operator,
            ]
        )
    rest = answer.kernels[len(shown) :]
    return aligned(rows, left_columns={4, len(rows[0]) - 1}) + more_kernels(len(rest), sum(kernel.time_share for kernel in rest))
