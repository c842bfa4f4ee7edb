"""Charts of answers: a quantity over the clock with its band, the front between latency and energy, shares of time and energy.

Each is one inline SVG; a page holds several.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from estimator.display.charts import Band, Series, axis_over, line_svg, scatter_svg
from estimator.display.estimates import EXPLAINED_HEADS, explained_cells
from estimator.display.pages import figure_html, page_html, section_html, table_html
from estimator.display.stacks import HIDDEN, Bar, Piece, stack_svg
from estimator.display.sweeps import sweep_cells
from estimator.display.text import quantity_texts, values_of
from estimator.questions.choosing import energy_per_request_j, pareto_front
from estimator.questions.explanation import LIMITS, Explanation
from estimator.questions.points import LABELS, Sweep

MOST_LINES: Final = 6
"""Most cases in one chart; more are left out, and the caption states it."""


CLOCK_CHARTS: Final = {
    "energy": ("energy_j", "energy of an iteration [J]"),
    "latency": ("latency_s", "latency [s]"),
    "power": ("power_w", "power [W]"),
}


def clock_svg(points: Sweep, quantity: str, chosen_mhz: float | None = None) -> str:
    """A chart of a quantity ("energy", "latency", "power") over the requested clock, a line with 90 % band for each of MOST_LINES cases.

    chosen_mhz: a clock that the chart marks.
    """
    column, label = CLOCK_CHARTS[quantity]
    series, bands, edges = [], [], []
    for number in points.present()[:MOST_LINES]:  # left-out cases have no point
        own = points.select(points.case == number)
        own = own.select(np.argsort(own.asked_clock_mhz, kind="stable"))
        value, low, high = (getattr(own, name) for name in (column, f"{column}_low", f"{column}_high"))
        series.append(Series(name=quantity if chosen_mhz else case_name(points, number), x=own.asked_clock_mhz, y=value))
        bands.append(Band(x=own.asked_clock_mhz, low=low, high=high))
        edges += [value, low, high]
    x = axis_over("asked SM clock [MHz]", [points.asked_clock_mhz], logarithmic=False)
    y = axis_over(label, edges, logarithmic=False)
    if chosen_mhz:
        series.append(Series(name=f"chosen: {chosen_mhz:g} MHz", x=np.full(2, chosen_mhz), y=np.array([y.low, y.high])))
    return line_svg(f"{quantity} over the clock", f"{label} over the asked SM clock with 90 % bands", series, x, y, bands=bands)


def front_svg(points: Sweep) -> str:
    """A chart of energy over latency of every point, and their Pareto front."""
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
    """Short name of a case by the labels that differ from other cases."""
    case = points.cases[number]
    told = [name for name in LABELS if len({getattr(points.cases[other], name) for other in points.present()}) > 1]
    short = {"batch": "b", "sequence": "s"}
    words = [f"{short.get(name, '')}{getattr(case, name)}" for name in told if name != "workload" or not {"batch", "sequence"} & set(told)]
    return " ".join(word for word in words if word) or case.workload


def _shares_svg(title: str, description: str, parts: Mapping[str, float], quantity: str, unit: str) -> str:
    """One bar of parts as shares of their sum."""
    total = sum(parts.values()) or 1.0
    pieces = [
        Piece(length=max(value, 0.0) / total, part=i, tip=f"{name}: {value:.4g} {unit}, {value / total:.1%}")
        for i, (name, value) in enumerate(parts.items())
    ]
    return stack_svg(title, description, [Bar(label=quantity, pieces=pieces)], list(parts), f"share of the {quantity}")


def time_svg(answer: Explanation) -> str:
    """A bar of time by limit."""
    parts = {**answer.limits_s, "waiting for the host": answer.waiting_s}
    return _shares_svg("time by what limits", "share of the latency by what limits it", parts, "time", "s")


def module_svg(answer: Explanation) -> str:
    """A bar of the iteration's energy by module."""
    parts = {name: max(value, 0.0) for name, value in answer.energy_parts_j.items()}
    return _shares_svg("energy by module", "share of the energy by what draws it", parts, "energy", "J")


def timeline_svg(answer: Explanation) -> str:
    """Kernels side by side in the order of the workload, as wide as the time of all their launches, coloured by limit."""
    order = {kernel.operator: place for place, kernel in enumerate(answer.result.kernels)}
    kernels = sorted(answer.kernels, key=lambda kernel: order[kernel.operator])
    bars = []
    for family in dict.fromkeys(["all", *(kernel.family for kernel in kernels)]):
        pieces = [
            Piece(
                length=max(kernel.time_s, 0.0) / 1e-3,
                part=LIMITS.index(kernel.limit) if family in ("all", kernel.family) else HIDDEN,
                tip=f"{kernel.operator} ×{kernel.count:g}: {kernel.time_s:.4g} s, {kernel.limit}",
            )
            for kernel in kernels
        ]
        bars.append(Bar(label=family, pieces=pieces))
    description = "kernels in the order of the workload, all launches of each together, by what limits them"
    return stack_svg("timeline", description, bars, LIMITS, "GPU time [ms]")


SWEEP_CHARTS: Final[dict[str, Callable[[Sweep], str]]] = {
    **{name: partial(clock_svg, quantity=name) for name in CLOCK_CHARTS},
    "front": front_svg,
}
EXPLANATION_CHARTS: Final[dict[str, Callable[[Explanation], str]]] = {"timeline": timeline_svg, "time": time_svg, "modules": module_svg}


def drawable(points: Sweep, chart: str) -> bool:
    """Whether a chart of a sweep has a finite number to draw."""
    column, _ = CLOCK_CHARTS.get(chart, CLOCK_CHARTS["energy"])
    return bool(np.isfinite(getattr(points, column)).any())


def explanation_charts(answer: Explanation) -> dict[str, str]:
    """Charts of an explanation by name; modules only if the bundle has power."""
    return {name: chart(answer) for name, chart in EXPLANATION_CHARTS.items() if name != "modules" or answer.energy_parts_j}


def sweep_page(points: Sweep) -> str:
    """All charts of a sweep and its points as one HTML page."""
    shown = points.present()
    about = f", the first {MOST_LINES} of {len(shown)} cases" if len(shown) > MOST_LINES else ""
    figures = "".join(
        figure_html(chart(points), f"{name}{about if name != 'front' else ''}")
        for name, chart in SWEEP_CHARTS.items()
        if drawable(points, name)
    )
    head, *rows = sweep_cells(points, 500)
    return page_html(
        f"{points.cases[shown[0]].workload} on {points.cases[shown[0]].gpu}{_origin(any(case.simulated for case in points.cases))}",
        [
            section_html("Charts", f'<div class="charts">{figures}</div>'),
            section_html("Points", table_html(f"{len(points)} points", head, rows)),
            section_html("Warnings", table_html("warnings", ["workload", "warning"], points.warnings)),
        ],
    )


def _origin(simulated: bool) -> str:
    return " (fitted on a simulated board)" if simulated else ""


def explanation_page(answer: Explanation, simulated: bool) -> str:
    """All charts of an explanation and its kernels as one HTML page."""
    result = answer.result
    remarks = [(kind[:-1], text) for kind in ("warnings", "notes") for text in getattr(result, kind)]
    kernels = map(explained_cells, answer.kernels)
    return page_html(
        f"{result.workload} on {result.gpu} at {result.sm_clock_mhz:g} MHz{_origin(simulated)}",
        [
            section_html("Result", table_html("one iteration", ["latency", "power", "energy"], [quantity_texts(values_of(result))])),
            section_html("Where time and energy go", "".join(figure_html(svg, name) for name, svg in explanation_charts(answer).items())),
            section_html("Kernels", table_html("kernels, the longest first", EXPLAINED_HEADS, kernels)),
            section_html("Warnings", table_html("warnings and notes", ["", "text"], remarks)),
        ],
    )
