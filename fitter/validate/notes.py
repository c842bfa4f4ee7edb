"""What errors on rows left out of a fit do not tell, and why: kinds of a single kernel, kinds of which none was left out, no interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.validate.predictions import WORKLOAD_FAMILY, ErrorRow, Errors, Label, Prediction, label_of, workload_precision

NOTHING: Final[Mapping[Label, str]] = {}

SINGLE: Final = "a single {}: left out, the fit has none of its kind, and the figures are those of a forecast from other kinds"
NONE_LEFT_OUT: Final = "none of its {}s was left out of a fit: nothing to compare"
ONE_IN_ALL: Final = "one {}: nothing to hold out"
NO_HOLDOUT: Final = "nothing was held out (--holdout 0)"
NO_INTERVAL: Final = "coverage –: no interval is stated for these rows, so none can hold them"


def held_out_notes(selection: Selection, held_out: Mapping[str, Prediction]) -> dict[Label, str]:
    """For each kind of rows of which the held-out errors tell less than they seem, or nothing, the reason."""
    found: dict[Label, str] = {}
    if selection.kernels is not None:
        found |= _notes("kernel", _kernels_by_label(selection.kernels), held_out.get("kernels"))
    if selection.workloads is not None:
        found |= _notes("workload", _workloads_by_label(selection.workloads), held_out.get("workloads"))
    return found


def _notes(what: str, members: Mapping[Label, int], prediction: Prediction | None) -> dict[Label, str]:
    """members: different kernels, or workloads, of each kind."""
    if prediction is None:
        return dict.fromkeys(members, ONE_IN_ALL.format(what) if sum(members.values()) == 1 else NO_HOLDOUT)
    compared = {label for label, known in zip(prediction.labels, np.isfinite(prediction.predicted_s).tolist(), strict=True) if known}
    single = {label: SINGLE.format(what) for label, count in members.items() if count == 1 and label in compared}
    return single | {label: NONE_LEFT_OUT.format(what) for label in members if label not in compared}


def _kernels_by_label(rows: KernelRows) -> Counter[Label]:
    pairs = {(rows.gpus[gpu], rows.operators[i]) for gpu, i in set(zip(rows.gpu_index.tolist(), rows.operator_index.tolist(), strict=True))}
    return Counter((gpu, one.family, one.operator, one.precision) for gpu, one in pairs)


def _workloads_by_label(rows: WorkloadRows) -> Counter[Label]:
    pairs = set(zip(rows.gpu_index.tolist(), rows.workload_index.tolist(), strict=True))
    return Counter((rows.gpus[gpu], WORKLOAD_FAMILY, "model", workload_precision(rows.workloads[i])) for gpu, i in pairs)


def with_missing(rows: Sequence[ErrorRow], notes: Mapping[Label, str]) -> list[ErrorRow]:
    """The rows, and after them an empty one for each kind that has a note and no errors."""
    known = {label_of(row) for row in rows}
    missing = [label for label in notes if label not in known]
    return [*rows, *(ErrorRow(gpu=g, family=f, operator=o, precision=p, n=0, latency=None, power=None) for g, f, o, p in missing)]


def note_documents(rows: Sequence[ErrorRow], notes: Mapping[Label, str] = NOTHING) -> list[dict[str, str]]:
    """The notes as plain data, and one for every row that lacks an interval."""
    said = dict(notes) | {label_of(row): NO_INTERVAL for row in rows if lacks_interval(row) and label_of(row) not in notes}
    return [{"gpu": g, "family": f, "operator": o, "precision": p, "note": note} for (g, f, o, p), note in said.items()]


def lacks_interval(row: ErrorRow) -> bool:
    """Whether rows were compared and no interval is stated for them."""
    return bool(np.isnan(row.coverage)) and (row.latency is not None or row.power is not None)


LARGEST_ERROR: Final = {"latency": 15.0, "power": 10.0}
"""Mean held-out error above which a kind of kernel is not described [percent]."""

NOTABLE_ERROR: Final = 5.0
"""Below this an error is unremarkable, whatever the others are [percent]."""

STANDS_OUT: Final = 2.5
"""A kind of kernel stands out with an error this many times the median over all kinds [1]."""

FEWEST_ROWS: Final = 5
"""Kinds of fewer held-out rows show nothing."""

FEWEST_KINDS: Final = 4
"""Fewer kinds have no common error from which one could stand out."""


def fit_warnings(rows: Sequence[ErrorRow]) -> tuple[str, ...]:
    """One line for each quantity with the kinds of kernel, or whole workloads, that the fit describes poorly on held-out rows."""
    found = []
    for quantity, limit in LARGEST_ERROR.items():
        kinds = [(row, errors) for row in rows if (errors := getattr(row, quantity)) is not None and errors.n >= FEWEST_ROWS]
        usual = float(np.median([errors.mape for _, errors in kinds])) if len(kinds) >= FEWEST_KINDS else float("inf")
        poor = [(row, e) for row, e in kinds if e.mape > limit or (e.mape > NOTABLE_ERROR and e.mape > STANDS_OUT * usual)]
        poor.sort(key=lambda pair: -pair[1].mape)
        if poor:
            listed = ", ".join(_described(row, errors, usual) for row, errors in poor)
            found.append(f"{quantity} of rows left out of the fit is poorly described, the model may lack something: {listed}")
    return tuple(found)


def _described(row: ErrorRow, errors: Errors, usual: float) -> str:
    what = " ".join(part for part in (row.family, row.operator, row.precision) if part)
    compared = f", {errors.mape / usual:.1f} times the usual" if errors.mape > STANDS_OUT * usual else ""
    return f"{what} {errors.mape:.1f} % (bias {errors.bias:+.1f} %{compared})"
