"""The page of a corrected recording: what was read, what it became, and how the parts fit together."""

import math
from collections.abc import Mapping
from html import escape
from typing import Final

import numpy as np

from collector.sensing.baselines import naive_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import CorrectedRecording
from collector.sensing.figures import figure, plain_notes, rounded_like, rounded_pair
from collector.sensing.fold import Profile
from collector.sensing.repeated import RepeatedEnergy
from collector.sensing.sensor_report import parts_of, period_chart
from estimator.display.charts import Axis, Band, Series, axis_over, line_svg, scatter_svg
from estimator.display.pages import figure_html, page_html, section_html, table_html, text_html
from estimator.vocabulary.quantities import Array

ZOOM_UPDATES: Final = 40
"""Updates that the closer view shows."""
TWO_STD: Final = 2.0


def correction_html(
    title: str, found: CorrectedRecording, calibration: SensorCalibration, time_s: Array, power_w: Array, remarks: Mapping[str, str]
) -> str:
    """The page; `time_s`, `power_w` (n,) are the polled readings, `remarks` those on how they were read."""
    return page_html(
        title,
        (
            section_html("Result", _result(found, calibration)),
            section_html("Power over time", _traces(found, time_s, power_w)),
            section_html(
                "Energy", energies_table(found) + parts_of([chart] if (chart := energy_errors_chart(found, time_s, power_w)) else [])
            ),
            section_html("Within an execution", _profile(found.profile) if found.profile is not None else ""),
            section_html("How well the model fits", _residuals(found)),
            section_html("Update clock", period_chart(time_s, power_w, found.updates.period_s)),
            section_html("Notes", "".join(f"<p>{escape(text)}</p>" for text in plain_notes({**remarks, **found.notes}))),
        ),
    )


def _result(found: CorrectedRecording, calibration: SensorCalibration) -> str:
    span = found.span
    length = span.end_s - span.start_s
    power, naive = rounded_pair(span.energy_j / length, span.energy_std_j / length, span.naive_energy_j / length, "W")
    energy, naive_j = rounded_pair(span.energy_j, span.energy_std_j, span.naive_energy_j, "J")
    response = found.response
    width = figure(response.width_s * 1e3, response.width_std_s * 1e3, "ms")
    delay = figure(response.delay_s * 1e3, response.delay_std_s * 1e3, "ms")
    facts = {
        "Method": found.method,
        "Power": power,
        "Energy": f"{energy} in {length:.4g} s",
        "Naive": f"{naive}, {naive_j}",
        "Sensor": f"{calibration.sensor} {calibration.field}, {calibration.averaging}, board {calibration.gpu_uuid or 'not named'}",
        "Response": f"{found.response.kernel} of {width}, delay {delay}",
        "Updates": f"{len(found.updates.time_s)}, every {found.updates.period_s * 1e3:.5g} ms",
        "Resolution": f"{found.resolution_s * 1e3:.3g} ms",
    }
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{text_html(value)}</dd>" for name, value in facts.items()) + "</dl>"


def _traces(found: CorrectedRecording, time_s: Array, power_w: Array) -> str:
    middle = 0.5 * (found.edge_s[1:] + found.edge_s[:-1])
    half = 0.5 * ZOOM_UPDATES * found.updates.period_s
    centre = 0.5 * (found.span.start_s + found.span.end_s)
    views = [("The whole recording", -math.inf, math.inf), ("The middle, closer", centre - half, centre + half)]
    charts = []
    for name, low, high in views:
        inside, polled = (middle >= low) & (middle <= high), (time_s >= low) & (time_s <= high)
        if np.count_nonzero(inside) < 2 or np.count_nonzero(polled) < 2:
            continue
        corrected = Series(name="corrected", x=middle[inside], y=found.power_w[inside])
        reach = TWO_STD * found.power_std_w[inside]
        band = Band(x=corrected.x, low=corrected.y - reach, high=corrected.y + reach)
        readings = Series(name="readings", x=time_s[polled], y=power_w[polled])
        x = axis_over("time [s]", [corrected.x, readings.x], logarithmic=False)
        y = axis_over("power [W]", [corrected.y, readings.y], logarithmic=False)
        text = f"{name}: corrected power with two standard errors, and the readings as they came."
        charts.append(figure_html(line_svg(name, text, [corrected, readings], x, y, bands=[_clipped(band, y)]), text))
    return parts_of(charts)


def _clipped(band: Band, y: Axis) -> Band:
    """A band that stays within the chart."""
    return Band(x=band.x, low=np.clip(band.low, y.low, y.high), high=np.clip(band.high, y.low, y.high))


def _profile(profile: Profile) -> str:
    seen = np.isfinite(profile.power_w)
    if not np.any(seen):
        return "<p>Undetermined: no update saw the executions in more than one place.</p>"
    place = profile.place_s * 1e3
    reach = TWO_STD * profile.std_w
    x = axis_over("time since the start of an execution [ms]", [place], logarithmic=False)
    y = axis_over("power [W]", [(profile.power_w - reach)[seen], (profile.power_w + reach)[seen]], logarithmic=False)
    band = Band(x=place, low=profile.power_w - reach, high=profile.power_w + reach)
    text = (
        f"Power within an execution of {profile.duration_s * 1e3:.4g} ms, folded from {profile.executions} of them, two standard errors; "
        f"resolution {profile.attained_s * 1e3:.3g} ms, {seen.sum()} of {len(seen)} places seen."
    )
    return parts_of([figure_html(line_svg("Profile", text, [Series(name="power", x=place, y=profile.power_w)], x, y, bands=[band]), text)])


def _residuals(found: CorrectedRecording) -> str:
    if found.repeated is None:
        return ""
    fit, updates = found.repeated.fit, found.updates
    used = fit.used
    time_s, value, predicted = updates.time_s[used], updates.value[used], fit.predicted_w[used]
    x = axis_over("time [s]", [time_s], logarithmic=False)
    y = axis_over("reading [W]", [value, predicted], logarithmic=False)
    text = "Updates as they were read, and what the fitted load makes of them through the sensor."
    emulated = line_svg(
        "Emulated reading", text, [Series(name="read", x=time_s, y=value), Series(name="emulated", x=time_s, y=predicted)], x, y
    )
    residual = value - predicted
    away = f"Read less emulated: {figure(float(np.sqrt(np.mean(residual**2))), None, 'W')} rms."
    left = axis_over("read − emulated [W]", [residual], logarithmic=False)
    points = scatter_svg("Residuals", away, [Series(name="residual", x=time_s, y=residual)], x, left, diagonal=False)
    return parts_of([figure_html(emulated, text), figure_html(points, away)])


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
    return figure_html(line_svg("Energy errors", text, series, axis_over(across, [x], logarithmic=False), y, bands=[band]), text)


def _off(value: float, of: float) -> float:
    """How far a value is off, in percent; nan of nothing."""
    return 100.0 * (value / of - 1.0) if of else math.nan
