"""Validation: predictions of rows, their errors, limits of held-out errors, and kinds that the fit describes poorly."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle, ErrorFigures, HeldOut
from estimator.engine.board import open_board
from estimator.engine.kernel_table import predict_kernels
from estimator.engine.prediction import predict
from estimator.model.coefficients import group_key, longest_prefixes
from estimator.uncertainty.forecast import forecast_of
from estimator.uncertainty.laboratory import ELSEWHERE_STD, is_known, scale_of
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array, BoolArray, IntArray
from estimator.vocabulary.workload import Workload
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.rows.screening import first_known

PERCENT: Final = 100.0

Label = tuple[str, str, str, str]
"""GPU, family, operator and precision of a kind of rows."""

FramesByKind = Mapping[str, pd.DataFrame]
"""Predictions of rows by their kind, "kernels" and "workloads"."""

LABEL: Final = ["gpu", "family", "operator", "precision"]
QUANTITIES: Final[tuple[Literal["latency", "power"], ...]] = ("latency", "power")

WORKLOAD_FAMILY: Final = "workload"
"""The `family` of error rows of whole workloads."""


def errors_of(measured: Array, predicted: Array, ln_std: Array) -> ErrorFigures | None:
    """Errors over the rows where both values are known; None without such rows."""
    known = np.isfinite(measured) & np.isfinite(predicted) & (measured > 0) & (predicted > 0)
    if not known.any():
        return None
    ratio = predicted[known] / measured[known]
    error = np.abs(ratio - 1.0) * PERCENT
    stated = np.isfinite(ln_std[known])
    inside = np.abs(np.log(ratio[stated])) <= NORMAL_90 * ln_std[known][stated]
    return {
        "n": int(known.sum()),
        "mape": float(error.mean()),
        "median": float(np.median(error)),
        "p95": float(np.quantile(error, 0.95)),
        "bias": float((ratio - 1.0).mean() * PERCENT),
        "coverage": float(inside.mean()) if stated.any() else None,
    }


def unmeasured_rows(labels: Sequence[Label]) -> pd.DataFrame:
    """Rows of these kinds with all values and predictions unknown, in the form of `predict_kernel_rows`."""
    columns = [f"{column}_{quantity}" for column in ("measured", "predicted", "std") for quantity in QUANTITIES]
    return pd.DataFrame(labels, columns=LABEL).assign(**dict.fromkeys(columns, np.nan))


def error_rows(found: pd.DataFrame) -> list[HeldOut]:
    """Errors by GPU, family, operator and precision in first-seen order; found: as from `predict_kernel_rows`."""
    return [_error_row(label, rows) for label, rows in found.groupby(LABEL, sort=False)]  # type: ignore[arg-type]


def summary_row(found: pd.DataFrame, family: str) -> HeldOut:
    """Errors over all rows together, whatever their kind."""
    return _error_row((", ".join(sorted(set(found["gpu"]))), family, "all", ""), found)


def _error_row(label: Label, found: pd.DataFrame) -> HeldOut:
    latency, power = (
        errors_of(*(found[f"{column}_{quantity}"].to_numpy() for column in ("measured", "predicted", "std"))) for quantity in QUANTITIES
    )
    stated = [(own["coverage"], own["n"]) for own in (latency, power) if own is not None and own["coverage"] is not None]
    covered = sum(share * n for share, n in stated) / sum(n for _, n in stated) if stated else None
    kind = dict(zip(LABEL, label, strict=True))
    return {**kind, "n": len(found), "latency": latency, "power": power, "coverage": covered}  # type: ignore[typeddict-item]


def label_of(row: HeldOut) -> Label:
    """The kind of the rows."""
    return row["gpu"], row["family"], row["operator"], row["precision"]


def kind_of(rows: KernelRows | WorkloadRows) -> str:
    """The name of a selection's table: "kernels" or "workloads"."""
    return "kernels" if isinstance(rows, KernelRows) else "workloads"


def predict_rows(bundle: Bundle, rows: KernelRows | WorkloadRows) -> pd.DataFrame:
    """A bundle's predictions of rows of either kind, as from `predict_kernel_rows`."""
    return predict_kernel_rows(bundle, rows) if isinstance(rows, KernelRows) else predict_workload_rows(bundle, rows)


def compared(found: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a prediction."""
    return found.dropna(subset=[f"predicted_{quantity}" for quantity in QUANTITIES], how="all")


def predict_kernel_rows(bundle: Bundle, rows: KernelRows) -> pd.DataFrame:
    """Predictions of kernels at their own clocks, each on its own GPU, a line for each row; known tiles from kernel names are used.

    Columns: LABEL, `origin` (file and row), `what` ran, `collection`, `same` (the number of the kernel), `clock` [MHz]; for Q latency
    [s] and power [W]: measured_Q, predicted_Q, std_Q, the stated standard deviation of its logarithm: of this laboratory for collections
    that the bundle names, else of another one.  Kernels that the bundle does not cover get nan.  Power that is a lower bound is left out.
    """
    columns = {f"{column}_{quantity}": np.full(len(rows), np.nan) for quantity in QUANTITIES for column in ("predicted", "std")}
    for number, spec in enumerate(rows.gpus):
        own = np.flatnonzero(rows.gpu_index == number)
        if not len(own):
            continue
        part, gpu = rows.select(own), gpu_of(bundle, spec)
        home = np.array([is_known(bundle, one) for one in part.collections], dtype=np.bool_)[part.collection_index]
        scales = np.array([scale_of(bundle, one if is_known(bundle, one) else None) for one in part.collections])
        table = predict_kernels(
            part.row_operators(),
            bundle,
            gpu,
            sm_clock_mhz=part.clock_mhz(gpu),
            warm=part.l2_warm,
            known=part.tiles,
            # A collection of unknown load was fitted as it is; of another one the limit is expected to act.
            sustained=(part.sustained | ~(part.burst | home)) & np.isnan(part.sm_clock_mhz),
            scale=scales[part.collection_index],
        )
        served = np.array([group is not None for group in table.groups])
        forecast = forecast_of(bundle, gpu, {})
        further_std = (0.0, 0.0) if forecast is None else forecast.ln_std
        values = ((table.latency_s, table.latency_ln_std), (table.power_w, table.power_ln_std))
        for quantity, (value, std), further in zip(QUANTITIES, values, further_std, strict=True):
            columns[f"predicted_{quantity}"][own] = np.where(served, value, np.nan)
            columns[f"std_{quantity}"][own] = np.hypot(std, np.where(home, further, np.hypot(further, ELSEWHERE_STD[quantity])))
    measured = {"measured_latency": rows.latency_s, "measured_power": np.where(rows.bounded, np.nan, rows.power_w)}
    return _frame(rows, measured | columns)


def row_labels(rows: KernelRows | WorkloadRows) -> list[Label]:
    """The kind of each row."""
    if isinstance(rows, KernelRows):
        kinds = [(operator.family, operator.operator, operator.precision) for operator in rows.operators]
    else:
        kinds = [(WORKLOAD_FAMILY, "model", workload_precision(workload)) for workload in rows.workloads]
    return [(rows.gpus[g].name, *kinds[i]) for g, i in zip(rows.gpu_index.tolist(), same_numbers(rows).tolist(), strict=True)]


def same_numbers(rows: KernelRows | WorkloadRows) -> IntArray:
    """The number of the kernel or workload of each row, shape (n,)."""
    return rows.operator_index if isinstance(rows, KernelRows) else rows.workload_index


def _frame(rows: KernelRows | WorkloadRows, columns: Mapping[str, Array]) -> pd.DataFrame:
    if isinstance(rows, KernelRows):
        shapes = [", ".join(f"{name} {size:g}" for name, size in one.named_shape().items()) for one in rows.operators]
        what = [f"{shapes[i]} {name}".strip() for i, name in zip(rows.operator_index.tolist(), rows.kernel_name, strict=True)]
        measured_mhz = rows.sm_clock_mhz
    else:
        what = [workload.name for workload in rows.row_workloads()]
        measured_mhz = rows.sm_clock_measured_mhz
    return pd.DataFrame(row_labels(rows), columns=LABEL).assign(
        origin=[f"{rows.sources[s]} row {n}" for s, n in zip(rows.source_index.tolist(), rows.row.tolist(), strict=True)],
        what=what,
        collection=rows.row_collections(),
        same=same_numbers(rows),
        clock=first_known(rows.sm_clock_asked_mhz, measured_mhz),
        **columns,
    )


def predict_workload_rows(bundle: Bundle, rows: WorkloadRows) -> pd.DataFrame:
    """Predictions of workload runs at the requested clocks with the power limit, each on its own GPU; as from `predict_kernel_rows`."""
    points = []
    for i, workload in enumerate(rows.row_workloads()):
        gpu = gpu_of(bundle, rows.gpus[rows.gpu_index[i]])
        clock = float(rows.select(np.array([i])).asked_clock_mhz(gpu)[0])
        collection = rows.collections[rows.collection_index[i]]
        home = is_known(bundle, collection)
        found = predict([workload], open_board(bundle, sm_clock_mhz=clock, gpu=gpu, collection=collection if home else None))
        limits = found.limits if home else found.limits_elsewhere
        points.append([np.insert(getattr(limits, name).ravel(), 1, getattr(found, name)) for name in ("latency_s", "power_w")])
    table = np.log(points).reshape(-1, 2, 3)
    columns: dict[str, Array] = {}
    for number, (quantity, measured) in enumerate(zip(QUANTITIES, (rows.latency_s, rows.power_w), strict=True)):
        columns |= {f"measured_{quantity}": measured, f"predicted_{quantity}": np.exp(table[:, number, 1])}
        columns[f"std_{quantity}"] = facing_std(measured, table[:, number])
    return _frame(rows, columns)


def facing_std(measured: Array, log_interval: Array) -> Array:
    """Standard deviation of a logarithm on the measured value's side of each prediction, shape (n,), since intervals may be asymmetric.

    log_interval: logarithms of lower limit, value and upper limit of 90 % intervals, shape (n, 3).
    """
    low, value, high = log_interval.T
    with np.errstate(invalid="ignore"):
        std: Array = np.where(np.log(measured) > value, high - value, value - low) / NORMAL_90
    return std


def gpu_of(bundle: Bundle, spec: GpuSpec) -> GpuSpec:
    """The specification of a row's GPU, the bundle's for its own."""
    return bundle.gpu if spec.name == bundle.gpu.name else spec


def workload_precision(workload: Workload) -> str:
    """The number format of most of a workload's matrix products, else of most of its operators."""
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        counts[operator.family in ("gemm", "conv", "attention")][operator.precision] += count  # type: ignore[assignment]
    return next((precision for tally in reversed(counts) for precision, _ in tally.most_common(1)), "")


def served_groups(bundle: Bundle, rows: KernelRows) -> list[str | None]:
    """The coefficient group of each row, None without one."""
    names = longest_prefixes(map(group_key, rows.operators), bundle.groups)
    return [names[i] for i in rows.operator_index]


def grouped_folds(labels: IntArray, share: float, seed: int) -> list[BoolArray]:
    """All rows in random folds of about this share of the labels: rows of one label stay together.  Empty if `share` is 0."""
    unique = np.unique(labels)
    if len(unique) < 2 or share <= 0:
        return []
    count = int(np.clip(round(1.0 / share), 2, len(unique)))
    shuffled = np.random.default_rng(seed).permutation(unique)
    return [np.isin(labels, part) for part in np.array_split(shuffled, count)]


def single_kinds(selection: Selection) -> set[Label]:
    """Kinds of rows with a single kernel or workload: held out, it is extrapolated from other kinds, which does not test the model."""
    members = Counter(
        label for rows in selection.tables for label, _ in set(zip(row_labels(rows), same_numbers(rows).tolist(), strict=True))
    )
    return {label for label, count in members.items() if count == 1}


LARGEST_ERROR: Final = {"latency": 15.0, "power": 10.0}
"""Mean held-out error above which the fit does not describe a kind of kernel [percent]."""

FEWEST_ROWS: Final = 5
"""Fewer rows of a kind cause a warning if their errors alone are as large as those of so many rows at LARGEST_ERROR."""


def fit_warnings(rows: Sequence[HeldOut], which: str = "rows left out of the fit") -> tuple[str, ...]:
    """One line for each quantity with the kinds of kernel, or whole workloads, that the fit describes poorly."""
    lines = []
    for quantity in QUANTITIES:
        poor = [
            (e["mape"], f"{kind_text(label_of(row)[1:])} {e['mape']:.1f} % (bias {e['bias']:+.1f} %)")
            for row in rows
            if (e := row[quantity]) is not None and e["mape"] * min(e["n"] / FEWEST_ROWS, 1.0) > LARGEST_ERROR[quantity]
        ]
        if poor:
            listed = ", ".join(text for _, text in sorted(poor, reverse=True))
            lines.append(f"{quantity} of {which} is poorly described, the model may lack something: {listed}")
    return tuple(lines)


def kind_text(label: Iterable[str]) -> str:
    """A kind of rows as text."""
    return " ".join(filter(None, label))
