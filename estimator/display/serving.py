"""Served models: a headline with ranges for people, a table of several, JSON and CSV for programs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from estimator.display.answers import MOST_LINES
from estimator.display.charts import Series, axis_over, line_svg
from estimator.display.text import ENERGY_UNITS, MOST_ROWS, POWER_UNITS, TIME_UNITS, aligned, indented, percent, rows_csv, together
from estimator.display.text import with_uncertainty as quantity
from estimator.uncertainty.validity import GIB
from estimator.vocabulary.documents import printable
from estimator.vocabulary.errors import OperatingPointError

if TYPE_CHECKING:
    from estimator.serving.answers import ServedEstimate

HEADLINE: Final = {
    "tokens_per_s": ("tokens/s", ((1.0, ""),)),
    "ttft_s": ("TTFT", TIME_UNITS),
    "tpot_s": ("TPOT", TIME_UNITS),
    "power_w": ("power", POWER_UNITS),
    "energy_per_token_j": ("J/token", ENERGY_UNITS),
}
"""Values of the headline with their words and units."""

LABELS: Final = ("model", "bundle", "gpu", "gpus", "tensor_parallel", "engine", "batch", "rate", "asked_clock_mhz")
"""Columns that identify a point of a sweep."""

LEAST_SHARE: Final = 0.005
"""Least share of the time that is listed."""


def served_csv(answers: Sequence["ServedEstimate"]) -> str:
    """CSV with a line for every answer; parts and memory as columns of their own."""
    rows = []
    for answer in answers:
        row = asdict(answer)
        for inner, own in (("share ", row.pop("parts")), ("memory ", row.pop("memory"))):
            row |= {f"{inner}{key}": value for key, value in own.items()}
        rows.append({name: "; ".join(value) if isinstance(value, tuple) else value for name, value in row.items()})
    return rows_csv(rows)


CHARTS: Final = {
    "energy": ("energy_per_token_j", "energy of a token [J]"),
    "tokens": ("tokens_per_s", "output tokens [1/s]"),
    "latency": ("tpot_s", "time per output token [s]"),
    "power": ("power_w", "power of all GPUs [W]"),
}
"""Charts of several answers: the value and its axis."""


def served_svg(answers: Sequence["ServedEstimate"], chart: str) -> str:
    """A value over the requests in flight, or over the clock if one load is asked, with 90 % bands; a line for each GPU and layout.

    Raises OperatingPointError if fewer than two points have an answer.
    """
    value, label = CHARTS[chart]
    over = "batch" if len({answer.batch for answer in answers}) > 1 else "asked_clock_mhz"
    lines: dict[str, list[ServedEstimate]] = {}
    for answer in answers:
        clock = f", {answer.asked_clock_mhz:g} MHz" if over == "batch" else ""
        lines.setdefault(f"{_group(answer)} ({answer.bundle}){clock}", []).extend([] if answer.state else [answer])
    if max(map(len, lines.values()), default=0) < 2:
        raise OperatingPointError("a chart needs two points of one GPU that have an answer: give --batch or --freqs a list")
    series = []
    for name, points in list(lines.items())[:MOST_LINES]:
        columns = [[getattr(one, field) for field in (over, value, f"{value}_low", f"{value}_high")] for one in points]
        x, y, low, high = np.array(sorted(columns), dtype=np.float64).reshape(-1, 4).T
        series.append(Series(name=name, x=x, y=y, band=(low, high)))
    across = axis_over("requests in flight" if over == "batch" else "asked SM clock [MHz]", [one.x for one in series])
    up = axis_over(label, [edge for one in series for edge in one.band or ()])
    return line_svg(f"{answers[0].model}: {label}", f"{label} with 90 % bands", series, across, up, len(lines) - MOST_LINES)


def served_text(answers: Sequence["ServedEstimate"]) -> str:
    """For people: one answer in full, several as a table."""
    return _full(answers[0]) if len(answers) == 1 else _table(answers)


def _full(answer: "ServedEstimate") -> str:
    load = f"{answer.batch} in flight" if answer.rate is None else f"{answer.rate:g} requests/s"
    asked, held = (f"{mhz:.0f} MHz" for mhz in (answer.asked_clock_mhz, answer.sm_clock_mhz))  # the mean; the power limit may lower it
    clock = held if held == asked else f"{held} (asked {asked})"
    what = f"{printable(answer.model)} ({answer.weights}, cache {answer.kv}) on {_group(answer)} at {clock}, {printable(answer.engine)}"
    text = (
        f"{what}, {answer.prompt} + {answer.output} tokens, {load} ({answer.bundle}, {answer.state and 'no answer: '}{_verdict(answer)})\n"
    )
    if answer.state:
        return f"{text}  {answer.state}\n"
    rows = []
    for name, (word, units) in HEADLINE.items():
        value, low, high = (quantity(getattr(answer, f"{name}{end}"), math.nan, units).strip() for end in ("", "_low", "_high"))
        rows.append([word, value, f"({low} to {high})" * (low != value)])
        if name == "ttft_s":
            rows[-1][2] = f"in an empty engine; under load {quantity(answer.ttft_loaded_s, math.nan, units)} ({low} to {high})"
    shares = ", ".join(f"{name} {percent(share)}" for name, share in answer.parts.items() if share > LEAST_SHARE and name != "prompts")
    memory, free = answer.memory, f"caches of up to {answer.memory.sequences} requests in {answer.memory.free_byte / GIB:.1f} GiB"
    text += aligned(rows, left_columns=(0, 2)) + f"  time: {shares}; prompts take {percent(answer.parts['prompts'])}\n"
    text += indented(together([answer.gpus]))
    return f"{text}  memory of a GPU: weights {memory.weights_byte / GIB:.1f} GiB, {free}\n"


def _group(answer: "ServedEstimate") -> str:
    """The GPUs; of several copies of the attention also the GPUs of one."""
    copied = answer.tensor_parallel < answer.gpus
    return f"{answer.gpus} x {answer.gpu}" + f" (tensor parallel {answer.tensor_parallel})" * copied


def _verdict(answer: "ServedEstimate") -> str:
    return answer.state.partition(":")[0] or str(answer.validity)


def _table(answers: Sequence["ServedEstimate"]) -> str:
    """A line for each of the first answers; labels that all share stand above."""
    values = {name: list(dict.fromkeys(getattr(answer, name) for answer in answers)) for name in LABELS}
    labels = {name: name.replace("_mhz", " [MHz]").replace("_", " ") for name, found in values.items() if found != [None]}
    shown = [name for name in labels if len(values[name]) > 1]
    fixed = ", ".join(f"{label} {printable(str(values[name][0]))}" for name, label in labels.items() if name not in shown)
    columns = HEADLINE | {"ttft_s": ("TTFT under load", TIME_UNITS)}
    rows = [[*map(labels.__getitem__, shown), *(word for word, _ in columns.values()), "verdict"]]
    for answer in answers[:MOST_ROWS]:
        own = [f"{value:g}" if isinstance(value, float) else str(value) for value in (getattr(answer, name) for name in shown)]
        under_load = replace(answer, ttft_s=answer.ttft_loaded_s)
        numbers = [quantity(getattr(under_load, name), math.nan, units).strip() for name, (_, units) in columns.items()]
        rows.append([*own, *numbers, _verdict(answer)])
    rest = f"  … {len(answers) - MOST_ROWS} more points (--csv or --json for all)\n" if len(answers) > MOST_ROWS else ""
    rest += indented(together(answer.gpus for answer in answers))
    return f"{fixed}\n" + aligned(rows, left_columns=(len(rows[0]) - 1,)) + rest
