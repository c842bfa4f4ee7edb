"""Charts of answers: a quantity over the clock with its band, the front between latency and energy, where time and energy go.

Each is one inline SVG; a page holds several.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from estimator.display.charts import Band, Series, axis_over, line_svg, scatter_svg
from estimator.display.explanations import kernels_html
from estimator.display.pages import figure_html, page_html, section_html, table_html
from estimator.display.stacks import HIDDEN, Bar, Piece, stack_svg
from estimator.display.sweeps import sweep_columns
from estimator.power import PARTS
from estimator.questions.choosing import energy_per_request_j, pareto_front
from estimator.questions.explanation import LIMITS, Explanation
from estimator.questions.points import LABELS, VALUES, Sweep

MOST_LINES: Final = 6
"""Cases that one chart tells apart; more are left out, and the caption says so."""

MOST_TABLE_ROWS: Final = 500
MILLISECONDS: Final = 1e-3

CLOCK_CHARTS: Final = {
    "energy": ("energy_j", "energy of an iteration [J]"),
    "latency": ("latency_s", "latency [s]"),
    "power": ("power_w", "power [W]"),
}


def clock_svg(points: Sweep, quantity: str) -> str:
    """A quantity ("energy", "latency", "power") over the asked clock, a line with its 90 % band for each of the first MOST_LINES cases."""
    column, label = CLOCK_CHARTS[quantity]
    series, bands, edges = [], [], []
    for number in points.present()[:MOST_LINES]:  # cases that were left out have no point
        own = points.select(points.case == number)
        own = own.select(np.argsort(own.asked_clock_mhz, kind="stable"))
        value, low, high = (getattr(own, name) for name in (column, f"{column}_low", f"{column}_high"))
        series.append(Series(name=case_name(points, number), x=own.asked_clock_mhz, y=value))
        bands.append(Band(x=own.asked_clock_mhz, low=low, high=high))
        edges += [value, low, high]
    x = axis_over("asked SM clock [MHz]", [points.asked_clock_mhz], logarithmic=False)
    y = axis_over(label, edges, logarithmic=False)
    return line_svg(f"{quantity} over the clock", f"{label} over the asked SM clock with 90 % bands", series, x, y, bands=bands)


def front_svg(points: Sweep) -> str:
    """Energy over latency of every point, and the front that no other beats."""
    front, energy = pareto_front(points), energy_per_request_j(points)
    series = [
        Series(name="points", x=points.latency_s, y=energy),
        Series(name="front", x=points.latency_s[front], y=energy[front]),
    ]
    x = axis_over("latency of an iteration [s]", [points.latency_s], logarithmic=False)
    whose = "a request" if all(case.batch for case in points.cases) else "an iteration"
    y = axis_over(f"energy of {whose} [J]", [energy], logarithmic=False)
    return scatter_svg(
        "latency and energy", "energy over latency of every point; those on the front stand out", series, x, y, diagonal=False
    )


def case_name(points: Sweep, number: int) -> str:
    """What tells a case from the others, in a few words."""
    case = points.cases[number]
    told = [name for name in LABELS if len({getattr(points.cases[other], name) for other in points.present()}) > 1]
    short = {"batch": "b", "sequence": "s"}
    words = [f"{short.get(name, '')}{getattr(case, name)}" for name in told if name != "workload" or not {"batch", "sequence"} & set(told)]
    return " ".join(word for word in words if word) or case.workload


def time_svg(answer: Explanation) -> str:
    """Time by what limits and energy by what draws, as two bars of equal length."""
    time = [*answer.limits_s.values(), answer.waiting_s]
    names = [*LIMITS, "waiting for the host"]
    total = sum(time) or 1.0
    pieces = [
        _piece(value / total, i, f"{name}: {value:.4g} s, {value / total:.1%}")
        for i, (name, value) in enumerate(zip(names, time, strict=True))
    ]
    return stack_svg(
        "time by what limits", "share of the latency by what limits it", [Bar(label="time", pieces=pieces)], names, "share of the latency"
    )


def module_svg(answer: Explanation) -> str:
    """Energy of the iteration by module."""
    parts = [max(answer.energy_parts_j.get(name, 0.0), 0.0) for name in PARTS]
    total = sum(parts) or 1.0
    pieces = [
        _piece(value / total, i, f"{name}: {value:.4g} J, {value / total:.1%}")
        for i, (name, value) in enumerate(zip(PARTS, parts, strict=True))
    ]
    return stack_svg(
        "energy by module", "share of the energy by what draws it", [Bar(label="energy", pieces=pieces)], PARTS, "share of the energy"
    )


def timeline_svg(answer: Explanation) -> str:
    """Kernels side by side as long as all their launches take, in the order of the workload, coloured by what limits them."""
    order = {kernel.operator: place for place, kernel in enumerate(answer.result.kernels)}
    kernels = sorted(answer.kernels, key=lambda kernel: order[kernel.operator])
    bars = []
    for family in dict.fromkeys(["all", *(kernel.family for kernel in kernels)]):
        pieces = []
        for kernel in kernels:
            mine = family in ("all", kernel.family)
            tip = f"{kernel.operator} ×{kernel.count:g}: {kernel.time_s:.4g} s, {kernel.limit}"
            pieces.append(_piece(kernel.time_s / MILLISECONDS, LIMITS.index(kernel.limit) if mine else HIDDEN, tip))
        bars.append(Bar(label=family, pieces=pieces))
    return stack_svg(
        "timeline",
        "kernels in the order of the workload, all launches of each together, by what limits them",
        bars,
        LIMITS,
        "GPU time [ms]",
    )


def _piece(length: float, part: int, tip: str) -> Piece:
    return Piece(length=max(length, 0.0), part=part, tip=tip)


SWEEP_CHARTS: Final[dict[str, Callable[[Sweep], str]]] = {
    "energy": lambda points: clock_svg(points, "energy"),
    "latency": lambda points: clock_svg(points, "latency"),
    "power": lambda points: clock_svg(points, "power"),
    "front": front_svg,
}
EXPLANATION_CHARTS: Final[dict[str, Callable[[Explanation], str]]] = {"timeline": timeline_svg, "time": time_svg, "modules": module_svg}


def sweep_page(points: Sweep) -> str:
    """All charts of a sweep and its points as one HTML page."""
    shown = points.present()
    about = f", the first {MOST_LINES} of {len(shown)} cases" if len(shown) > MOST_LINES else ""
    figures = "".join(
        figure_html(chart(points), f"{name}{about if name != 'front' else ''}")
        for name, chart in SWEEP_CHARTS.items()
        if _drawable(points, name)
    )
    columns = sweep_columns(points.select(np.arange(min(len(points), MOST_TABLE_ROWS))))
    names = [name for name in (*LABELS, *VALUES) if any(value not in ("", 0, None) for value in columns[name])]
    table = table_html(f"{len(points)} points", names, zip(*(columns[name] for name in names), strict=True))
    warnings = table_html("warnings", ["workload", "warning"], points.warnings)
    simulated = " (fitted on a simulated board)" if any(case.simulated for case in points.cases) else ""
    title = f"{points.cases[shown[0]].workload} on {points.cases[shown[0]].gpu}{simulated}" if shown else "sweep"
    return page_html(
        title,
        [section_html("Charts", f'<div class="charts">{figures}</div>'), section_html("Points", table), section_html("Warnings", warnings)],
    )


def _drawable(points: Sweep, name: str) -> bool:
    """Whether there is a finite number to draw."""
    needed = {"energy": "energy_j", "front": "energy_j", "latency": "latency_s", "power": "power_w"}[name]
    return bool(np.isfinite(getattr(points, needed)).any())


def explanation_page(answer: Explanation, simulated: bool) -> str:
    """All charts of an explanation and its kernels as one HTML page."""
    result = answer.result
    charts: Sequence[tuple[str, str]] = [
        (name, chart(answer)) for name, chart in EXPLANATION_CHARTS.items() if name != "modules" or answer.energy_parts_j
    ]
    figures = "".join(figure_html(svg, name) for name, svg in charts)
    fields = ("latency_s", "latency_s_std", "power_w", "power_w_std", "energy_j", "energy_j_std", "gpu_s", "launch_bound_share")
    numbers = table_html("result, SI units", ["field", "value"], [[name, getattr(result, name)] for name in fields])
    warnings = table_html(
        "warnings and notes", ["", "text"], [*(("warning", w) for w in result.warnings), *(("note", n) for n in result.notes)]
    )
    origin = " (fitted on a simulated board)" if simulated else ""
    return page_html(
        f"{result.workload} on {result.gpu} at {result.sm_clock_mhz:g} MHz{origin}",
        [
            section_html("Result", numbers),
            section_html("Where time and energy go", figures),
            section_html("Kernels", kernels_html(answer)),
            section_html("Warnings", warnings),
        ],
    )
