"""The page of a dataset: what was measured, what is doubtful and why, and charts over clock and time."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from collector.dataset.reader import KernelDataset, read_kernel_dataset
from collector.dataset.schema import FLAGS, IDENTITY_COLUMNS, UNUSABLE, flag_counts, repeated_rows
from collector.devices.protocols import limiting_reasons
from collector.errors import DatasetError
from estimator.display.charts import Series, axis_over, scatter_svg
from estimator.display.pages import facts_html, figure_html, report_page, table_html
from estimator.vocabulary.quantities import Array

Counts = dict[str, int]
Deviations = dict[str, Array]
"""Numbers of rows, and columns of them, by name."""

MOST_FAMILIES: Final = 5
"""Families with a colour of their own; the others share one."""

BESIDE: Final = 0.009
"""Distance between families that ran at one clock, as a share of the highest clock [1]; only their points move."""

MEASURED: Final = (
    *("latency_s", "power_w", "sm_clock_measured_mhz", "idle_before_w", "temperature_c", "temperature_before_c"),
    *("throttle_reasons", "flags", "trial"),
)

IDLE: Final = {"sm_clock_mhz": "SM clock [MHz]", "power_w": "power [W]", "std_w": "± std [W]", "temperature_c": "temperature [°C]"}
"""Columns of the table of idle power."""


def dataset_page(path: Path) -> tuple[str, int]:
    """The page of a dataset, and its number of rows.  Raises DatasetError."""
    data = read_kernel_dataset(path, frozenset((*IDENTITY_COLUMNS, *MEASURED)))
    table = data.table
    if not table.num_rows:
        raise DatasetError(f"{path}: holds no row; the same campaign with --resume goes on")
    flags = flag_counts(table.column("flags").to_pylist())
    agreement = deviations(table)
    parts = (
        ("summary", "Summary", _summary(data, flags, agreement)),
        ("power", "Power over clock", _power(table)),
        ("rest", "Idle power and temperature", _rest(data)),
        ("drift", "Drift and repeatability", _drift(table, agreement)),
        ("throttling", "Throttling", _throttling(table)),
        ("flags", "Flagged rows by reason", _flags(flags, table.num_rows)),
        ("rejected", "Kernels that did not run", table_html("By reason", ("reason", "kernels"), _rejected(data).items())),
    )
    return report_page(f"{path.name}: kernels measured on {_texts(table, 'gpu')}", parts), table.num_rows


# Columns --------------------------------------------------------------------------------------------------------------


def _numbers(table: pa.Table, name: str) -> Array:
    """A column as numbers, shape (n,), nan where null."""
    return np.asarray(table.column(name).cast(pa.float64()), dtype=np.float64)


def _texts(table: pa.Table, name: str) -> str:
    return ", ".join(map(str, table.column(name).unique().to_pylist()))


def _minutes(table: pa.Table) -> Array:
    """Time since the first row [min], shape (n,)."""
    started = _numbers(table, "started_unix_s")
    return (started - np.nanmin(started, initial=np.inf)) / 60.0


def deviations(table: pa.Table) -> Deviations:
    """Deviation of the latency and power of every repeated row from the mean of its repetitions [%], shape (n,); nan without repetition.

    Repetitions are rows of equal IDENTITY_COLUMNS.  Rows without valid time or power, and throttled ones, count for nothing.
    """
    groups = repeated_rows(table, UNUSABLE | {"throttled", "shared_board"})
    group = np.full(table.num_rows, -1)
    for number, rows in enumerate(groups):
        group[rows] = number
    found = {}
    for name in ("latency_s", "power_w"):
        values = _numbers(table, name)
        known = (group >= 0) & np.isfinite(values)
        count = np.bincount(group[known], minlength=len(groups))
        mean = np.bincount(group[known], values[known], len(groups)) / np.maximum(count, 1)
        repeated = known & (count[group] > 1) & (mean[group] > 0.0)
        found[name] = np.where(repeated, 100.0 * (values / np.where(repeated, mean[group], 1.0) - 1.0), np.nan)
    return found


# Summary --------------------------------------------------------------------------------------------------------------


def _rejected(data: KernelDataset) -> Counter[str]:
    """Number of kernels that did not run by reason, over all files."""
    return sum((Counter(file.get("rejected") or {}) for file in data.files), Counter[str]())


def _summary(data: KernelDataset, flags: Counts, agreement: Deviations) -> str:
    table, rows, bad = data.table, data.table.num_rows, []
    if any(file.get("simulated") for file in data.files):
        bad.append("Measured on a simulated board: these numbers test the program, they say nothing about a GPU.")
    if not all(file.get("complete") for file in data.files):
        bad.append("The campaign did not finish: the same command with --resume goes on.")
    time, power = (int(np.isfinite(_numbers(table, name)).sum()) for name in ("latency_s", "power_w"))
    clocks = sorted(filter(None, table.column("sm_clock_mhz").unique().to_pylist()))
    started = float(np.nanmin(_numbers(table, "started_unix_s"), initial=np.inf))
    facts = {
        "Board": f"{_texts(table, 'gpu')} ({_texts(table, 'gpu_uuid')}), driver {data.metadata.get('driver')}",
        "SM clocks": f"{len(clocks)}, from {clocks[0]:g} to {clocks[-1]:g} MHz" if clocks else "left alone",
        "Rows": f"{rows:,}: {time:,} with time, {power:,} with power",
        "Kernel families": ", ".join(f"{name} {count:,}" for name, count in _families(table).items()),
        "Flagged": ", ".join(f"{name} {count:,} ({count / rows:.1%})" for name, count in flags.items()) or "no row",
        "Did not run": f"{_rejected(data).total():,} kernels",
        "Repeatability": "; ".join(_agreement_text(name, values) for name, values in agreement.items()),
        "Measured": f"from {_utc(started)}, for {np.nanmax(_minutes(table), initial=0.0):,.0f} min",
    }
    return "".join(f'<p class="bad">{escape(line)}</p>' for line in bad) + facts_html(facts)


def _families(table: pa.Table) -> Counts:
    return dict(Counter(table.column("family").to_pylist()).most_common())


def _agreement_text(name: str, values: Array) -> str:
    known = np.abs(values[np.isfinite(values)])
    what = name.partition("_")[0]
    if not len(known):
        return f"{what} not repeated"
    return f"{what} within {np.median(known):.2g} % (median), {np.quantile(known, 0.95):.2g} % (95 of 100) of {len(known):,} repeated rows"


def _utc(unix_s: float) -> str:
    try:
        return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # not known, or no time of this world
        return "an unknown time"


# Charts ---------------------------------------------------------------------------------------------------------------


def _chart(caption: str, series: Sequence[Series], x: str, y: str, *, diagonal: bool = False) -> str:
    """A chart of the points that are finite; empty without one."""
    shown = [one for one in series if (np.isfinite(one.x) & np.isfinite(one.y)).any()]
    if not shown:
        return ""
    across, up = axis_over(x, [one.x for one in shown]), axis_over(y, [one.y for one in shown])
    return figure_html(scatter_svg(caption, caption, shown, across, up, diagonal=diagonal), caption)


def _charts(*charts: str) -> str:
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def _power(table: pa.Table) -> str:
    clock, power = _numbers(table, "sm_clock_measured_mhz"), _numbers(table, "power_w")
    families = np.array(table.column("family").to_pylist())
    own = list(_families(table))[:MOST_FAMILIES]
    chosen = {name: families == name for name in own} | {"others": ~np.isin(families, own)}
    step = BESIDE * float(np.nanmax(clock, initial=0.0))
    series = [Series(name=name, x=clock[mask] + i * step, y=power[mask]) for i, (name, mask) in enumerate(chosen.items()) if mask.any()]
    caption = "Mean board power of every row over the clock that ran; families stand side by side, the first one at its clock."
    return _charts(_chart(caption, series, "measured SM clock [MHz]", "power [W]"))


def _rest(data: KernelDataset) -> str:
    table, minutes, since = data.table, _minutes(data.table), "time since the first row [min]"
    idle = [Series(name="idle", x=minutes, y=_numbers(table, "idle_before_w"))]
    columns = {"under load": "temperature_c", "at rest": "temperature_before_c"}
    temperature = [Series(name=name, x=minutes, y=_numbers(table, column)) for name, column in columns.items()]
    rows = [[one.get(name) or np.nan for name in IDLE] for file in data.files for one in file.get("idle") or ()]
    return _charts(
        _chart("Idle power before a row.", idle, since, "idle power [W]"),
        _chart("Temperature of the GPU.", temperature, since, "temperature [°C]"),
    ) + table_html("Idle power by clock, before the first row", tuple(IDLE.values()), rows)


def _drift(table: pa.Table, agreement: Deviations) -> str:
    series = [Series(name=name.partition("_")[0], x=_minutes(table), y=values) for name, values in agreement.items()]
    caption = "Repeated rows: deviation from the mean of their repetitions; a slope is drift, a width is repeatability."
    return _charts(_chart(caption, series, "time since the first row [min]", "deviation [%]"))


def _throttling(table: pa.Table) -> str:
    asked, runs = _numbers(table, "sm_clock_mhz"), _numbers(table, "sm_clock_measured_mhz")
    masks = table.column("throttle_reasons").to_pylist()
    reasons = {mask: limiting_reasons(mask) for mask in set(masks)}
    limited = np.array([bool(reasons[mask]) for mask in masks], dtype=bool)
    if not limited.any():
        return "<p>No limit lowered a clock.</p>"
    series = [Series(name=name, x=asked[mask], y=runs[mask]) for name, mask in (("free", ~limited), ("limited", limited))]
    counts = Counter(name for mask in masks for name in reasons[mask])
    caption = f"A limit lowered the clock in {int(limited.sum()):,} of {len(limited):,} rows; the dashed line is the clock asked for."
    drawn = _charts(_chart(caption, series, "asked SM clock [MHz]", "measured SM clock [MHz]", diagonal=True))
    return drawn + table_html("Reasons; a row can have several", ("reason", "rows"), counts.most_common())


def _flags(flags: Counts, rows: int) -> str:
    lines = [[name, count, f"{count / rows:.1%}", FLAGS.get(name, ""), name in UNUSABLE] for name, count in flags.items()]
    head = ("flag", "rows", "share", "meaning", "row unusable")
    return table_html("A row can carry several flags", head, lines) or "<p>No row is flagged.</p>"
