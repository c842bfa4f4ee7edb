"""The report's part about rows left out of the fit: how wrong predictions are, where, and which rows are worst."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.display.charts import Axis, Series, axis_over, line_svg
from estimator.display.pages import number_html, table_html, text_html
from estimator.quantities import Array
from estimator.workload import FAMILY_FIELDS
from fitter.report.charts import MOST_LINES, bins_svg, density_svg, names_svg
from fitter.report.rows import Bins, HeldRows, binned, by_name, coverage_of, in_order, largest
from fitter.rows.columns import Selection
from fitter.validate.notes import NO_INTERVAL, Label
from fitter.validate.predictions import PERCENT

MOST_WORST: Final = 12
"""Rows of the largest error that are listed for each quantity."""

MOST_FAMILIES: Final = 6
"""Families that get a line of their own where error is shown over work; tables hold all."""

SECONDS_PER_HOUR: Final = 3600.0

QUANTITIES: Final = ("latency", "power")

BIN_HEAD: Final = ("from", "to", "rows", "5 %", "25 %", "median", "75 %", "95 %", "median magnitude")


def figure_with_table(svg: str, caption: str, table: str, *, wide: bool = False) -> str:
    """A chart, its caption, and the same as a table for those who do not see charts."""
    kind = ' class="wide scroll" tabindex="0" role="region" aria-label="' + escape(caption) + '"' if wide else ""
    below = f"<details><summary>The same as a table</summary>{table}</details>" if table else ""
    return f"<figure><div{kind}>{svg}</div><figcaption>{escape(caption)}</figcaption>{below}</figure>"


def charts_html(figures: Iterable[str]) -> str:
    """Charts side by side where there is room; nothing without any."""
    joined = "".join(figures)
    return f'<div class="charts">{joined}</div>' if joined else ""


def errors_html(bundle: Bundle, held: Mapping[str, HeldRows], notes: Mapping[Label, str]) -> str:
    """Held-out errors as stored in the bundle, then by kind of kernel, and whether stated intervals hold what they should.

    notes: as from `held_out_notes`.
    """
    if not bundle.errors and not held:
        return f"<p>No rows were held out: nothing is known about how wrong this bundle is.</p>{_notes_html(bundle, notes)}"
    head = ("family", "operator", "precision", "rows", "mean", "median", "95th percentile", "bias", "coverage")
    body = ""
    for quantity in QUANTITIES:
        known = [row for row in bundle.errors if row[quantity]]
        rows = [[row["family"], row["operator"], row["precision"], row[quantity]["n"], *_stored(row[quantity])] for row in known]
        body += table_html(f"{quantity.capitalize()} error in percent; coverage of stated 90 % intervals", head, rows)
    figures = [_by_kind(rows, quantity) for rows in held.values() for quantity in QUANTITIES]
    return body + _notes_html(bundle, notes) + "".join(figures) + charts_html([_coverage(held)])


def _notes_html(bundle: Bundle, notes: Mapping[Label, str]) -> str:
    """Below the tables: kinds whose figures tell less than they seem, and why; what a missing coverage means."""
    kinds = {reason: [label for label, own in notes.items() if own == reason] for reason in dict.fromkeys(notes.values())}
    lines = [f"{', '.join(' '.join(part for part in label[1:] if part) for label in labels)}: {reason}" for reason, labels in kinds.items()]
    if any(row[quantity] and row[quantity]["coverage"] is None for row in bundle.errors for quantity in QUANTITIES):
        lines.append(NO_INTERVAL)
    return "".join(f'<p class="dim">{escape(line)}</p>' for line in lines)


def _stored(errors: Mapping[str, Any]) -> list[float]:
    """Figures of one quantity; coverage, a share, as a percentage."""
    values = [float("nan") if errors[name] is None else float(errors[name]) for name in ("mape", "median", "p95", "bias", "coverage")]
    return [in_percent(value) for value in (*values[:-1], values[-1] * PERCENT)]


def in_percent(value: float) -> float:
    """A percentage as tables show it: to a hundredth, so that small ones do not look more exact than large ones."""
    return round(value, 2)


def _by_kind(held: HeldRows, quantity: str) -> str:
    found = by_name(held.name_index, len(held.names), held.errors(quantity))
    if not len(found) or len(held.names) < 2:
        return ""
    order = np.argsort(-found.size, kind="stable")
    names = [held.names[int(found.place[i])] for i in order]
    bins = Bins(**{name: getattr(found, name)[order] for name in Bins.__slots__})
    shown = f"the {MOST_LINES} worst of {len(names)} kinds" if len(names) > MOST_LINES else "every kind"
    caption = f"Signed {quantity} error of {shown} of {held.kind}: whisker 5 to 95 %, box middle half, dot median; the worst on top."
    rows = [[name, *_figures(bins, i)[2:]] for i, name in enumerate(names)]
    table = table_html(f"{quantity.capitalize()} error by kind [%]", ("kind", *BIN_HEAD[2:]), rows)
    return figure_with_table(names_svg(f"{quantity.capitalize()} error by kind", caption, names, bins), caption, table, wide=True)


def _figures(bins: Bins, i: int) -> list[Any]:
    errors = [*bins.quantiles[i].tolist(), float(bins.size[i])]
    return [float(bins.low[i]), float(bins.high[i]), int(bins.count[i]), *map(in_percent, errors)]


def _coverage(held: Mapping[str, HeldRows]) -> str:
    found = [one for rows in held.values() for quantity in QUANTITIES if (one := coverage_of(rows, quantity)) is not None]
    if not found:
        return ""
    series = [Series(name=one.name, x=one.nominal, y=one.found) for one in found]
    series.append(Series(name="as stated", x=found[0].nominal, y=found[0].nominal))
    x = Axis(label="share that intervals should hold [%]", low=45.0, high=100.0, logarithmic=False)
    y = Axis(label="share that they hold [%]", low=min(45.0, *(float(one.found.min()) for one in found)), high=100.0, logarithmic=False)
    caption = "Coverage: how many held-out rows lie inside their stated intervals. Below the line of equality intervals are too narrow."
    head = ("quantity", "rows", *(f"{nominal:g} %" for nominal in found[0].nominal))
    table = table_html(
        "Rows inside their stated intervals [%]", head, [[one.name, one.rows, *map(in_percent, one.found.tolist())] for one in found]
    )
    return figure_with_table(line_svg("Coverage of stated intervals", caption, series, x, y), caption, table)


def scatters_html(held: Mapping[str, HeldRows]) -> str:
    """Predicted over measured latency, power and energy."""
    return charts_html(_scatter(held, *what) for what in (("latency", "s", True), ("power", "W", False), ("energy", "J", True)))


def _scatter(held: Mapping[str, HeldRows], quantity: str, unit: str, logarithmic: bool) -> str:
    series = []
    for name, rows in held.items():
        measured, predicted = _both(rows, quantity)
        known = np.isfinite(measured) & np.isfinite(predicted) & (measured > 0.0) & (predicted > 0.0)
        if known.any():
            series.append(Series(name=name, x=measured[known], y=predicted[known]))
    if not series:
        return ""
    both = axis_over("", [s.x for s in series] + [s.y for s in series], logarithmic=logarithmic)
    x = Axis(label=f"measured {quantity} [{unit}]", low=both.low, high=both.high, logarithmic=logarithmic)
    y = Axis(label=f"predicted {quantity} [{unit}]", low=both.low, high=both.high, logarithmic=logarithmic)
    count = sum(len(s.x) for s in series)
    caption = f"Predicted over measured {quantity} of {count:,} held-out rows; the dashed line is equality."
    joined = np.concatenate([s.x for s in series]), np.concatenate([s.y for s in series])
    bins = binned(joined[0], (joined[1] / joined[0] - 1.0) * PERCENT, logarithmic=True)
    table = _bin_table(f"Error by measured {quantity} [{unit}], error in percent", bins)
    return figure_with_table(density_svg(f"{quantity.capitalize()}: predicted and measured", caption, series, x, y), caption, table)


def _both(rows: HeldRows, quantity: str) -> tuple[Array, Array]:
    p = rows.prediction
    if quantity == "latency":
        return p.measured_s, p.predicted_s
    if quantity == "power":
        return p.measured_w, p.predicted_w
    return p.measured_s * p.measured_w, p.predicted_s * p.predicted_w


def _bin_table(caption: str, bins: Bins) -> str:
    return table_html(caption, BIN_HEAD, [_figures(bins, i) for i in range(len(bins))])


def dependences_html(held: Mapping[str, HeldRows]) -> str:
    """Error by size of the kernel or run, and by SM clock."""
    figures = []
    for rows in held.values():
        for quantity in QUANTITIES:
            if np.isfinite(rows.work).any():
                figures.append(_over_work(rows, quantity))
            else:
                measured = rows.prediction.measured_s
                figures.append(_over(rows, quantity, "measured time", "s", binned(measured, rows.errors(quantity), logarithmic=True), True))
            figures.append(_over(rows, quantity, "SM clock", "MHz", binned(rows.sm_clock_mhz, rows.errors(quantity))))
    return charts_html(figures)


def residuals_html(held: Mapping[str, HeldRows]) -> str:
    """Residuals in the order of time, and over the temperature of the board."""
    figures = []
    for rows in held.values():
        for quantity in QUANTITIES:
            errors = rows.errors(quantity)
            if np.isfinite(rows.started_s).any():
                hours = (rows.started_s - np.nanmin(rows.started_s)) / SECONDS_PER_HOUR
                figures.append(_over(rows, quantity, "time since the first row", "h", binned(hours, errors)))
            else:
                figures.append(_over(rows, quantity, "place in the data", "row", in_order(errors)))
            figures.append(_over(rows, quantity, "temperature", "°C", binned(rows.temperature_c, errors)))
    return charts_html(figures)


def _over(held: HeldRows, quantity: str, what: str, unit: str, bins: Bins, logarithmic: bool = False) -> str:
    if not len(bins):
        return ""
    caption = f"Signed {quantity} error of {held.kind} over {what}: whisker 5 to 95 %, box middle half, line through medians."
    svg = bins_svg(f"{quantity.capitalize()} error over {what}", caption, bins, f"{what} [{unit}]", logarithmic=logarithmic)
    return figure_with_table(
        svg, caption, _bin_table(f"{quantity.capitalize()} error of {held.kind} over {what} [{unit}], in percent", bins)
    )


def _over_work(held: HeldRows, quantity: str) -> str:
    """Median magnitude of the error over the work of a kernel, a line for each of the most frequent families."""
    errors, series, rows = held.errors(quantity), [], []
    known = np.isfinite(errors) & np.isfinite(held.work)
    order = np.argsort(-np.bincount(held.family_index[known], minlength=len(held.families)), kind="stable")
    for place, family in enumerate(order.tolist()):
        own = known & (held.family_index == family)
        bins = binned(held.work[own], errors[own], logarithmic=True)
        rows += [[held.families[family], *_figures(bins, i)] for i in range(len(bins))]
        if place < MOST_FAMILIES and len(bins):
            series.append(Series(name=held.families[family], x=bins.place, y=bins.size))
    if not series:
        return ""
    x = axis_over("work of a kernel [products or elements]", [one.x for one in series], logarithmic=True)
    y = axis_over(f"median magnitude of the {quantity} error [%]", [*(one.y for one in series), np.zeros(1)], logarithmic=False)
    caption = f"Size: median magnitude of the {quantity} error over the work of a kernel, by family; work compares within a family only."
    table = table_html(f"{quantity.capitalize()} error by family and work, in percent", ("family", *BIN_HEAD), rows)
    return figure_with_table(line_svg(f"{quantity.capitalize()} error by size", caption, series, x, y), caption, table)


def worst_html(held: Mapping[str, HeldRows], selection: Selection) -> str:
    """Held-out rows with the largest errors, each linked to what is known of it."""
    chosen: dict[tuple[str, int], None] = {}
    tables = ""
    for quantity in QUANTITIES:
        found = sorted(_worst_of(held, quantity), key=lambda item: -abs(item[2]))[:MOST_WORST]
        chosen.update(dict.fromkeys((kind, i) for kind, i, _ in found))
        tables += _worst_table(held, quantity, found, list(chosen), selection)
    details = "".join(_row_html(held[kind], i, number, selection) for number, (kind, i) in enumerate(chosen))
    return tables + (f"<details open><summary>The rows behind them</summary>{details}</details>" if details else "")


def _worst_of(held: Mapping[str, HeldRows], quantity: str) -> list[tuple[str, int, float]]:
    found = []
    for kind, rows in held.items():
        errors = rows.errors(quantity)
        found += [(kind, int(i), float(errors[i])) for i in largest(np.abs(errors), MOST_WORST)]
    return found


def _worst_table(
    held: Mapping[str, HeldRows],
    quantity: str,
    found: Sequence[tuple[str, int, float]],
    chosen: list[tuple[str, int]],
    selection: Selection,
) -> str:
    lines = ""
    for kind, i, error in found:
        measured, predicted = _both(held[kind], quantity)
        link = f'<a href="#row-{chosen.index((kind, i)) + 1}">{text_html(held[kind].prediction.origins[i])}</a>'
        cells = "".join(f'<td class="n">{number_html(float(value))}</td>' for value in (measured[i], predicted[i], in_percent(error)))
        lines += f"<tr><td>{link}</td><td>{text_html(_what(held[kind], i, selection))}</td>{cells}</tr>"
    if not lines:
        return ""
    unit = "s" if quantity == "latency" else "W"
    label = f"Held-out rows whose {quantity} is furthest off"
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("row", "kind", f"measured [{unit}]", f"predicted [{unit}]", "error [%]"))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table><caption>{label}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _what(held: HeldRows, i: int, selection: Selection) -> str:
    """What ran in a row: the workload's name, the kernel's kind."""
    runs = selection.workloads
    name: str = held.names[held.name_index[i]]
    if held.kind == "workloads" and runs is not None and len(runs) == len(held.prediction):
        name = runs.workloads[runs.workload_index[i]].name
    return name


def _row_html(held: HeldRows, i: int, number: int, selection: Selection) -> str:
    """All that is known of one row."""
    p = held.prediction
    facts: dict[str, object] = {
        "GPU": p.labels[i][0],
        "kind": held.names[held.name_index[i]],
        "workload": _what(held, i, selection) if held.kind == "workloads" else "",
        "latency": _measured_and_predicted(p.measured_s[i], p.predicted_s[i], p.latency_ln_std[i], "s"),
        "power": _measured_and_predicted(p.measured_w[i], p.predicted_w[i], p.power_ln_std[i], "W"),
    }
    for name, column, unit in (("SM clock", held.sm_clock_mhz, "MHz"), ("temperature", held.temperature_c, "°C")):
        if np.isfinite(column[i]):
            facts[name] = f"{column[i]:g} {unit}"
    rows = selection.kernels if held.kind == "kernels" else None
    if rows is not None and np.isfinite(held.work).any():
        operator = rows.operators[rows.operator_index[i]]
        facts |= {
            "operator": f"{operator.family}.{operator.operator} {operator.precision}",
            "shape": ", ".join(f"{name} {size:g}" for name, size in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True)),
            "kernel": rows.kernel_name[i],
            "library": rows.library[i],
            "flags": ", ".join(rows.flags[i]),
        }
    pairs = "".join(f"<dt>{escape(name)}</dt><dd>{text_html(value)}</dd>" for name, value in facts.items() if str(value))
    return f'<article id="row-{number + 1}" tabindex="-1"><h3>{text_html(p.origins[i])}</h3><dl>{pairs}</dl></article>'


def _measured_and_predicted(measured: float, predicted: float, ln_std: float, unit: str) -> str:
    """Both values in words; "" where nothing was measured."""
    if np.isnan(measured):
        return ""
    stated = "" if np.isnan(ln_std) else f" ± {ln_std:.1%} (one standard deviation)"
    return f"measured {measured:.5g} {unit}, predicted {predicted:.5g} {unit}{stated}"
