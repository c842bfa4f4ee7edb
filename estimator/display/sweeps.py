"""Sweeps and best points as text: tables for people, CSV and JSON for programs, HTML for notebooks."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from estimator.display.csv_lines import csv_lines
from estimator.display.estimates import (
    ENERGY_UNITS,
    POWER_UNITS,
    PREDICTED,
    TIME_UNITS,
    aligned,
    printable,
    unknown_values,
    validity_lines,
    with_spread,
)
from estimator.questions.choosing import Best, Gain
from estimator.questions.costs import Tariff, cost_columns
from estimator.questions.points import LABELS, VALUES, Case, Sweep

MOST_ROWS: Final = 60
"""Rows of a table for people."""

LEFT_OUT: Final = "left out: "
"""What a line says first that names what no answer was given for."""

Columns = dict[str, list[Any]]


def sweep_columns(points: Sweep, tariff: Tariff | None = None, *, requests: float = 0.0, tokens: float = 0.0) -> Columns:
    """Every column of a sweep as lists: LABELS, VALUES, COST_COLUMNS, `above_limit`, `outside_fitted_clocks`, `validity`,
    `warnings`; nan: unknown, and `unknown` says why; None: a batch or sequence that is unknown.
    """
    costs = cost_columns(points, tariff, requests=requests, tokens=tokens)
    return {
        **{name: [None if value == 0 else value for value in points.label(name)] for name in LABELS},
        **{name: getattr(points, name).tolist() for name in VALUES},
        **{name: column.tolist() for name, column in costs.items()},
        "above_limit": points.above_limit.tolist(),
        "outside_fitted_clocks": points.outside_clock().tolist(),
        "validity": points.validity(),
        "warnings": points.warning_texts(),
        "unknown": _unknown(points),
    }


def with_left_out(columns: Columns, reasons: Sequence[str]) -> Columns:
    """The columns with `left_out`: why a point was left out, "" for most; its numbers are unknown for that reason."""
    unknown = [reason or text for reason, text in zip(reasons, columns["unknown"], strict=True)]
    return {**columns, "unknown": unknown, "left_out": list(reasons)}


def _unknown(points: Sweep) -> list[str]:
    """Why numbers of a point are unknown, "" for most."""
    known_all = np.isfinite(np.stack([getattr(points, name) for name in PREDICTED])).all(axis=0)
    texts = [""] * len(points)
    for i in np.flatnonzero(~known_all).tolist():
        texts[i] = "; ".join(dict.fromkeys(unknown_values({name: float(getattr(points, name)[i]) for name in PREDICTED}).values()))
    return texts


def csv_pieces(pieces: Iterable[Columns]) -> Iterator[str]:
    """A header, and a line for every point; unknown numbers are empty."""
    first = True
    for columns in pieces:
        yield csv_lines(zip(*columns.values(), strict=True), header=list(columns) if first else None)
        first = False


def json_pieces(pieces: Iterable[Columns]) -> Iterator[str]:
    """One JSON list, an object for every point; unknown numbers are null."""
    yield "["
    start = "\n "
    for columns in pieces:
        lines = []
        for values in zip(*columns.values(), strict=True):
            lines.append(json.dumps({name: known(value) for name, value in zip(columns, values, strict=True)}, allow_nan=False))
        if lines:
            yield start + ",\n ".join(lines)
            start = ",\n "
    yield "\n]\n"


def known(value: Any) -> Any:
    """A value for JSON: a number that is not finite is unknown, null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sweep_table(points: Sweep, tariff: Tariff | None = None, *, requests: float = 0.0, tokens: float = 0.0, most: int = MOST_ROWS) -> str:
    """A line for every point, the first `most` of them; columns that are the same for all stand above."""
    columns = sweep_columns(points, tariff, requests=requests, tokens=tokens)
    simulated = ", fitted on a simulated board" if any(case.simulated for case in points.cases) else ""
    labels = {name: ["" if value is None else str(value) for value in columns[name]] for name in LABELS}
    shown = [name for name, values in labels.items() if len(set(values)) > 1]
    fixed = ", ".join(f"{name} {printable(values[0])}" for name, values in labels.items() if name not in shown and values and values[0])
    head, cells = _cells(points, columns)
    table = [[*shown, *head]]
    table += [[printable(labels[name][i]) for name in shown] + [column[i] for column in cells] for i in range(min(len(points), most))]
    rest = f"  … {len(points) - most} more points (--csv or --json for all)\n" if len(points) > most else ""
    reasons = "".join(f"  {text}\n" for text in dict.fromkeys(columns["unknown"]) if text)
    return f"{fixed}{simulated}\n" + aligned(table, left_columns=range(len(shown))) + rest + reasons + validity_lines(columns["validity"])


def _cells(points: Sweep, columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the numbers of a table."""
    size = len(points)

    def spread(name: str, units: Sequence[tuple[float, str]]) -> list[str]:
        return [with_spread(columns[name][i], columns[f"{name}_std"][i], units) for i in range(size)]

    pairs = [
        ("asked", [f"{value:g}" for value in columns["asked_clock_mhz"]]),
        ("SM clock", [f"{value:.0f} MHz" for value in columns["sm_clock_mhz"]]),
        ("latency", spread("latency_s", TIME_UNITS)),
        ("power", spread("power_w", POWER_UNITS)),
        ("energy", spread("energy_j", ENERGY_UNITS)),
    ]
    for name, head in COST_HEADS.items():
        if any(math.isfinite(value) for value in columns[name]):
            pairs.append((head, [f"{value:.4g}" if math.isfinite(value) else "–" for value in columns[name]]))
    return [head for head, _ in pairs], [cells for _, cells in pairs]


COST_HEADS: Final = {
    "tokens_per_j": "tokens/J",
    "kwh_per_1000": "kWh/1000 req",
    "cost_per_1000": "cost/1000 req",
    "carbon_kg_per_1000": "kg CO2e/1000 req",
}


# Best -----------------------------------------------------------------------------------------------------------------


def best_document(
    answer: Best, left_out: Iterable[tuple[Case, str]] = (), tariff: Tariff | None = None, *, requests: float = 0.0, tokens: float = 0.0
) -> dict[str, Any]:
    """The answer as JSON data: the best point, what cannot be told from it, gains over the usual clock, the front.

    left_out: cases that no point was chosen from, and why.
    """

    def points(numbers: Any) -> list[dict[str, Any]]:
        columns = sweep_columns(answer.points.select(numbers), tariff, requests=requests, tokens=tokens)
        return [{name: known(value) for name, value in zip(columns, row, strict=True)} for row in zip(*columns.values(), strict=True)]

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
        "over_usual_clock": {name: gain_document(gain) for name, gain in answer.gains.items()},
        "points": len(answer.points),
        "points_within_limits": int(answer.fits.sum()),
        "front": points(answer.front),
        "left_out": [
            {name: getattr(case, name) or None for name in LABELS} | {"reason": reason.removeprefix(LEFT_OUT)} for case, reason in left_out
        ],
    }


def gain_document(gain: Gain) -> dict[str, float | None]:
    """A ratio with the limits of its 90 % interval."""
    return {"ratio": known(gain.ratio), "low": known(gain.low), "high": known(gain.high)}


def gain_text(gain: Gain) -> str:
    """A ratio for people, with the limits of its 90 % interval where they are known and not the ratio itself, as of boards at one cap."""
    if not math.isfinite(gain.ratio):
        return "–"
    ratio, low, high = (f"{value:.3g}" for value in (gain.ratio, gain.low, gain.high))
    return f"{ratio} ({low} to {high})" if math.isfinite(gain.low) and not ratio == low == high else ratio


def best_text(answer: Best, tariff: Tariff | None = None, *, requests: float = 0.0, tokens: float = 0.0) -> str:
    """The answer for people."""
    case = answer.points.cases[answer.points.case[answer.index]]
    low, high = answer.clocks_mhz
    where = f"{printable(case.workload)} on {case.gpu}" + _settings(case.precision, case.attention)
    usual = ", ".join(f"{name} {_percent(gain)}" for name, gain in answer.gains.items())
    of_case = int((answer.points.case == answer.points.case[answer.index]).sum())
    lines = [
        f"least {answer.goal}: {answer.points.asked_clock_mhz[answer.index]:g} MHz, {where}",
        sweep_table(answer.points.select(_numbers([answer.index])), tariff, requests=requests, tokens=tokens).rstrip("\n"),
        f"cannot be told from it: {low:g} to {high:g} MHz ({len(answer.alike)} of the clocks asked)"
        if len(answer.alike) > 1
        else "all other clocks asked are worse by more than can be mistaken"
        if of_case > 1
        else "no other clock was asked for",
        f"against {answer.usual_clock_mhz:g} MHz: {usual}",
        f"front between latency and energy: {len(answer.front)} of {int(answer.fits.sum())} points",
        sweep_table(answer.points.select(answer.front), tariff, requests=requests, tokens=tokens, most=FRONT_ROWS)
        .partition("\n")[2]
        .rstrip("\n"),
    ]
    if answer.within_limits < 1.0:
        lines.insert(2, f"keeps the limits with a probability of {answer.within_limits:.0%}")
    return "\n".join(lines) + "\n"


FRONT_ROWS: Final = 12


def _numbers(values: Sequence[int]) -> Any:
    return np.array(values, dtype=np.int64)


def _settings(precision: str, attention: str) -> str:
    return "".join(f", {word}" for word in (precision, f"{attention} attention" if attention else "") if word)


def _percent(gain: Gain) -> str:
    if not math.isfinite(gain.ratio):
        return "unknown"
    text = f"{gain.ratio - 1.0:+.1%}"
    return text + (f" ({gain.low - 1.0:+.1%} to {gain.high - 1.0:+.1%})" if math.isfinite(gain.low) else "")


# Notebooks ------------------------------------------------------------------------------------------------------------
