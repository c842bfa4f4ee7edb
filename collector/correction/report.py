"""The page of a corrected recording: what was read, what it became, and how the parts fit together."""

import math
from collections.abc import Mapping
from html import escape
from typing import Final

import numpy as np

from collector.correction.recording import CorrectedRecording
from collector.correction.report_energies import energies_table, energy_errors_chart
from collector.correction.superresolution import Profile
from collector.sensor.calibration import SensorCalibration
from collector.sensor.figures import figure, plain_notes, rounded_pair
from collector.sensor.report import parts_of, period_chart
from estimator.display.charts import Axis, Band, Series, axis_over, line_svg, scatter_svg
from estimator.display.pages import figure_html, page_html, section_html, text_html
from estimator.quantities import Array

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
