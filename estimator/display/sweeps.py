"""Sweeps, best points and comparisons as text: tables for people, CSV, JSON and Parquet for programs."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from estimator.display.text import (
    PREDICTED,
    QUANTITIES,
    UNKNOWN,
    VALIDITY,
    Document,
    aligned,
    csv_lines,
    known,
    lines,
    printable,
    quantity_texts,
    unknown_values,
)
from estimator.questions.costs import Tariff, cost_columns
from estimator.questions.points import LABELS, VALUES, Case, Sweep
from estimator.uncertainty.validity import cannot_run_lines
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.whole_file import open_whole

if TYPE_CHECKING:
    from estimator.questions.baselines import BaselineEstimate
    from estimator.questions.choosing import Best, Comparison, Gain

MOST_ROWS: Final = 60

COST_HEADS: Final = {
    "tokens_per_j": "tokens/J",
    "kwh_per_1000": "kWh/1000 req",
    "cost_per_1000": "cost/1000 req",
    "carbon_kg_per_1000": "kg CO2e/1000 req",
}

WHOLE_NUMBERS: Final = ("batch", "sequence")
"""Columns of whole numbers, null where unknown."""

OWN: Final = "wattprint"
"""Name of our own model in a comparison."""

Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Cost of energy, and requests and tokens of an iteration; 0: each case's own batch and tokens."""

    tariff: Tariff | None = None
    requests: float = 0.0
    tokens: float = 0.0


PLAIN: Final = Terms()


def sweep_columns(points: Sweep, terms: Terms = PLAIN) -> Columns:
    """Every column of a sweep as lists: LABELS, VALUES, COST_COLUMNS, `above_limit`, `outside_fitted_clocks`, `validity`,
    `warnings`; nan: unknown, with the reason in `unknown`; None: unknown batch or sequence; `left_out`: why a board has no answer.
    """
    costs = cost_columns(points, terms.tariff, requests=terms.requests, tokens=terms.tokens)
    numbers = np.stack([getattr(points, name) for name in PREDICTED])
    impossible = ["; ".join(cannot_run_lines(case.warnings)) for case in points.cases]
    left_out = ["" if np.isfinite(t) else impossible[i] for t, i in zip(points.latency_s.tolist(), points.case.tolist(), strict=True)]
    unknown = list(left_out)
    for i in np.flatnonzero(~np.isfinite(numbers).all(axis=0)).tolist():
        unknown[i] = unknown[i] or "; ".join(
            dict.fromkeys(unknown_values(dict(zip(PREDICTED, numbers[:, i].tolist(), strict=True))).values())
        )
    return {
        **{name: [None if value == 0 else value for value in points.label(name)] for name in LABELS},
        **{name: getattr(points, name).tolist() for name in VALUES},
        **{name: column.tolist() for name, column in costs.items()},
        "above_limit": points.above_limit.tolist(),
        "outside_fitted_clocks": points.outside_clock().tolist(),
        "validity": points.validity(),
        "warnings": points.warning_texts(),
        "unknown": unknown,
        "left_out": left_out,
    }


def csv_pieces(pieces: Iterable[Columns]) -> Iterator[str]:
    """CSV with a header and a line for every point; unknown numbers are empty."""
    for number, columns in enumerate(pieces):
        yield csv_lines(zip(*columns.values(), strict=True), header=None if number else list(columns))


def json_pieces(pieces: Iterable[Columns]) -> Iterator[str]:
    """One JSON list with an object for every point; unknown numbers are null."""
    start = "[\n "
    for columns in pieces:
        yield start + ",\n ".join(json.dumps(row, allow_nan=False) for row in _rows(columns))
        start = ",\n "
    yield "\n]\n"


def _rows(columns: Columns) -> list[Document]:
    """The points as JSON data."""
    return [dict(zip(columns, map(known, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def write_parquet(path: Path, pieces: Iterable[Columns]) -> None:
    """Write pieces of a table to one file, atomically.

    Raises EstimatorError if pyarrow is not installed or the file cannot be written.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise EstimatorError("Parquet needs pyarrow; install wattprint[fit]: pip install 'wattprint[fit]', or write .csv") from None
    writer = None
    with open_whole(path) as stream:
        for piece in pieces:
            whole = {name: arrow.array(piece[name], arrow.int64()) for name in WHOLE_NUMBERS}  # even if a piece is all null
            table = arrow.table({**piece, **whole})
            writer = writer or parquet.ParquetWriter(stream, table.schema, write_page_checksum=True)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def sweep_table(points: Sweep, terms: Terms = PLAIN, most: int = MOST_ROWS) -> str:
    """A table with a line for each of the first `most` points; columns with one value for all points are listed above it."""
    columns = sweep_columns(points, terms)
    simulated = ", fitted on a simulated board" if any(case.simulated for case in points.cases) else ""
    shown, fixed = _told_apart([{name: printable(str(columns[name][i] or "")) for name in LABELS} for i in range(len(points))])
    costs = [name for name in COST_HEADS if any(map(math.isfinite, columns[name]))]
    table = [[*shown, "asked", "SM clock", "latency", "power", "energy", *(COST_HEADS[name] for name in costs)]]
    for i in range(min(len(points), most)):
        row = {name: column[i] for name, column in columns.items()}
        numbers = [f"{row[name]:.4g}" if math.isfinite(row[name]) else UNKNOWN for name in costs]
        clocks = f"{row['asked_clock_mhz']:g}", f"{row['sm_clock_mhz']:.0f} MHz"
        table.append([*(printable(str(row[name] or "")) for name in shown), *clocks, *quantity_texts(row), *numbers])
    rest = [f"… {len(points) - most} more points (--csv or --json for all)"] if len(points) > most else []
    validity = [text for kind, text in VALIDITY.items() if kind in columns["validity"]]
    return f"{fixed}{simulated}\n" + aligned(table, range(len(shown))) + lines([*rest, *columns["unknown"], *validity])


def _told_apart(labels: Sequence[Mapping[str, str]]) -> tuple[list[str], str]:
    """The labels that differ between rows, and a line of those that all rows share."""
    shown = [name for name in LABELS if len({label[name] for label in labels}) > 1]
    return shown, ", ".join(f"{name} {labels[0][name]}" for name in LABELS if labels and name not in shown and labels[0][name])


# Best -----------------------------------------------------------------------------------------------------------------


def best_document(answer: "Best", left_out: Iterable[tuple[Case, str]] = (), terms: Terms = PLAIN) -> Document:
    """The answer as JSON data: the best point, points that do not differ significantly, gains over the usual clock, the front.

    left_out: cases without a point, each with its reason.
    """

    def points(numbers: Any) -> list[Document]:
        return _rows(sweep_columns(answer.points.select(numbers), terms))

    return {
        "goal": answer.goal,
        "best": points([answer.index])[0],
        "within_limits_probability": answer.within_limits,
        "indistinguishable": {
            "low_clock_mhz": answer.clocks_mhz[0],
            "high_clock_mhz": answer.clocks_mhz[1],
            "clocks_mhz": answer.points.asked_clock_mhz[answer.alike].tolist(),
        },
        "usual_clock_mhz": answer.usual_clock_mhz,
        "over_usual_clock": {name: _gain_document(gain) for name, gain in answer.gains.items()},
        "points": len(answer.points),
        "points_within_limits": int(answer.fits.sum()),
        "front": points(answer.front),
        "left_out": [{name: getattr(case, name) or None for name in LABELS} | {"reason": reason} for case, reason in left_out],
    }


def _gain_document(gain: "Gain") -> Document:
    return {name: getattr(gain, name) for name in ("ratio", "low", "high")}


def gain_text(gain: "Gain") -> str:
    """A ratio for people, with its 90 % interval if that is known and wider than the ratio itself (unlike boards at one cap)."""
    if not math.isfinite(gain.ratio):
        return UNKNOWN
    ratio, low, high = (f"{value:.3g}" for value in (gain.ratio, gain.low, gain.high))
    return f"{ratio} ({low} to {high})" if math.isfinite(gain.low) and not ratio == low == high else ratio


def best_text(answer: "Best", terms: Terms = PLAIN) -> str:
    """The answer for people."""
    number, index = answer.points.case[answer.index], np.array([answer.index])
    case, (low, high) = answer.points.cases[number], answer.clocks_mhz
    settings = "".join(f", {word}" for word in (case.precision, case.attention and f"{case.attention} attention") if word)
    alike = "no other clock was asked for"
    if len(answer.alike) > 1:
        alike = f"cannot be told from it: {low:g} to {high:g} MHz ({len(answer.alike)} of the clocks asked)"
    elif (answer.points.case == number).sum() > 1:
        alike = "all other clocks asked are worse by more than can be mistaken"
    front = sweep_table(answer.points.select(answer.front), terms, 12).partition("\n")[2]
    texts = [
        f"least {answer.goal}: {answer.points.asked_clock_mhz[answer.index]:g} MHz, {printable(case.workload)} on {case.gpu}{settings}",
        sweep_table(answer.points.select(index), terms).rstrip("\n"),
        *([f"keeps the limits with a probability of {answer.within_limits:.0%}"] if answer.within_limits < 1.0 else []),
        alike,
        f"against {answer.usual_clock_mhz:g} MHz: " + ", ".join(f"{name} {_change(gain)}" for name, gain in answer.gains.items()),
        f"front between latency and energy: {len(answer.front)} of {int(answer.fits.sum())} points",
        front,
    ]
    return "\n".join(texts)


def _change(gain: "Gain") -> str:
    if not math.isfinite(gain.ratio):
        return "unknown"
    text = f"{gain.ratio - 1.0:+.1%}"
    return text + (f" ({gain.low - 1.0:+.1%} to {gain.high - 1.0:+.1%})" if math.isfinite(gain.low) else "")


# Comparisons ----------------------------------------------------------------------------------------------------------

Baselines = Sequence[Sequence["BaselineEstimate"]]
"""Estimates of other models for each side; empty if not requested."""


def comparison_document(sides: Sequence[Sweep], comparisons: Sequence["Comparison"], baselines: Baselines = ()) -> Document:
    """The first side, all others with their ratios to it, and each side's `baselines`, as JSON data."""
    documents = [_rows(sweep_columns(side))[0] for side in sides]
    for document, one in zip(documents[1:], comparisons, strict=True):
        document["ratios"] = {name: _gain_document(gain) for name, gain in one.ratios.items()}
        differences = zip(QUANTITIES, one.differences.values(), strict=True)
        document["differences"] = {name: {"value": value, "std": std} for name, (value, std) in differences}
    for document, theirs in zip(documents, baselines, strict=False):
        document["baselines"] = [_baseline_document(one) for one in theirs]
    return {"reference": documents[0], "others": documents[1:]}


def _baseline_document(one: "BaselineEstimate") -> Document:
    return {field.name: getattr(one, field.name) for field in fields(one)} | {"ratios": one.ratios, "missing": one.missing or None}


def comparison_columns(sides: Sequence[Sweep], baselines: Baselines) -> list[Columns]:
    """Every side as columns of a table, with its baselines below it; the last column, `method`, names the model of a row."""
    if not baselines:
        return [sweep_columns(side) for side in sides]
    found: list[Columns] = []
    for side, theirs in zip(sides, baselines, strict=True):
        own = sweep_columns(side)
        found.append({**own, "method": [OWN]})
        for one in theirs:
            row: Columns = {name: [""] for name in own} | {name: own[name] for name in (*LABELS, "asked_clock_mhz")}
            row |= {name: [getattr(one, name)] for name in ("sm_clock_mhz", *QUANTITIES)}
            found.append({**row, "warnings": [one.missing], "method": [one.method]})
    return found


def comparison_text(sides: Sequence[Sweep], comparisons: Sequence["Comparison"], baselines: Baselines = ()) -> str:
    """A table with a line for the reference and two for every other side: its numbers, and its ratios with 90 % intervals.

    A baseline has two lines below its side: its numbers, and their ratios to those of the side.
    """
    points = [_rows(sweep_columns(side))[0] for side in sides]
    labels = [{name: printable(str(point[name] or "")) for name in (*LABELS, "validity")} for point in points]
    shown, fixed = _told_apart(labels)
    if not shown and len({label["validity"] for label in labels}) > 1:  # a changed board keeps the name of the original one
        shown = ["validity"]
    model = ["model"] if baselines else []
    table = [[*shown, *model, "SM clock", "latency", "power", "energy"]]
    blank = [""] * (len(shown) + len(model))
    for number, (label, point) in enumerate(zip(labels, points, strict=True)):
        own = [label[name] for name in shown]
        table.append([*own, *([OWN] if model else []), f"{point['sm_clock_mhz']:.0f} MHz", *_numbers(point)])
        if number:
            table.append([*blank, "ratio", *map(gain_text, comparisons[number - 1].ratios.values())])
        for one in baselines[number] if baselines else ():
            ratios = [f"{ratio:.3g}" if math.isfinite(ratio) else UNKNOWN for ratio in one.ratios.values()]
            table.append([*own, one.method, f"{one.sm_clock_mhz:.0f} MHz", *_numbers({name: getattr(one, name) for name in QUANTITIES})])
            table.append([*own, "", "over wattprint", *ratios])
    listed = [one for theirs in baselines for one in theirs]
    legend = [f"{one.method}: {one.basis}" for one in listed]
    legend += [f"{one.method}, {printable(one.workload)}: {one.missing}" for one in listed if one.missing]
    reasons = [str(point["unknown"]) for point in points]
    return f"{fixed}\n" + aligned(table, range(len(blank))) + lines([*reasons, *legend])


def _numbers(point: Mapping[str, Any]) -> list[str]:
    """Texts of latency, power and energy of a point in JSON data."""
    return quantity_texts({name: math.nan if point[name] is None else point[name] for name in PREDICTED if name in point})
