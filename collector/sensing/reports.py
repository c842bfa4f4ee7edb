"""Pages with charts: a characterised sensor, and a corrected recording."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

import numpy as np

from collector.sensing.correct import CorrectedRecording
from collector.sensing.correction_text import correction_lines
from collector.sensing.figures import figure, sensor_lines
from collector.sensing.fold import Profile
from collector.sensing.identify import Identification
from estimator.display.charts import Band, Series, axis_over, line_svg
from estimator.display.pages import figure_html, page_html, section_html
from estimator.vocabulary.quantities import Array

VIEW_UPDATES: Final = 40
"""Number of updates in a closer view."""


def sensor_html(title: str, found: Identification) -> str:
    """The page of a sensor that was found in a record."""
    fit = found.decision.best if found.decision is not None else None
    sections = {
        "Sensor": _text(sensor_lines(found.calibration)),
        "Reading and model": _emulated(fit.time_s, fit.predicted + fit.residual, fit.predicted) if fit is not None else "",
    }
    return page_html(title, [section_html(name, body) for name, body in sections.items()])


def correction_html(title: str, found: CorrectedRecording, time_s: Array, power_w: Array, remarks: Mapping[str, str]) -> str:
    """The page of a corrected recording; `time_s`, `power_w` (n,) are the polls, `remarks` the notes on reading them."""
    sections = {
        "Result": _text(correction_lines(found, remarks=remarks)),
        "Power over time": _traces(found, time_s, power_w),
        "Within an execution": _profile(found.profile) if found.profile is not None else "",
    }
    if found.repeated is not None:
        fit, updates = found.repeated.fit, found.updates
        sections["Reading and model"] = _emulated(updates.time_s[fit.used], updates.value[fit.used], fit.predicted_w[fit.used])
    return page_html(title, [section_html(name, body) for name, body in sections.items()])


def _text(lines: Sequence[str]) -> str:
    """Lines as in the terminal."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def _charts(charts: Sequence[str]) -> str:
    """Charts side by side; nothing without charts."""
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def _lines(title: str, text: str, series: Sequence[Series], labels: tuple[str, str], bands: Sequence[Band] = ()) -> str:
    """A chart of lines with axis labels and a band of two standard errors around the first line."""
    x = axis_over(labels[0], [one.x for one in series], logarithmic=False)
    y = axis_over(labels[1], [one.y for one in series], logarithmic=False)
    clipped = [Band(x=band.x, low=np.clip(band.low, y.low, y.high), high=np.clip(band.high, y.low, y.high)) for band in bands]
    return figure_html(line_svg(title, text, series, x, y, bands=clipped), text)


def _band(series: Series, std: Array) -> Band:
    """Band of two standard errors around a line."""
    return Band(x=series.x, low=series.y - 2.0 * std, high=series.y + 2.0 * std)


def _emulated(time_s: Array, value: Array, predicted: Array) -> str:
    """The updates with the model's predicted readings, enlarged where they change most."""
    moved = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(predicted)))])
    count = min(VIEW_UPDATES, len(moved) - 1)
    first = int(np.argmax(moved[count:] - moved[: len(moved) - count]))
    view = slice(first, first + count + 1)
    series = [Series(name="read", x=time_s[view], y=value[view]), Series(name="emulated", x=time_s[view], y=predicted[view])]
    rms_w = float(np.sqrt(np.mean((value - predicted) ** 2)))
    text = f"Updates as they were read, and the readings that the model predicts; they differ by {figure(rms_w, None, 'W')} rms."
    return _charts([_lines("Emulated reading", text, series, ("time [s]", "reading [W]"))])


def _traces(found: CorrectedRecording, time_s: Array, power_w: Array) -> str:
    """Corrected power beside the readings, for the whole recording and enlarged."""
    middle = 0.5 * (found.edge_s[1:] + found.edge_s[:-1])
    half, centre = 0.5 * VIEW_UPDATES * found.updates.period_s, 0.5 * (found.span.start_s + found.span.end_s)
    charts = []
    for name, low, high in (("The whole recording", -math.inf, math.inf), ("The middle, closer", centre - half, centre + half)):
        inside, polled = (middle >= low) & (middle <= high), (time_s >= low) & (time_s <= high)
        if np.count_nonzero(inside) < 2 or np.count_nonzero(polled) < 2:
            continue
        corrected = Series(name="corrected", x=middle[inside], y=found.power_w[inside])
        readings = Series(name="readings", x=time_s[polled], y=power_w[polled])
        text = f"{name}: corrected power with two standard errors, and the readings as they came."
        band = _band(corrected, found.power_std_w[inside])
        charts.append(_lines(name, text, [corrected, readings], ("time [s]", "power [W]"), [band]))
    return _charts(charts)


def _profile(profile: Profile) -> str:
    """Power within an execution; nothing if no place was seen."""
    seen = np.isfinite(profile.power_w)
    if not np.any(seen):
        return ""
    series = Series(name="power", x=profile.place_s * 1e3, y=profile.power_w)
    text = (
        f"Power within an execution of {profile.duration_s * 1e3:.4g} ms, folded from {profile.executions} of them, two standard errors; "
        f"resolution {profile.attained_s * 1e3:.3g} ms, {seen.sum()} of {len(seen)} places seen."
    )
    labels = ("time since the start of an execution [ms]", "power [W]")
    return _charts([_lines("Profile", text, [series], labels, [_band(series, profile.std_w)])])
