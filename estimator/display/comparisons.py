"""Predictions side by side as text, with ratios and intervals, and what other models say of the same."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from estimator.baselines.answers import BaselineEstimate
from estimator.display.estimates import ENERGY_UNITS, POWER_UNITS, TIME_UNITS, aligned, printable, with_spread
from estimator.display.sweeps import Columns, gain_document, gain_text, known, sweep_columns
from estimator.questions.comparison import COMPARED, Comparison
from estimator.questions.points import LABELS, Sweep

OWN: Final = "wattprint"
"""The model that all others stand beside."""

UNITS: Final = {"latency_s": TIME_UNITS, "power_w": POWER_UNITS, "energy_j": ENERGY_UNITS}

Baselines = Sequence[Sequence[BaselineEstimate]]
"""For each side what other models say of it; empty: nothing was asked."""


VALIDITY: Final = "validity"


def comparison_document(sides: Sequence[Sweep], comparisons: Sequence[Comparison], baselines: Baselines = ()) -> dict[str, Any]:
    """The first side, all others with their ratios to it, and each side's `baselines`, as JSON data."""
    theirs = [{"baselines": [_baseline(one) for one in own]} for own in baselines] or [{} for _ in sides]
    return {
        "reference": {**_point(sides[0]), **theirs[0]},
        "others": [
            {
                **_point(side),
                "ratios": {name: gain_document(gain) for name, gain in one.ratios.items()},
                "differences": {
                    COMPARED[name]: {"value": known(value), "std": known(std)} for name, (value, std) in one.differences.items()
                },
                **own,
            }
            for side, one, own in zip(sides[1:], comparisons, theirs[1:], strict=True)
        ],
    }


def _point(points: Sweep) -> dict[str, Any]:
    return {name: known(values[0]) for name, values in sweep_columns(points).items()}


def _baseline(one: BaselineEstimate) -> dict[str, Any]:
    values = {field.name: getattr(one, field.name) for field in fields(one) if field.name not in ("ratios", "missing")}
    ratios = {name: known(ratio) for name, ratio in one.ratios.items()}
    return {name: known(value) for name, value in values.items()} | {"ratios": ratios, "missing": one.missing or None}


def comparison_columns(sides: Sequence[Sweep], baselines: Baselines) -> list[Columns]:
    """Every side as columns of a table, its baselines below it; the last column, `method`, says whose a row is."""
    found: list[Columns] = []
    for side, theirs in zip(sides, baselines, strict=True):
        own = sweep_columns(side)
        found.append({**own, "method": [OWN]})
        for one in theirs:
            row: Columns = {name: [""] for name in own}
            row |= {name: own[name] for name in (*LABELS, "asked_clock_mhz")}
            row |= {name: [getattr(one, name)] for name in ("sm_clock_mhz", *UNITS)}
            found.append({**row, "warnings": [one.missing], "method": [one.method]})
    return found


def comparison_text(sides: Sequence[Sweep], comparisons: Sequence[Comparison], baselines: Baselines = ()) -> str:
    """A line for the reference and two for every other side: its numbers, and its ratios with 90 % intervals.

    A baseline has two lines below its side: its numbers, and their ratios to those of the side.
    """
    labels = [{name: printable(str(side.label(name)[0] or "")) for name in LABELS} | {VALIDITY: side.validity()[0]} for side in sides]
    shown = [name for name in LABELS if len({label[name] for label in labels}) > 1]
    if len({label[VALIDITY] for label in labels}) > 1 and not shown:  # a changed board goes by the name of the one that it was
        shown = [VALIDITY]
    model = ["model"] if baselines else []
    rows = [[*shown, *model, "SM clock", *COMPARED]]
    blank = ["" for _ in (*shown, *model)]
    for number, (label, side) in enumerate(zip(labels, sides, strict=True)):
        columns = sweep_columns(side)
        numbers = [with_spread(columns[name][0], columns[f"{name}_std"][0], units) for name, units in UNITS.items()]
        own = [label[name] for name in shown]
        rows.append([*own, *([OWN] if model else []), f"{columns['sm_clock_mhz'][0]:.0f} MHz", *numbers])
        if number:
            rows.append([*blank, "ratio", *(gain_text(comparisons[number - 1].ratios[name]) for name in COMPARED)])
        for one in baselines[number] if baselines else ():
            rows += [[*own, *row] for row in _baseline_rows(one)]
    fixed = ", ".join(f"{name} {labels[0][name]}" for name in LABELS if name not in shown and labels[0][name])
    reasons = "".join(
        f"  {text}\n" for text in dict.fromkeys(reason for side in sides for reason in sweep_columns(side)["unknown"]) if text
    )
    return f"{fixed}\n" + aligned(rows, left_columns=range(len(shown) + len(model))) + reasons + _legend(baselines)


def _baseline_rows(one: BaselineEstimate) -> list[list[str]]:
    numbers = [with_spread(getattr(one, name), float("nan"), units) for name, units in UNITS.items()]
    ratios = [f"{ratio:.3g}" if ratio == ratio else "–" for ratio in one.ratios.values()]
    return [[one.method, f"{one.sm_clock_mhz:.0f} MHz", *numbers], ["", "over wattprint", *ratios]]


def _legend(baselines: Baselines) -> str:
    """What the baselines are made of, and what they could not say."""
    listed = [one for theirs in baselines for one in theirs]
    lines = {f"{one.method}: {one.basis}": None for one in listed}
    lines |= {f"{one.method}, {printable(one.workload)}: {one.missing}": None for one in listed if one.missing}
    return "".join(f"  {line}\n" for line in lines)


# Notebooks ------------------------------------------------------------------------------------------------------------
