"""Explanations as text: tables for people, JSON and CSV for programs, HTML for notebooks."""

import math
from typing import Any, Final

from estimator.display.csv_lines import csv_lines
from estimator.display.estimates import (
    ENERGY_UNITS,
    POWER_UNITS,
    PREDICTED,
    TIME_UNITS,
    UNKNOWN,
    aligned,
    printable,
    result_document,
    unknown_lines,
    with_spread,
)
from estimator.display.pages import table_html
from estimator.domain import TOLERATED_FACTOR
from estimator.questions.explanation import Explanation, KernelExplanation, by_family

KERNEL_FIELDS: Final = (
    "operator", "family", "count", "time_s", "time_share", "energy_j", "energy_share", "limit", "ideal_s", "fixed_s", "intensity",
    "roof_share", "group", "excess", "excess_field", "origin",
)  # fmt: skip
"""Plain fields of an explained kernel; `limits` and `phases_s` are mappings."""


def explanation_document(answer: Explanation) -> dict[str, Any]:
    """The explanation as JSON data."""
    summary = {name: value for name, value in result_document(answer.result).items() if name != "kernels"}
    return {
        **summary,
        "gpu": answer.result.gpu,
        "gpu_s": answer.result.gpu_s,
        "host_s": answer.result.host_s,
        "launch_bound_share": answer.result.launch_bound_share,
        "waiting_s": answer.waiting_s,
        "waiting_j": _known(answer.waiting_j),
        "capped_s": answer.capped_s,
        "limits_s": dict(answer.limits_s),
        "energy_parts_j": {name: _known(value) for name, value in answer.energy_parts_j.items()},
        "families": {name: {"time_s": t, "energy_j": _known(e)} for name, (t, e) in by_family(answer.kernels).items()},
        "kernels": [_kernel_document(kernel) for kernel in answer.kernels],
    }


def _kernel_document(kernel: KernelExplanation) -> dict[str, Any]:
    plain = {name: _known(getattr(kernel, name)) for name in KERNEL_FIELDS}
    return {**plain, "limits": dict(kernel.limits), "phases_s": dict(kernel.phases_s)}


def explanation_csv(answer: Explanation) -> str:
    """A line for every kernel: its fields, then the share of its time by limit."""
    limits = list(answer.limits_s)
    rows = ([*(getattr(kernel, name) for name in KERNEL_FIELDS), *(kernel.limits[name] for name in limits)] for kernel in answer.kernels)
    return csv_lines(rows, header=[*KERNEL_FIELDS, *(f"share {name}" for name in limits)])


def explanation_text(answer: Explanation, most: int | None, simulated: bool) -> str:
    """Tables: the result, what limits, what costs energy, and the longest kernels (`most`; None: all)."""
    result = answer.result
    origin = ", fitted on a simulated board" if simulated else ""
    blocks = [
        f"{printable(result.workload)} on {result.gpu} at {result.sm_clock_mhz:g} MHz (bundle {result.bundle}{origin})",
        "  "
        + ", ".join(
            (
                with_spread(result.latency_s, result.latency_s_std, TIME_UNITS),
                with_spread(result.power_w, result.power_w_std, POWER_UNITS),
                with_spread(result.energy_j, result.energy_j_std, ENERGY_UNITS),
            )
        ),
        *unknown_lines([{name: getattr(result, name) for name in PREDICTED}]).splitlines(),
        "time: what limits\n" + _time_table(answer).rstrip("\n"),
    ]
    if answer.energy_parts_j:
        blocks.append("energy: what draws\n" + _energy_table(answer).rstrip("\n"))
    blocks.append("kernels, the longest first\n" + _kernel_table(answer, most).rstrip("\n"))
    return "\n".join(blocks) + "\n"


def _time_table(answer: Explanation) -> str:
    total = answer.result.latency_s
    rows = [[_share(value / total), with_spread(value, math.nan, TIME_UNITS), name] for name, value in _sorted(answer.limits_s)]
    if answer.waiting_s > LEAST_SHARE * total:
        rows.append(
            [_share(answer.waiting_s / total), with_spread(answer.waiting_s, math.nan, TIME_UNITS), "waiting for the host's launches"]
        )
    if answer.capped_s > LEAST_SHARE * total:
        capped = with_spread(answer.capped_s, math.nan, TIME_UNITS)
        asked, settled = answer.result.asked_clock_mhz, answer.result.sm_clock_mhz
        rows.append([_share(answer.capped_s / total), capped, f"of these by the power limit: {settled:.0f} instead of {asked:g} MHz"])
    return aligned([["share", "time", ""], *rows], left_columns=(2,))


LEAST_SHARE: Final = 5e-4
"""Parts below this are not worth a line."""


def _energy_table(answer: Explanation) -> str:
    total = answer.result.energy_j
    rows = [[_share(value / total), with_spread(value, math.nan, ENERGY_UNITS), name] for name, value in _sorted(answer.energy_parts_j)]
    return aligned([["share", "energy", ""], *rows], left_columns=(2,))


def _sorted(parts: Any) -> list[tuple[str, float]]:
    total = sum(parts.values())
    return sorted(((name, value) for name, value in parts.items() if value > LEAST_SHARE * total), key=lambda item: -item[1])


def _kernel_table(answer: Explanation, most: int | None) -> str:
    shown = answer.kernels if most is None else answer.kernels[:most]
    rows = [["time", "energy", "count", "all launches", "limited by", "ideal", "fixed", "of roof", "outside", "kernel"]]
    for kernel in shown:
        outside = f"{kernel.excess:.1f}× {kernel.excess_field}" if kernel.excess > TOLERATED_FACTOR else ""
        rows.append(
            [
                _share(kernel.time_share),
                _share(kernel.energy_share),
                f"{kernel.count:g}",
                with_spread(kernel.time_s, math.nan, TIME_UNITS),
                f"{kernel.limit} {kernel.limits[kernel.limit]:.0%}",
                f"{kernel.ideal_s / kernel.time_s:.0%}" if kernel.time_s else UNKNOWN,
                f"{kernel.fixed_s / kernel.time_s:.0%}" if kernel.time_s else UNKNOWN,
                f"{kernel.roof_share:.0%}" if math.isfinite(kernel.roof_share) else UNKNOWN,
                outside if kernel.group is not None else "no coefficients",
                kernel.operator,
            ]
        )
    rest = answer.kernels[len(shown) :]
    left = sum(kernel.time_share for kernel in rest)
    more = f"  … {len(rest)} more kernels with {left:.1%} of the time (--kernels all)\n" if rest else ""
    return aligned(rows, left_columns={4, len(rows[0]) - 1}) + more


def kernels_html(answer: Explanation, most: int | None = None) -> str:
    """The longest kernels as an HTML table."""
    head = ["kernel", "count", "time [s]", "share", "energy [J]", "limited by", "ideal / time", "of roof", "outside"]
    rows = [
        [
            k.operator, k.count, k.time_s, k.time_share, k.energy_j, k.limit, k.ideal_s / k.time_s if k.time_s else math.nan, k.roof_share,
            f"{k.excess:.1f}× {k.excess_field}" if k.excess > TOLERATED_FACTOR else "",
        ]
        for k in answer.kernels[:most]
    ]  # fmt: skip
    return table_html("kernels, the longest first", head, rows)


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else UNKNOWN


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
