"""Rows left out of a fit as its report sees them: errors beside what they may depend on, and statistics of errors in bins.

Everything is columns and bins: a report of a million rows is as large as one of ten thousand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from estimator.quantities import Array, IntArray
from estimator.residuals import operator_work
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.validate.predictions import PERCENT, Prediction

T = TypeVar("T")

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of signed errors in every bin: ends, quarters and the middle."""

MOST_BINS: Final = 24
"""Bins of one chart."""

MOST_SEPARATE: Final = 40
"""Values that are told apart one by one, such as clocks; more are binned."""

SAMPLED: Final = 1000
"""Values among which more than MOST_SEPARATE different ones say enough."""

WORK_FACTOR: Final = 4.0
"""Ratio of neighbouring edges of work and of time."""

UINT16_VALUES: Final = 2**16

PROBED_ORIGINS: Final = 64
"""Rows whose origin is compared before columns of two tables are taken for the same rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """Held-out rows of one kind ("kernels", "workloads") as columns of shape (n,).

    latency_error, power_error   predicted / measured - 1 [percent]; nan where one of them is unknown
    names, name_index            kinds of kernel ("gemm linear bf16"), and the one of each row
    families, family_index       families, and the one of each row
    work                         work of the kernel, comparable within a family; nan where unknown
    sm_clock_mhz, temperature_c  nan where unknown
    started_s                    wall time of the measurement [s since 1970]; nan where not recorded
    """

    kind: str
    prediction: Prediction
    latency_error: Array
    power_error: Array
    names: tuple[str, ...]
    name_index: IntArray
    families: tuple[str, ...]
    family_index: IntArray
    work: Array
    sm_clock_mhz: Array
    temperature_c: Array
    started_s: Array

    def errors(self, quantity: str) -> Array:
        """Of "latency" or "power" [percent]."""
        return self.latency_error if quantity == "latency" else self.power_error


def held_rows(kind: str, prediction: Prediction, selection: Selection) -> HeldRows:
    """Held-out predictions beside what is known of their rows; what the selection does not tell of them is nan."""
    index, labels = _codes(prediction.labels)
    names = [" ".join(part for part in label[1:] if part) for label in labels]
    rows = selection.kernels if kind == "kernels" else selection.workloads
    unknown = np.full(len(prediction), np.nan)
    columns = {"work": unknown, "sm_clock_mhz": unknown, "temperature_c": unknown, "started_s": unknown}
    if rows is not None and _are_the_same(prediction, rows):
        columns |= _known_columns(rows)
    of_family, families = _codes([label[1] for label in labels])
    with np.errstate(invalid="ignore", divide="ignore"):
        latency = (prediction.predicted_s / prediction.measured_s - 1.0) * PERCENT
        power = (prediction.predicted_w / prediction.measured_w - 1.0) * PERCENT
    return HeldRows(
        kind=kind,
        prediction=prediction,
        latency_error=_finite(latency),
        power_error=_finite(power),
        names=tuple(names),
        name_index=index,
        families=tuple(families),
        family_index=of_family[index] if len(index) else index,
        **columns,
    )


def _codes(values: Sequence[T]) -> tuple[IntArray, list[T]]:
    """The number of each value among the different ones, and these in first-seen order."""
    known = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.fromiter(map(known.__getitem__, values), np.int64, len(values)), list(known)


def largest(values: Array, count: int) -> IntArray:
    """Places of the `count` largest values, shape (n,), the largest first and equal ones in order; nan is none."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > count:
        least = np.partition(values[known], len(known) - count)[len(known) - count]
        known = known[values[known] >= least]
    result: IntArray = known[np.argsort(-values[known], kind="stable")[:count]]
    return result


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.nan)


def _are_the_same(prediction: Prediction, rows: KernelRows | WorkloadRows) -> bool:
    """Whether the prediction has the rows of a table in their order; rows in no fold have no origin."""
    if len(prediction) != len(rows) or not len(rows):
        return False
    for i in np.unique(np.linspace(0, len(rows) - 1, PROBED_ORIGINS).astype(np.int64)).tolist():
        if prediction.origins[i] not in ("", f"{rows.sources[rows.source_index[i]]} row {rows.row[i]}"):
            return False
    return True


def _known_columns(rows: KernelRows | WorkloadRows) -> dict[str, Array]:
    measured = rows.sm_clock_measured_mhz if isinstance(rows, WorkloadRows) else rows.sm_clock_mhz
    clock = np.where(np.isfinite(rows.sm_clock_asked_mhz), rows.sm_clock_asked_mhz, measured)  # measured ones are all different
    if isinstance(rows, WorkloadRows):
        return {"sm_clock_mhz": clock, "temperature_c": rows.temperature_c}
    return {
        "work": operator_work(rows.operators)[rows.operator_index],
        "sm_clock_mhz": clock,
        "temperature_c": rows.temperature_c,
        "started_s": rows.started_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Signed errors in bins of something, as columns of shape (b,); empty bins are left out.

    low, high   edges of each bin; equal where a bin is one value
    place       where it is drawn: the middle, the geometric one of logarithmic bins
    count       rows
    quantiles   (b, 5) of the error at QUANTILES
    size        median of the error's magnitude
    """

    low: Array
    high: Array
    place: Array
    count: IntArray
    quantiles: Array
    size: Array

    def __len__(self) -> int:
        return len(self.count)


def binned(values: Array, errors: Array, *, logarithmic: bool = False) -> Bins:
    """Errors by a value, shapes (n,): one bin for each value where there are few, else bins of equal width or equal ratio."""
    known = np.isfinite(values) & np.isfinite(errors) & ((values > 0.0) | (not logarithmic))
    value, error = values[known], errors[known]
    if not logarithmic and len(np.unique(value[:: len(value) // SAMPLED + 1])) <= MOST_SEPARATE:
        separate = np.unique(value)
        if len(separate) <= MOST_SEPARATE:
            return _in_bins(separate, separate, separate, np.searchsorted(separate, value), error)
    edges = _edges(float(value.min()), float(value.max()), logarithmic=logarithmic) if len(value) else np.zeros(1)
    index = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, max(len(edges) - 2, 0))
    low, high = edges[:-1], edges[1:]
    return _in_bins(low, high, np.sqrt(low) * np.sqrt(high) if logarithmic else 0.5 * (low + high), index, error)


def in_order(errors: Array) -> Bins:
    """Errors by the place of their row among those that have one, shape (n,)."""
    known = errors[np.isfinite(errors)]
    return binned(np.arange(1.0, len(known) + 1.0), known)


def _edges(low: float, high: float, *, logarithmic: bool) -> Array:
    if not logarithmic:
        return np.linspace(low, high, MOST_BINS + 1)
    first, last = np.floor(np.log(low) / np.log(WORK_FACTOR)), np.floor(np.log(high) / np.log(WORK_FACTOR)) + 1.0
    step = max(1.0, np.ceil((last - first) / MOST_BINS))
    result: Array = WORK_FACTOR ** np.arange(first, last + step, step)
    return result


def by_name(index: IntArray, count: int, errors: Array) -> Bins:
    """Errors by the number of their rows' kind, shapes (n,)."""
    known = np.isfinite(errors)
    numbers = np.arange(float(count))
    return _in_bins(numbers, numbers, numbers, index[known], errors[known])


def _in_bins(low: Array, high: Array, place: Array, index: IntArray, error: Array) -> Bins:
    narrow = index.astype(np.uint16) if len(low) <= UINT16_VALUES else index  # 16-bit numbers are sorted by radix, many times as fast
    order = np.argsort(narrow, kind="stable")
    count = np.bincount(index, minlength=len(low))
    filled = np.flatnonzero(count)
    parts = np.split(error[order], np.cumsum(count[filled])[:-1]) if len(filled) else []
    return Bins(
        low=low[filled],
        high=high[filled],
        place=place[filled],
        count=count[filled],
        quantiles=np.array([np.quantile(part, QUANTILES) for part in parts]).reshape(len(parts), len(QUANTILES)),
        size=np.array([np.median(np.abs(part)) for part in parts]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of rows inside their stated intervals [percent], by the share that these are meant to hold [percent]."""

    name: str
    rows: int
    nominal: Array
    found: Array


NOMINAL: Final[Mapping[float, float]] = {
    50.0: 0.6744897501960817,
    68.0: 0.994457883209753,
    80.0: 1.2815515655446004,
    90.0: 1.6448536269514722,
    95.0: 1.959963984540054,
    99.0: 2.5758293035489004,
}
"""Shares of a normal distribution [percent] and how many standard deviations on each side hold them."""


def coverage_of(held: HeldRows, quantity: str) -> Coverage | None:
    """Of the intervals of "latency" or "power"; None where none is stated."""
    p = held.prediction
    measured, predicted, std = (
        (p.measured_s, p.predicted_s, p.latency_ln_std) if quantity == "latency" else (p.measured_w, p.predicted_w, p.power_ln_std)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.abs(np.log(measured / predicted)) / std
    score = score[~np.isnan(score)]
    if not len(score):
        return None
    found = [float((score <= half).mean()) * PERCENT for half in NOMINAL.values()]
    return Coverage(name=f"{quantity} of {held.kind}", rows=len(score), nominal=np.array(list(NOMINAL)), found=np.array(found))
