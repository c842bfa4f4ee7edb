"""The report's part about the board and the coefficients: power by module, curves over the clock, what is correlated with what."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.coefficients import MEANING
from estimator.display.charts import Band, Series, axis_over, line_svg
from estimator.display.pages import LONGEST_CELL, number_html, table_html
from estimator.display.stacks import Bar, Piece, stack_svg
from estimator.power import PARTS
from estimator.quantities import NORMAL_90, Array
from fitter.report.breakdown import CORRECTION, breakdowns
from fitter.report.charts import correlation_svg
from fitter.report.errors import charts_html, figure_with_table
from fitter.report.rows import HeldRows
from fitter.rows.columns import Selection

MOST_CORRELATED: Final = 36
"""Coefficients of one correlation chart: those with the strongest correlations."""

LONGEST_BAR_NAME: Final = 17
"""Letters that fit before a bar of `estimator.display.stacks`."""

MOST_PAIRS: Final = 24
"""Pairs of coefficients that the table beside it lists."""


def breakdown_html(bundle: Bundle, selection: Selection, held: Mapping[str, HeldRows]) -> str:
    """Power stacked by module, of one typical row of each kind."""
    found = breakdowns(bundle, selection, held)
    if not found:
        return ""
    bars = [
        Bar(
            label=_brief(one.name),
            pieces=[
                Piece(length=max(one.parts_w.get(part, 0.0), 0.0), part=i, tip=f"{one.name}: {part} {one.parts_w.get(part, 0.0):.4g} W")
                for i, part in enumerate(PARTS)
            ],
        )
        for one in found
    ]
    caption = "Power by module as the equation has it: of each kind of kernel the row of median power, of workloads the longest runs."
    columns = (*PARTS, CORRECTION)
    rows = [
        [one.name, *(one.parts_w.get(part, float("nan")) for part in columns), sum(one.parts_w.values()), one.measured_w] for one in found
    ]
    table = table_html("Power by module [W]", ("what", *columns, "predicted", "measured"), rows)
    return figure_with_table(stack_svg("Power by module", caption, bars, PARTS, "power [W]"), caption, table, wide=True)


def _brief(name: str) -> str:
    """A name short enough to stand before its bar, without words given twice."""
    text = " ".join(dict.fromkeys(name.split()))
    return text if len(text) <= LONGEST_BAR_NAME else f"{text[: LONGEST_BAR_NAME - 1]}…"


def curves_html(bundle: Bundle) -> str:
    """Core voltage and idle power over the SM clock with 90 % bands where their error is known."""
    figures = []
    if bundle.voltage is not None:
        table = bundle.voltage
        std = None if table.std_v is None else np.array(table.std_v)
        figures.append(_curve("Core voltage", "V", table.sm_clock_mhz, table.voltage_v, std, table.source))
    if bundle.idle is not None:
        idle = bundle.idle
        std = None if idle.std_w is None else np.full(len(idle.power_w), idle.std_w)
        at = "" if idle.temperature_c is None else f" at {idle.temperature_c:.0f} °C"
        figures.append(_curve("Idle power", "W", idle.sm_clock_mhz, idle.power_w, std, f"{idle.source}{at}"))
    return charts_html(figures)


def _curve(name: str, unit: str, clocks: Sequence[float], values: Sequence[float], std: Array | None, source: str) -> str:
    series = Series(name=name, x=np.array(clocks), y=np.array(values))
    low, high = (series.y, series.y) if std is None else (series.y - NORMAL_90 * std, series.y + NORMAL_90 * std)
    x = axis_over("SM clock [MHz]", [series.x], logarithmic=False)
    y = axis_over(f"{name.lower()} [{unit}]", [low, high], logarithmic=False)
    bands = [] if std is None else [Band(x=series.x, low=low, high=high)]
    known = "its error is not known" if std is None else "the band holds 90 %"
    caption = f"{name} over the SM clock; {known}. {source[:LONGEST_CELL]}"
    spread = np.full(len(series.x), np.nan) if std is None else std
    rows = [[float(a), float(b), float(c)] for a, b, c in zip(series.x, series.y, spread, strict=True)]
    table = table_html(f"{name} over the SM clock", ("SM clock [MHz]", f"{name.lower()} [{unit}]", f"standard deviation [{unit}]"), rows)
    return figure_with_table(line_svg(name, caption, [series], x, y, bands=bands), caption, table)


def coefficients_html(bundle: Bundle) -> str:
    """Latency coefficients with their errors and what set them; power coefficients."""
    rows: list[list[Any]] = []
    for key, group in bundle.groups.items():
        for name, value in group.coefficients.items():
            std = group.ln_std.get(name, float("nan"))
            known = "constant" if name not in group.identified else "data" if group.identified[name] else "prior"
            rows.append([key, name, value, value * std, known, group.rows, MEANING.get(name, "")])
    head = ("group", "coefficient", "value", "standard deviation", "set by", "rows", "meaning")
    return table_html("Latency coefficients", head, rows) + _power(bundle)


def _power(bundle: Bundle) -> str:
    power = bundle.power
    if power is None:
        return ""
    rows: list[list[Any]] = [
        [name, farad * 1e9, power.capacitance_std_f.get(name, float("nan")) * 1e9, power.event_energy_j.get(name, float("nan")) * 1e12]
        for name, farad in power.capacitance_f.items()
    ]
    head = ("module", "C [nF]", "standard deviation [nF]", "energy per event [pJ]")
    return table_html("Switched capacitance by module", head, rows) + (
        f"<p>Running SMs draw {power.busy_w:.3g} ± {number_html(power.busy_std_w)} W, a board in use {power.active_w:.3g} ± "
        f"{number_html(power.active_std_w)} W, at {power.reference_clock_mhz:g} MHz and {power.reference_voltage_v:.4g} V.</p>"
    )


def correlations_html(bundle: Bundle) -> str:
    """Correlation of the fitted coefficients of latency and of power."""
    latency, power = bundle.latency_parameters, bundle.power
    figures = [_correlation("latency", latency.names, latency.covariance)]
    if power is not None:
        figures.append(_correlation("power", power.terms, power.covariance))
    return charts_html(figures)


def _correlation(quantity: str, names: Sequence[str], covariance: Sequence[Sequence[float]]) -> str:
    matrix = np.array(covariance, dtype=np.float64).reshape(len(names), len(names))
    spread = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    known = np.flatnonzero(spread > 0.0)
    if len(known) < 2:
        return ""
    correlation = matrix[np.ix_(known, known)] / np.outer(spread[known], spread[known])
    beside = np.abs(correlation - np.eye(len(known)))
    chosen = np.sort(np.argsort(-beside.max(axis=1), kind="stable")[:MOST_CORRELATED])
    shown = "" if len(chosen) == len(known) else f", the {len(chosen)} of {len(known)} with the strongest ones"
    caption = (
        f"Correlation of {quantity} coefficients{shown}; columns in the order of the rows. Blue: rise together, brown: trade off; "
        "the darker, the stronger."
    )
    first, second = np.triu_indices(len(known), 1)
    order = np.argsort(-beside[first, second], kind="stable")[:MOST_PAIRS]
    rows = [[names[known[first[i]]], names[known[second[i]]], float(correlation[first[i], second[i]])] for i in order.tolist()]
    table = table_html(f"Strongest correlations of {quantity} coefficients", ("coefficient", "with", "correlation"), rows)
    picked = correlation[np.ix_(chosen, chosen)]
    labels = [names[known[i]] for i in chosen.tolist()]
    return figure_with_table(correlation_svg(f"Correlation of {quantity} coefficients", caption, labels, picked), caption, table, wide=True)
