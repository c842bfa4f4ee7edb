"""The report's part about the board and the coefficients: power by module, curves over the clock, what is correlated with what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle
from estimator.display.charts import Band, Series, axis_over, line_svg
from estimator.display.pages import LONGEST_CELL, table_html
from estimator.display.stacks import Bar, Piece, stack_svg
from estimator.engine.board import open_board, power_model
from estimator.engine.kernel_table import alone_parts_w, bundle_times
from estimator.engine.prediction import predict
from estimator.model.lowering import KnownTiles
from estimator.model.power import PARTS
from estimator.model.residuals import log_power_corrections
from estimator.vocabulary.quantities import NORMAL_90, Array
from fitter.report.errors import charts_html, figure_with_table
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.validate.predictions import row_labels
from fitter.validate.tables import kind_text

CORRECTION: Final = "neighbours"
"""What kernels measured near by add to the equation or take from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Power of one kernel or workload: `parts_w` by PARTS, and CORRECTION; with it they add up to the prediction [W].

    measured_w   nan where power was not measured
    """

    name: str
    parts_w: Mapping[str, float]
    measured_w: float


def breakdowns(bundle: Bundle, selection: Selection) -> tuple[Breakdown, ...]:
    """For the most frequent kinds of kernels the row of median measured power, and the longest workloads; none without power."""
    if power_model(bundle) is None:
        return ()
    found: list[Breakdown] = []
    if selection.kernels is not None:
        rows = selection.kernels.select(np.array(selection.kernels.gpus)[selection.kernels.gpu_index] == bundle.gpu.name)
        rows = rows.select(np.isfinite(rows.power_w) & ~rows.at_limit)
        kinds = pd.DataFrame({"name": [kind_text(label[1:]) for label in row_labels(rows)], "power": rows.power_w})
        kinds = kinds.sort_values("power", kind="stable")
        names = list(kinds["name"].value_counts().index[:12])
        members = [kinds.index[kinds["name"] == name] for name in names]
        if names:
            found += _of_kernels(bundle, rows.select(np.array([own[len(own) // 2] for own in members])), names)
    if selection.workloads is not None:
        found += _of_workloads(bundle, selection.workloads)
    return tuple(found)


def _of_kernels(bundle: Bundle, rows: KernelRows, names: list[str]) -> list[Breakdown]:
    """Kernels of the bundle's own GPU, launched over and over by themselves: their parts, one by one."""
    gpu, operators = bundle.gpu, rows.row_operators()
    clock, known = rows.clock_mhz(gpu), KnownTiles(tile_m=rows.tile_m, tile_n=rows.tile_n, split=rows.split_k)
    times = bundle_times(operators, bundle, gpu, sm_clock_mhz=clock, warm=rows.l2_warm, known=known)
    parts = alone_parts_w(times, bundle, gpu, clock, rows.l2_warm, rows.temperature_c)
    total = np.minimum(sum(parts.values()), gpu.power_limit_w)
    correction, _ = log_power_corrections(operators, times.groups, bundle.residuals, total)
    parts[CORRECTION] = total * np.expm1(correction)
    return [
        Breakdown(name=names[i], parts_w={part: float(values[i]) for part, values in parts.items()}, measured_w=float(rows.power_w[i]))
        for i in range(len(rows))
    ]


def _of_workloads(bundle: Bundle, rows: WorkloadRows) -> list[Breakdown]:
    """The workloads that take longest, each at its highest measured clock."""
    clock, own = rows.asked_clock_mhz(bundle.gpu), np.array(rows.gpus)[rows.gpu_index] == bundle.gpu.name
    table = pd.DataFrame({"workload": rows.workload_index, "latency": rows.latency_s, "clock": clock})[own]
    highest = table.sort_values("clock", ascending=False, kind="stable").drop_duplicates("workload")
    longest = table.groupby("workload")["latency"].max().sort_values(ascending=False, kind="stable").index[:12]
    found = []
    for i in highest.reset_index().set_index("workload").loc[longest, "index"].tolist():
        workload = rows.workloads[rows.workload_index[i]]
        prediction = predict([workload], open_board(bundle, sm_clock_mhz=float(clock[i])))
        parts = prediction.power_parts_w(0)
        held = float(prediction.power_w[0, 0]) / sum(parts.values())
        parts = {part: watt * held for part, watt in parts.items()}
        found.append(Breakdown(name=workload.name, parts_w=parts, measured_w=float(rows.power_w[i])))
    return found


def breakdown_html(bundle: Bundle, selection: Selection) -> str:
    """Power stacked by module, of one typical row of each kind."""
    found = breakdowns(bundle, selection)
    if not found:
        return ""
    bars = []
    for one in found:
        watts = [max(one.parts_w.get(part, 0.0), 0.0) for part in PARTS]
        tips = [f"{one.name}: {part} {watt:.4g} W" for part, watt in zip(PARTS, watts, strict=True)]
        pieces = [Piece(length=watt, part=i, tip=tip) for i, (watt, tip) in enumerate(zip(watts, tips, strict=True))]
        bars.append(Bar(label=" ".join(dict.fromkeys(one.name.split()))[:17], pieces=pieces))
    caption = "Power by module as the equation has it: of each kind of kernel the row of median power, of workloads the longest runs."
    columns = (*PARTS, CORRECTION)
    rows = [
        [one.name, *(one.parts_w.get(part, float("nan")) for part in columns), sum(one.parts_w.values()), one.measured_w] for one in found
    ]
    table = table_html("Power by module [W]", ("what", *columns, "predicted", "measured"), rows)
    return figure_with_table(stack_svg("Power by module", caption, bars, PARTS, "power [W]"), caption, table, wide=True)


def curves_html(bundle: Bundle) -> str:
    """Core voltage and idle power over the SM clock with 90 % bands where their error is known."""
    figures = []
    if (voltage := bundle.voltage) is not None:
        std = np.full(len(voltage.voltage_v), np.nan) if voltage.std_v is None else np.array(voltage.std_v)
        figures.append(_curve("Core voltage", "V", voltage.sm_clock_mhz, voltage.voltage_v, std, voltage.source))
    if (idle := bundle.idle) is not None:
        std = np.full(len(idle.power_w), np.nan if idle.std_w is None else idle.std_w)
        figures.append(_curve("Idle power", "W", idle.sm_clock_mhz, idle.power_w, std, idle.source))
    return charts_html(figures)


def _curve(name: str, unit: str, clocks: Sequence[float], values: Sequence[float], std: Array, source: str) -> str:
    series = Series(name=name, x=np.array(clocks), y=np.array(values))
    half = NORMAL_90 * np.nan_to_num(std)
    band = Band(x=series.x, low=series.y - half, high=series.y + half)
    x = axis_over("SM clock [MHz]", [series.x], logarithmic=False)
    y = axis_over(f"{name.lower()} [{unit}]", [band.low, band.high], logarithmic=False)
    caption = f"{name} over the SM clock; the band holds 90 % where its error is known. {source[:LONGEST_CELL]}"
    rows = [list(line) for line in zip(series.x.tolist(), series.y.tolist(), std.tolist(), strict=True)]
    table = table_html(f"{name} over the SM clock", ("SM clock [MHz]", f"{name.lower()} [{unit}]", f"standard deviation [{unit}]"), rows)
    return figure_with_table(line_svg(name, caption, [series], x, y, bands=[band]), caption, table)


def correlations_html(bundle: Bundle) -> str:
    """The strongest correlations of the fitted coefficients of latency and of power."""
    latency, power = bundle.latency_parameters, bundle.power
    found = [("latency", latency.names, latency.covariance)]
    found += [] if power is None else [("power", power.terms, power.covariance)]
    body = ""
    for quantity, names, covariance in found:
        matrix = np.array(covariance, dtype=np.float64).reshape(len(names), len(names))
        spread = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        first, second = np.triu_indices(len(names), 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.nan_to_num(matrix[first, second] / (spread[first] * spread[second]))
        order = np.argsort(-np.abs(correlation), kind="stable")[:24]
        rows = [[names[first[i]], names[second[i]], float(correlation[i])] for i in order.tolist() if correlation[i]]
        body += table_html(f"Strongest correlations of {quantity} coefficients", ("coefficient", "with", "correlation"), rows)
    return body
