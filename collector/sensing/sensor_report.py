"""The page of a characterised sensor: what it read, what its model would have read, and why that model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import numpy as np

from collector.errors import SensorError
from collector.sensing.board_power import GRID_S, Signal, load_signals, meter_signal
from collector.sensing.calibration import SensorCalibration
from collector.sensing.clock import Updates
from collector.sensing.figures import Shown, figure, remarks, rounded_like, shown_figures, why_unknown
from collector.sensing.identify import SensorRecord
from collector.sensing.known_sensor import possible_responses
from collector.sensing.response import Kernel, SensorResponse, columns
from estimator.display.charts import Axis, Series, axis_over, bars_svg, line_svg, scatter_svg
from estimator.display.pages import figure_html, page_html, section_html, table_html
from estimator.vocabulary.quantities import Array, IntArray

LONGEST_VIEW_S: Final = 4.0
WIDTHS: Final = 48
WIDTH_SPAN: Final = (0.05, 12.0)
"""Windows whose misfit is shown, in update periods."""
LEAST_READINGS: Final = 8
KEEP_QUANTILE: Final = 0.98
"""The largest residuals (updates that were skipped or frozen) are left out of the misfit."""
AROUND_S: Final = 2.0
HISTOGRAM_BINS: Final = 60
HISTOGRAM_PERIODS: Final = 2.5
"""Intervals between changes are shown up to so many update periods."""
MORE: Final = (
    Shown(key="settle_s", std_key=None, name="settles within", scale=1e3, unit="ms"),
    Shown(key="update_jitter_s", std_key=None, name="jitter of an update", scale=1e3, unit="ms"),
    Shown(key="resolution_w", std_key=None, name="step of a reading", unit="W"),
)
"""Figures that the page shows beside those of the terminal."""


def sensor_html(title: str, calibration: SensorCalibration, record: SensorRecord, updates: Updates | None) -> str:
    """The page: `record` are the polls with load and meter, where they were recorded, `updates` what was found in them."""
    update_s = updates.time_s if updates is not None else np.zeros(0)
    update_w = updates.value if updates is not None else np.zeros(0)
    reference = _reference(record, update_s)
    return page_html(
        title,
        (
            section_html("Sensor", _figures(calibration)),
            section_html("Reading and model", _model(calibration, update_s, update_w, reference)),
            section_html("Misfit over the window", _loss(calibration, update_s, update_w, reference)),
            section_html("Update clock", period_chart(record.time_s, record.power_w, calibration.update_period_s)),
            section_html("Candidates", _candidates(calibration)),
            section_html("Notes", "".join(f"<p>{escape(text)}</p>" for text in remarks(calibration))),
        ),
    )


def parts_of(charts: Sequence[str]) -> str:
    """Charts side by side; nothing without charts."""
    return f'<div class="charts">{"".join(charts)}</div>' if charts else ""


def period_chart(poll_s: Array, poll_w: Array, period_s: float | None) -> str:
    """Histogram of the intervals between changes of the reading."""
    changed = poll_s[1:][np.diff(poll_w) != 0.0]
    interval = np.diff(changed) * 1e3
    if len(interval) < 2:
        return ""
    most = HISTOGRAM_PERIODS * period_s * 1e3 if period_s else float(np.quantile(interval, 0.95)) * 1.2
    shown = interval[interval <= most]
    if len(shown) < 2:
        return ""
    counts, edges = np.histogram(shown, bins=HISTOGRAM_BINS, range=(0.0, most))
    x = Axis(label="time between changes [ms]", low=0.0, high=most, logarithmic=False)
    y = Axis(label="changes", low=0.0, high=1.05 * float(counts.max()), logarithmic=False)
    known = f"; the clock behind them ticks every {period_s * 1e3:.5g} ms" if period_s else ""
    text = f"Time between {len(interval)} changes of the reading, to within a poll{known}."
    return parts_of([figure_html(bars_svg("Update periods", text, edges, counts.astype(np.float64), x, y), text)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """What the board drew, as signals, and the span for which it is known [s]."""

    signals: tuple[Signal, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Emulated:
    """Updates within the record: times, readings and what the sensor would have read, shape (n,)."""

    time_s: Array
    value: Array
    predicted: Array


def _reference(record: SensorRecord, update_s: Array) -> _Reference | None:
    """The meter's power, or what the load's stamps make of a board; None where neither is there."""
    if record.meter_s is not None and record.meter_w is not None:
        try:
            power = meter_signal(record.meter_s, record.meter_w)
        except SensorError:
            return None
        return _Reference(signals=(power,), start_s=float(record.meter_s[0]), end_s=power.start_s + GRID_S * len(power.value))
    if record.load is None or not len(record.load.start_s) or not len(update_s):
        return None
    start, end = float(record.load.start_s[0]) - AROUND_S, float(record.load.end_s[-1]) + AROUND_S
    end = min(end, float(update_s[-1]), record.load.known_until_s)
    return _Reference(signals=load_signals(record.load, start, end), start_s=start, end_s=end)


def _emulated(time_s: Array, value: Array, reference: _Reference, response: SensorResponse) -> _Emulated | None:
    """The reading that a response would have given, levels by least squares; None for too few updates in the record."""
    inside = (time_s - response.reach_s > reference.start_s) & (time_s - response.delay_s < reference.end_s)
    if np.count_nonzero(inside) < LEAST_READINGS:
        return None
    time_s, value = time_s[inside], value[inside]
    design = columns(reference.signals, response.kernel, response.width_s, time_s - response.delay_s)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    level = np.linalg.lstsq(design / scale, value, rcond=None)[0]
    return _Emulated(time_s=time_s, value=value, predicted=design / scale @ level)


def _loss_over_window(
    time_s: Array, value: Array, reference: _Reference, kernel: Kernel, lag_s: float, period_s: float
) -> tuple[Array, Array]:
    """Windows [s] and the rms misfit with each [W], shape (m,), at one mean age of the power; nan for too few updates."""
    widths = period_s * np.geomspace(*WIDTH_SPAN, WIDTHS)
    loss = np.full(WIDTHS, np.nan)
    for i, width in enumerate(widths.tolist()):
        found = _emulated(time_s, value, reference, SensorResponse(kernel=kernel, width_s=width, delay_s=lag_s - 0.5 * width))
        if found is not None:
            square = (found.value - found.predicted) ** 2
            loss[i] = float(np.sqrt(square[square <= np.quantile(square, KEEP_QUANTILE)].mean()))
    return widths, loss


def _figures(calibration: SensorCalibration) -> str:
    facts = {
        "Board": calibration.gpu_uuid or "not named",
        "Driver": calibration.driver or "not named",
        "Source": f"{calibration.sensor} {calibration.field}",
        "Averaging": calibration.averaging,
        "Transient": calibration.transient or f"unknown: {why_unknown(calibration, 'transient')}",
        "Updates": f"{calibration.n_updates}",
    }
    for name, text in shown_figures(calibration).items():
        facts[name.capitalize()] = text or f"unknown: {why_unknown(calibration, name)}"
    for one in MORE:
        value = getattr(calibration, one.key)
        if value is not None:
            facts[one.name.capitalize()] = figure(value * one.scale, None, one.unit)
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()) + "</dl>"


def _model(calibration: SensorCalibration, update_s: Array, update_w: Array, reference: _Reference | None) -> str:
    """Trace with the emulated reading, and the residuals."""
    if reference is None:
        return "<p>Neither a load nor a meter was recorded: there is nothing to emulate the reading from.</p>"
    found = _emulated(update_s, update_w, reference, possible_responses(calibration).responses[0])
    if found is None:
        return ""
    view = _busiest(found)
    x = axis_over("time [s]", [found.time_s[view]], logarithmic=False)
    y = axis_over("reading [W]", [found.value[view], found.predicted[view]], logarithmic=False)
    text = "Updates as they were read, and what the model of the sensor makes of the load."
    series = [
        Series(name="read", x=found.time_s[view], y=found.value[view]),
        Series(name="emulated", x=found.time_s[view], y=found.predicted[view]),
    ]
    residual = found.value - found.predicted
    away = f"Read less emulated, over the whole record: {figure(float(np.sqrt(np.mean(residual**2))), None, 'W')} rms."
    if calibration.residual_w is not None:
        away += f" The fit itself, over the readings that it took, leaves {figure(calibration.residual_w, None, 'W')}."
    whole, left = axis_over("time [s]", [found.time_s], logarithmic=False), axis_over("read − emulated [W]", [residual], logarithmic=False)
    return parts_of(
        [
            figure_html(line_svg("Reading and model", text, series, x, y), text),
            figure_html(
                scatter_svg("Residuals", away, [Series(name="residual", x=found.time_s, y=residual)], whole, left, diagonal=False), away
            ),
        ]
    )


def _busiest(found: _Emulated) -> IntArray:
    """The updates of the LONGEST_VIEW_S in which the reading changes most."""
    moved = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(found.predicted)))])
    ends = np.searchsorted(found.time_s, found.time_s + LONGEST_VIEW_S, side="right") - 1
    start = int(np.argmax(moved[ends] - moved))
    return np.arange(start, max(int(ends[start]) + 1, start + 2), dtype=np.int64)


def _loss(calibration: SensorCalibration, update_s: Array, update_w: Array, reference: _Reference | None) -> str:
    period = calibration.update_period_s
    if reference is None or period is None or len(update_s) < 2:
        return ""
    best = possible_responses(calibration).responses[0]
    series = []
    kernels: tuple[Kernel, ...] = ("boxcar", "low-pass")
    for kernel in kernels:
        widths, loss = _loss_over_window(update_s, update_w, reference, kernel, best.lag_s, period)
        known = np.isfinite(loss)
        if known.any():
            series.append(Series(name=kernel, x=widths[known] * 1e3, y=loss[known]))
    if not series:
        return ""
    x = axis_over("window: W, or 2τ [ms]", [part.x for part in series], logarithmic=True)
    y = axis_over("rms misfit [W]", [part.y for part in series], logarithmic=False)
    text = (
        f"Misfit of boxcar and low-pass over their width, the readings' mean age held at {best.lag_s * 1e3:.3g} ms; lowest at the window."
    )
    return parts_of([figure_html(line_svg("Loss over window", text, series, x, y), text)])


def _candidates(calibration: SensorCalibration) -> str:
    head = ("kernel", "window [ms]", "delay [ms]", "log-likelihood")
    rows = []
    for one in calibration.candidates:
        window, std, delay, score = (_number(one.get(key)) for key in ("window_s", "window_std_s", "delay_s", "score"))
        shown = figure(window * 1e3, std * 1e3, "")
        rows.append((str(one.get("kernel")), shown, rounded_like(delay * 1e3, std * 1e3), f"{score:.1f}"))
    return table_html("Kernels that were compared, best first", head, rows)


def _number(value: Any) -> float:
    """A number; nan for anything else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
