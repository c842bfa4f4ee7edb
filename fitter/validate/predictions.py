"""Validation: what a bundle is worth on rows that its fit has not seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.kernel_table import predict_kernels
from estimator.model.coefficients import group_key, longest_prefix
from estimator.model.lowering import KnownTiles
from estimator.questions.estimates import estimate
from estimator.uncertainty.forecast import FORECAST_STD
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import Workload
from fitter.rows.columns import KernelRows, WorkloadRows
from fitter.rows.screening import taken

PERCENT: Final = 100.0

Label = tuple[str, str, str, str]
"""GPU, family, operator and precision of a kind of rows."""

WORKLOAD_FAMILY: Final = "workload"
"""The `family` of error rows of whole workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predictions beside measurements, columns of shape (n,); nan where there is none.

    ln_std are the stated standard deviations of ln(latency) and ln(power).  `labels` holds (gpu, family, operator,
    precision) of each row, `origins` its file and row number.
    """

    labels: tuple[Label, ...]
    origins: tuple[str, ...]
    measured_s: Array
    predicted_s: Array
    latency_ln_std: Array
    measured_w: Array
    predicted_w: Array
    power_ln_std: Array

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: IntArray | BoolArray) -> "Prediction":
        """The rows `index`."""
        return taken(self, index)

    def known(self) -> "Prediction":
        """Rows with a prediction."""
        return self.select(np.isfinite(self.predicted_s))


def filled_prediction(parts: Sequence[tuple[BoolArray, Prediction]]) -> Prediction:
    """Predictions of folds as one, in the order of the rows; rows in no fold have nan.

    parts: for each fold which rows it holds, shape (n,), and their predictions.
    """
    count = len(parts[0][0])
    index = np.concatenate([np.flatnonzero(fold) for fold, _ in parts])
    place = {row: i for i, row in enumerate(index.tolist())}
    columns: dict[str, Any] = {}
    for name in Prediction.__slots__:
        own = [getattr(part, name) for _, part in parts]
        if name in ("labels", "origins"):
            joined, empty = sum(own, ()), ("", "", "", "") if name == "labels" else ""
            columns[name] = tuple(joined[place[i]] if i in place else empty for i in range(count))
        else:
            columns[name] = np.full(count, np.nan)
            columns[name][index] = np.concatenate(own)
    return Prediction(**columns)


def plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as plain data for JSON; nan is null."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and np.isnan(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of one quantity over n rows, in percent of the measured value: mean, median and 95th percentile of the
    absolute error, and the mean signed error; share of the rows inside their stated 90 % interval (nan: none is stated).
    """

    n: int
    mape: float
    median: float
    p95: float
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Errors of one kind of kernel (or of whole workloads) on one GPU; None where nothing could be compared."""

    gpu: str
    family: str
    operator: str
    precision: str
    n: int
    latency: Errors | None
    power: Errors | None

    @property
    def coverage(self) -> float:
        """Share of all stated 90 % intervals, of latency and power, that hold the measured value; nan where none is stated."""
        parts = [e for e in (self.latency, self.power) if e is not None and not np.isnan(e.coverage)]
        total = sum(e.n for e in parts)
        return sum(e.coverage * e.n for e in parts) / total if total else float("nan")

    def document(self) -> dict[str, Any]:
        """As plain data, in the form of `fit check --json`."""
        return {**plain(self), "coverage": plain(self.coverage)}


def label_of(row: ErrorRow) -> Label:
    """The kind that a row of errors is of."""
    return row.gpu, row.family, row.operator, row.precision


def errors_of(measured: Array, predicted: Array, ln_std: Array) -> Errors | None:
    """Errors over the rows where both values are known; None where there are none."""
    known = np.isfinite(measured) & np.isfinite(predicted) & (measured > 0) & (predicted > 0)
    if not known.any():
        return None
    ratio = predicted[known] / measured[known]
    error = np.abs(ratio - 1.0) * PERCENT
    stated = np.isfinite(ln_std[known])
    inside = np.abs(np.log(ratio[stated])) <= NORMAL_90 * ln_std[known][stated]
    return Errors(
        n=int(known.sum()),
        mape=float(error.mean()),
        median=float(np.median(error)),
        p95=float(np.quantile(error, 0.95)),
        bias=float((ratio - 1.0).mean() * PERCENT),
        coverage=float(inside.mean()) if stated.any() else float("nan"),
    )


def error_rows(prediction: Prediction, keys: Sequence[Label] | None = None) -> list[ErrorRow]:
    """Errors by GPU, family, operator and precision in first-seen order; keys: other labels of the rows, "" as GPU for none."""
    members: dict[Label, list[int]] = {}
    for i, label in enumerate(prediction.labels if keys is None else keys):
        members.setdefault(label, []).append(i)
    return [_error_row(label, prediction.select(np.array(index, dtype=np.int64))) for label, index in members.items()]


def summary_row(prediction: Prediction, family: str) -> ErrorRow:
    """Errors over all rows together, whatever their kind."""
    return _error_row((", ".join(sorted({label[0] for label in prediction.labels})), family, "all", ""), prediction)


def _error_row(label: Label, p: Prediction) -> ErrorRow:
    gpu, family, operator, precision = label
    latency, power = errors_of(p.measured_s, p.predicted_s, p.latency_ln_std), errors_of(p.measured_w, p.predicted_w, p.power_ln_std)
    return ErrorRow(gpu=gpu, family=family, operator=operator, precision=precision, n=len(p), latency=latency, power=power)


def predict_kernel_rows(bundle: Bundle, rows: KernelRows) -> Prediction:
    """Kernels at their own clocks, each on its own GPU; tiles from kernel names are used where known.

    Kernels of which the bundle knows nothing get nan.  Power of rows at the power limit is left out: there the
    measurement is a lower bound.
    """
    count = len(rows)
    columns = {name: np.full(count, np.nan) for name in ("latency", "power", "latency_ln", "power_ln")}
    for number, name in enumerate(rows.gpus):
        own = np.flatnonzero(rows.gpu_index == number)
        if not len(own):
            continue
        part, gpu = rows.select(own), gpu_of(bundle, name)
        known = KnownTiles(tile_m=part.tile_m, tile_n=part.tile_n, split=part.split_k)
        table = predict_kernels(
            part.row_operators(),
            bundle,
            gpu,
            sm_clock_mhz=part.clock_mhz(gpu),
            warm=part.l2_warm,
            known=known,
            temperature_c=part.temperature_c,
        )
        served = np.array([group is not None for group in table.groups])
        columns["latency"][own] = np.where(served, table.latency_s, np.nan)
        columns["power"][own] = np.where(served, table.power_w, np.nan)
        common = _stated_std(bundle.uncertainty.get("latency", {}), table.groups)
        stated = np.where(np.isfinite(table.latency_ln_std), table.latency_ln_std, common)
        forecast_s, forecast_w = _forecast_std(bundle, gpu)
        columns["latency_ln"][own] = np.hypot(stated, forecast_s)
        common = _stated_std(bundle.uncertainty.get("power", {}), table.groups)
        columns["power_ln"][own] = np.hypot(np.where(np.isfinite(table.power_ln_std), table.power_ln_std, common), forecast_w)
    operators = rows.row_operators()
    return Prediction(
        labels=tuple((rows.gpus[g], o.family, o.operator, o.precision) for g, o in zip(rows.gpu_index, operators, strict=True)),
        origins=row_origins(rows),
        measured_s=rows.latency_s,
        predicted_s=columns["latency"],
        latency_ln_std=columns["latency_ln"],
        measured_w=np.where(rows.at_limit, np.nan, rows.power_w),
        predicted_w=columns["power"],
        power_ln_std=columns["power_ln"],
    )


def _forecast_std(bundle: Bundle, gpu: GpuSpec) -> tuple[float, float]:
    """What another GPU than the bundle's adds to the deviations of ln(latency) and ln(power)."""
    if gpu.name == bundle.gpu.name:
        return 0.0, 0.0
    return FORECAST_STD["alike" if gpu.architecture == bundle.gpu.architecture else "other"]


def predict_workload_rows(bundle: Bundle, rows: WorkloadRows) -> Prediction:
    """Runs of whole workloads at the clocks asked for, the power limit solved, each on its own GPU."""
    labels, columns = [], []
    for i in range(len(rows)):
        name = rows.gpus[rows.gpu_index[i]]
        gpu, workload = gpu_of(bundle, name), rows.workloads[rows.workload_index[i]]
        clock = float(rows.select(np.array([i])).asked_clock_mhz(gpu)[0])
        a = estimate(workload, bundle, sm_clock_mhz=clock, gpu=gpu)[0]
        columns.append(np.log([a.latency_s_low, a.latency_s, a.latency_s_high, a.power_w_low, a.power_w, a.power_w_high]))
        labels.append((name, WORKLOAD_FAMILY, "model", workload_precision(workload)))
    table = np.array(columns).reshape(len(columns), 2, 3)
    return Prediction(
        labels=tuple(labels),
        origins=row_origins(rows),
        measured_s=rows.latency_s,
        predicted_s=np.exp(table[:, 0, 1]),
        latency_ln_std=facing_std(rows.latency_s, table[:, 0]),
        measured_w=rows.power_w,
        predicted_w=np.exp(table[:, 1, 1]),
        power_ln_std=facing_std(rows.power_w, table[:, 1]),
    )


def facing_std(measured: Array, log_interval: Array) -> Array:
    """Deviation of a logarithm on the side of each prediction on which the measured value lies, shape (n,): intervals may be lopsided.

    log_interval: logarithms of lower limit, value and upper limit of 90 % intervals, shape (n, 3).
    """
    low, value, high = log_interval.T
    with np.errstate(invalid="ignore"):
        std: Array = np.where(np.log(measured) > value, high - value, value - low) / NORMAL_90
    return std


def row_origins(rows: KernelRows | WorkloadRows) -> tuple[str, ...]:
    """File and row number of each row, to follow a residual back to its measurement."""
    return tuple(f"{rows.sources[s]} row {n}" for s, n in zip(rows.source_index.tolist(), rows.row.tolist(), strict=True))


def gpu_of(bundle: Bundle, name: str) -> GpuSpec:
    """The specification of a row's GPU: the bundle's own, else the shipped one."""
    return bundle.gpu if name == bundle.gpu.name else load_gpu(name)


def workload_precision(workload: Workload) -> str:
    """The number format of most of a workload's matrix products, else of most of its operators."""
    counts: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        tally = counts[operator.family in ("gemm", "conv", "attention")]
        tally[operator.precision] = tally.get(operator.precision, 0.0) + count
    chosen = counts[True] or counts[False]
    return max(chosen, key=lambda precision: chosen[precision]) if chosen else ""


def served_groups(bundle: Bundle, rows: KernelRows) -> list[str | None]:
    """The coefficient group that serves each row, None where none does."""
    names = [longest_prefix(group_key(operator), bundle.groups) for operator in rows.operators]
    return [names[i] for i in rows.operator_index]


def _stated_std(stated: Mapping[str, Any], groups: Sequence[str | None]) -> Array:
    """Stated standard deviations of ln for kernels of these groups, nan where none is stated."""
    known: Mapping[str, float] = stated.get("groups", {})
    return np.array([float(known[group]) if group is not None and group in known else np.nan for group in groups])


def grouped_folds(labels: IntArray, share: float, seed: int) -> list[BoolArray]:
    """All rows in random folds of about this share of the labels: rows of one label stay together.  None where `share` is 0."""
    unique = np.unique(labels)
    if len(unique) < 2 or share <= 0:
        return []
    count = int(np.clip(round(1.0 / share), 2, len(unique)))
    shuffled = np.random.default_rng(seed).permutation(unique)
    return [np.isin(labels, part) for part in np.array_split(shuffled, count)]
