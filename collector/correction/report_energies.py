"""Energies on a correction's page: ours, what others would say of the same readings, and by how much they are off."""

import math
from typing import Final

import numpy as np

from collector.correction.recording import CorrectedRecording
from collector.energy.practice import naive_energy
from collector.energy.repeated_energy import RepeatedEnergy
from collector.sensor.figures import figure, rounded_like
from collector.sensor.load import LoadStamps
from estimator.display.charts import Axis, Band, Series, axis_over, line_svg
from estimator.display.pages import figure_html, table_html
from estimator.quantities import Array

TITLE: Final = "Energy errors"
TWO_STD: Final = 2.0


def energies_table(found: CorrectedRecording) -> str:
    """Energies of the load, the recording and an execution, each with its standard error and what others would say."""
    rows: list[tuple[object, ...]] = []
    for name, span in (("load", found.span), ("recording", found.whole)):
        if name == "load" and found.repeated is None:
            continue
        rows.append((name, *_beside(span.energy_j, span.energy_std_j, span.naive_energy_j), ""))
    if found.repeated is not None:
        one = found.repeated
        published = "does not apply"
        if math.isfinite(one.published_j):
            published = f"{rounded_like(one.published_j, one.energy_std_j)} ({_off(one.published_j, one.energy_j):+.1f} %)"
        rows.append(("execution", *_beside(one.energy_j, one.energy_std_j, one.naive_j), published))
    head = ("of", "energy [J]", "naive [J]", "published practice [J]")
    return table_html("Energy with its standard error, and what others would say", head, rows)


def _beside(energy_j: float, std_j: float, naive_j: float) -> tuple[str, str]:
    """An energy with its error, and the naive one with what it is off by."""
    return figure(energy_j, std_j, ""), f"{rounded_like(naive_j, std_j)} ({_off(naive_j, energy_j):+.1f} %)"


def energy_errors_chart(found: CorrectedRecording, time_s: Array, power_w: Array) -> str:
    """By how much readings taken for power are off: execution by execution, or, without executions, as the recording goes on.

    `time_s`, `power_w` (n,) are the polled readings.
    """
    one, load = found.repeated, found.load
    if one is not None and load is not None and len(load.start_s) > 1 and one.energy_j > 0.0:
        return _by_execution(one, load, time_s, power_w)
    return _as_time_goes(found, time_s, power_w)


def _by_execution(one: RepeatedEnergy, load: LoadStamps, time_s: Array, power_w: Array) -> str:
    """Naive energies of single executions over our mean one."""
    naive = 100.0 * (naive_energy(time_s, power_w, load.start_s, load.end_s) / one.energy_j - 1.0)
    number = np.arange(1.0, len(naive) + 1.0)
    reach = np.full(len(naive), 100.0 * TWO_STD * one.energy_std_j / one.energy_j)
    ours = figure(one.energy_j, one.energy_std_j, "J")
    text = (
        f"Energy of each execution by its readings alone, and of all by the published practice where it applies, less ours of {ours}; "
        "the band is two standard errors of ours."
    )
    series = [
        Series(name="ours", x=number, y=np.zeros(len(naive))),
        Series(name="naive", x=number, y=naive),
    ]
    if math.isfinite(one.published_j):
        series.append(Series(name="published practice", x=number, y=np.full(len(naive), _off(one.published_j, one.energy_j))))
    return _chart(text, "execution", "off by [%]", series, reach)


def _as_time_goes(found: CorrectedRecording, time_s: Array, power_w: Array) -> str:
    """The naive integral less ours, from the recording's beginning to each time."""
    edge_s = found.edge_s
    ours = np.concatenate([[0.0], np.cumsum(found.power_w * np.diff(edge_s))])
    naive = naive_energy(time_s, power_w, np.full(len(edge_s), edge_s[0]), edge_s)
    share = (edge_s - edge_s[0]) / (edge_s[-1] - edge_s[0])
    whole = figure(found.whole.energy_j, found.whole.energy_std_j, "J")
    text = (
        f"Energy up to a time by the readings as they are, less ours, of {whole} in all; the band is two standard "
        "errors of that, in proportion to the time."
    )
    series = [Series(name="ours", x=edge_s, y=np.zeros(len(edge_s))), Series(name="naive", x=edge_s, y=naive - ours)]
    return _chart(text, "time [s]", "off by [J]", series, TWO_STD * found.whole.energy_std_j * share)


def _chart(text: str, across: str, up: str, series: list[Series], reach: Array) -> str:
    """Lines with a band about zero; nothing for less than two places."""
    x = series[0].x
    if len(x) < 2:
        return ""
    y: Axis = axis_over(up, [part.y for part in series] + [reach, -reach], logarithmic=False)
    band = Band(x=x, low=-reach, high=reach)
    return figure_html(line_svg(TITLE, text, series, axis_over(across, [x], logarithmic=False), y, bands=[band]), text)


def _off(value: float, of: float) -> float:
    """How far a value is off, in percent; nan of nothing."""
    return 100.0 * (value / of - 1.0) if of else math.nan
