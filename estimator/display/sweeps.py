"""Sweeps, best points and comparisons: tables for people, CSV and JSON for programs."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from estimator.display.text import (
    MOST_ROWS,
    UNKNOWN,
    Document,
    aligned,
    csv_lines,
    indented,
    known,
    percent,
    plain,
    quantity_texts,
    seconds,
    together,
)
from estimator.questions.sweeping import LABELS, Sweep
from estimator.vocabulary.documents import printable

if TYPE_CHECKING:
    from estimator.questions.choosing import Best, Comparison, Gain

TOO_LARGE: Final = "does not fit in the memory of {}"

Point = dict[str, Any]


def csv_pieces(pieces: Iterable[Sweep]) -> Iterator[str]:
    """CSV with a header and a line for every point; unknown numbers are empty."""
    for number, columns in enumerate(points.columns() for points in pieces):
        yield csv_lines(zip(*columns.values(), strict=True), header=None if number else list(columns))


def json_pieces(pieces: Iterable[Sweep]) -> Iterator[str]:
    """One JSON list with an object for every point; unknown numbers are null."""
    start = "[\n "
    for points in pieces:
        yield start + ",\n ".join(json.dumps(known(row), allow_nan=False) for row in points)
        start = ",\n "
    yield "\n]\n"


def sweep_table(points: Sweep, most: int = MOST_ROWS) -> str:
    """A table with a line for each of the first `most` points; columns with one value for all points are listed above it."""
    count = len(points)
    simulated = ", fitted on a simulated board" if any(case.simulated for case in points.cases) else ""
    rows, (shown, fixed) = list(points.select(np.arange(count)[:most])), _differing(points)
    tokens = any(math.isfinite(row["tokens_per_j"]) for row in rows)
    table = [[*shown, "asked", "SM clock", "latency", "power", "energy", *["tokens/J"] * tokens]]
    for row in rows:
        table.append([*_texts(row, shown), f"{row['asked_clock_mhz']:g}", *_numbers(row), *[plain(row["tokens_per_j"], ".4g")] * tokens])
    rest = [f"… {count - most} more points (--csv or --json for all)"] if count > most else []
    remarks = [*rest, *together([row["gpus"] for row in rows]), *_elsewhere(rows)]
    head = f"{fixed}{simulated}{_too_large(points)}\n".lstrip("\n")
    return head + aligned(table, range(len(shown))) + indented(remarks)


def _elsewhere(rows: Sequence[Point]) -> list[str]:
    """The uncertainty in another laboratory, a line for people; empty if a bundle states none."""
    parts = {name: max(row[f"{name}_std_elsewhere"] / row[name] for row in rows) for name in ("latency_s", "power_w")}
    told = [f"{name.partition('_')[0]} ± {percent(share)}" for name, share in parts.items() if math.isfinite(share)]
    return [f"± in the laboratories behind the bundle; in another one up to {', '.join(told)}"] if told else []


def _texts(row: Point, names: Iterable[str]) -> list[str]:
    return [printable(str(row[name] or "")) for name in names]


def _numbers(row: Point) -> list[str]:
    """Texts of the clock, latency, power and energy of a point."""
    return [plain(row["sm_clock_mhz"], ".0f", " MHz"), *quantity_texts(row)]


def _differing(points: Sweep) -> tuple[list[str], str]:
    """The labels and the validity that differ between points, and a line of those that all points share."""
    values = {name: list(dict.fromkeys(points.label(name))) for name in LABELS} | {"validity": sorted(set(points.validity()))}
    fixed = (f"{name} {printable(str(one[0]))}" for name, one in values.items() if len(one) == 1 and one[0] and (name, *one) != ("gpus", 1))
    return [name for name, one in values.items() if len(one) > 1], ", ".join(fixed)


def _too_large(points: Sweep) -> str:
    """The end of a headline if models do not fit into memory: on which boards, and how many of several."""
    cases = points.present().values()
    large = [case for case in cases if case.too_large]
    which = f" ({len(large)} of {len(cases)})" if len(cases) > 1 else ""
    gpus = ", ".join(dict.fromkeys(case.gpu for case in large))
    return f": {TOO_LARGE.format(gpus)}{which}" if large else ""


# Best -----------------------------------------------------------------------------------------------------------------


def best_document(answer: "Best") -> Document:
    """The answer as JSON data: the best point, points that do not differ significantly, gains over the usual clock, the front."""
    points = answer.points
    return {
        "goal": answer.goal,
        "best": next(iter(points.select(np.array([answer.index])))),
        "indistinguishable": {
            "low_clock_mhz": answer.clocks_mhz[0],
            "high_clock_mhz": answer.clocks_mhz[1],
            "clocks_mhz": points.asked_clock_mhz[answer.alike].tolist(),
        },
        "usual_clock_mhz": answer.usual_clock_mhz,
        "over_usual_clock": answer.gains,
        "points": len(points),
        "points_within_limits": int(answer.fits.sum()),
        "front": list(points.select(answer.front)),
    }


def gain_text(gain: "Gain") -> str:
    """A ratio for people, with its 90 % interval if that is known and wider than the ratio itself (unlike boards at one cap)."""
    if not math.isfinite(gain.ratio):
        return UNKNOWN
    ratio, low, high = (f"{value:.3g}" for value in (gain.ratio, gain.low, gain.high))
    return f"{ratio} ({low} to {high})" if math.isfinite(gain.low) and not ratio == low == high else ratio


def best_text(answer: "Best") -> str:
    """The answer for people."""
    points = answer.points
    case, (low, high) = points.cases[points.case[answer.index]], answer.clocks_mhz
    settings = "".join(f", {word}" for word in (case.precision, case.attention and f"{case.attention} attention") if word)
    texts = [
        f"least {answer.goal}: {points.asked_clock_mhz[answer.index]:g} MHz, {printable(case.workload)} on {case.gpu}{settings}",
        sweep_table(points.select(np.array([answer.index]))).rstrip("\n"),
        f"cannot be told from it: {low:g} to {high:g} MHz ({len(answer.alike)} of the clocks asked)",
        f"against {answer.usual_clock_mhz:g} MHz: " + ", ".join(f"{name} × {gain_text(gain)}" for name, gain in answer.gains.items()),
        f"front between latency and energy: {len(answer.front)} of {int(answer.fits.sum())} points",
        sweep_table(points.select(answer.front), 12).partition("\n")[2] if len(answer.front) else "",
    ]
    return "\n".join(texts)


# Comparisons ----------------------------------------------------------------------------------------------------------


def comparison_document(sides: Sweep, comparisons: Sequence["Comparison"], rooflines_s: Sequence[float]) -> Document:
    """The first side, all others with their ratios to it, and each side's `roofline_s`, if there are any, as JSON data."""
    documents = with_rooflines(sides, rooflines_s)
    for document, one in zip(documents[1:], comparisons, strict=True):
        document["ratios"] = one.ratios
    return {"reference": documents[0], "others": documents[1:]}


def with_rooflines(sides: Sweep, rooflines_s: Sequence[float]) -> list[Point]:
    """A row for every side, with its `roofline_s` if there are any."""
    rows = list(sides)
    for row, roofline_s in zip(rows, rooflines_s, strict=False):
        row["roofline_s"] = roofline_s
    return rows


def comparison_text(sides: Sweep, comparisons: Sequence["Comparison"], rooflines_s: Sequence[float]) -> str:
    """A table with a line for the reference and two for every other side: its numbers, and its ratios with 90 % intervals.

    A roofline has a line below its side, with its share in the latency.
    """
    shown, fixed = _differing(sides)
    table = [[*shown, "SM clock", "latency", "power", "energy"]]
    blank = [""] * len(shown)
    for number, point in enumerate(sides):
        table.append([*_texts(point, shown), *_numbers(point)])
        if number:
            table.append([*blank, "ratio", *map(gain_text, comparisons[number - 1].ratios.values())])
        for roofline_s in rooflines_s[number : number + 1]:
            table.append([*blank, "roofline", seconds(roofline_s), percent(roofline_s / sides.latency_s[number]), ""])
    return f"{fixed}{_too_large(sides)}\n" + aligned(table, range(len(blank))) + indented(together(sides.label("gpus")))
