"""Charts of answers: a quantity over the clock with its band, the front between latency and energy, shares of time and energy.

Each is one inline SVG.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from estimator.display.charts import Series, axis_over, line_svg, scatter_svg, shares_svg
from estimator.display.pages import picture_png, standalone_svg
from estimator.questions.choosing import energy_per_request_j, pareto_front
from estimator.questions.explanation import Explanation
from estimator.questions.sweeping import LABELS, Sweep
from estimator.vocabulary.errors import OperatingPointError

Pictures = dict[str, Callable[[], str | bytes]]
"""A chart by the format of its file."""

MOST_LINES: Final = 6
"""Most cases in one chart; its legend counts the others."""

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
    series, edges, cases = [], [], points.present()  # left-out cases have no point
    for number in list(cases)[:MOST_LINES]:
        own = points.select(points.case == number)
        own = own.select(np.argsort(own.asked_clock_mhz, kind="stable"))
        value, low, high = (getattr(own, name) for name in (column, f"{column}_low", f"{column}_high"))
        name = quantity if chosen_mhz else case_name(points, number)
        series.append(Series(name=name, x=own.asked_clock_mhz, y=value, band=(low, high)))
        edges += [value, low, high]
    x = axis_over("asked SM clock [MHz]", [points.asked_clock_mhz])
    y = axis_over(label, edges)
    if chosen_mhz:
        series.append(Series(name=f"chosen: {chosen_mhz:g} MHz", x=np.full(2, chosen_mhz), y=np.array([y.low, y.high])))
    return line_svg(f"{quantity} over the clock", f"{label} over the asked SM clock with 90 % bands", series, x, y, len(cases) - MOST_LINES)


def front_svg(points: Sweep) -> str:
    """A chart of energy over latency of every point, and their Pareto front."""
    front, energy = pareto_front(points), energy_per_request_j(points)
    series = [
        Series(name="points", x=points.latency_s, y=energy),
        Series(name="front", x=points.latency_s[front], y=energy[front]),
    ]
    x = axis_over("latency of an iteration [s]", [points.latency_s])
    whose = "a request" if all(case.batch for case in points.cases) else "an iteration"
    y = axis_over(f"energy of {whose} [J]", [energy])
    return scatter_svg("latency and energy", "energy over latency of every point; those on the front stand out", series, x, y)


def case_name(points: Sweep, number: int) -> str:
    """Short name of a case by the labels that differ from other cases."""
    case = points.cases[number]
    told = [name for name in LABELS if len({getattr(other, name) for other in points.present().values()}) > 1]
    short = {"batch": "b", "sequence": "s"}
    words = [f"{short.get(name, '')}{getattr(case, name)}" for name in told if name != "workload" or not {"batch", "sequence"} & set(told)]
    return " ".join(word for word in words if word) or case.workload


SWEEP_CHARTS: Final[dict[str, Callable[[Sweep], str]]] = {
    **{name: partial(clock_svg, quantity=name) for name in CLOCK_CHARTS},
    "front": front_svg,
}
EXPLANATION_CHARTS: Final[dict[str, Callable[[Explanation], str]]] = {
    "time": lambda answer: shares_svg(
        "time by what limits", "share of the latency by what limits it", {**answer.limits_s, "waiting for the host": answer.waiting_s}, "s"
    ),
    "modules": lambda answer: shares_svg("energy by module", "share of the energy by what draws it", answer.energy_parts_j, "J"),
}


def pictures(answer: Sweep | Explanation, name: str) -> Pictures:
    """A chart of an answer by the format of its file."""
    return picture_forms(lambda: SWEEP_CHARTS[name](answer) if isinstance(answer, Sweep) else EXPLANATION_CHARTS[name](answer))


def picture_forms(chart: Callable[[], str]) -> Pictures:
    """A chart by the format of its file.  It raises OperatingPointError where it has nothing to draw."""

    def drawn() -> str:
        svg = chart()
        if '<g class="data"></g>' in svg:
            raise OperatingPointError("no point has a value that this chart shows, as --json tells; choose another --chart")
        return svg

    return {"svg": lambda: standalone_svg(drawn()), "png": lambda: picture_png(drawn())}


def clock_charts(points: Sweep, chosen_mhz: float) -> dict[str, str]:
    """Charts over the clock by name that have a finite number to draw."""
    drawn = [name for name, (column, _) in CLOCK_CHARTS.items() if np.isfinite(getattr(points, column)).any()]
    return {name: clock_svg(points, name, chosen_mhz) for name in drawn}


def explanation_charts(answer: Explanation) -> dict[str, str]:
    """Charts of an explanation by name; modules only if the bundle has power."""
    return {name: chart(answer) for name, chart in EXPLANATION_CHARTS.items() if name != "modules" or answer.energy_parts_j}
