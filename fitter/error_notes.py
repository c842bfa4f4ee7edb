"""What errors on rows left out of a fit do not tell, and why: kinds of a single kernel, kinds of which none was left out, no interval."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from fitter.rows import KernelRows, Selection, WorkloadRows
from fitter.validation import WORKLOAD_FAMILY, ErrorRow, Prediction, workload_precision

Label = tuple[str, str, str, str]
"""GPU, family, operator and precision of a kind of rows."""

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


def _kernels_by_label(rows: KernelRows) -> dict[Label, int]:
    present = np.bincount(rows.gpu_index * len(rows.operators) + rows.operator_index, minlength=len(rows.gpus) * len(rows.operators))
    pairs = np.argwhere(present.reshape(len(rows.gpus), len(rows.operators))).tolist()
    operators = [(rows.gpus[gpu], rows.operators[i]) for gpu, i in pairs]
    return _counted((gpu, one.family, one.operator, one.precision) for gpu, one in operators)


def _workloads_by_label(rows: WorkloadRows) -> dict[Label, int]:
    pairs = np.unique(np.stack([rows.gpu_index, rows.workload_index]), axis=1).T.tolist()
    return _counted((rows.gpus[gpu], WORKLOAD_FAMILY, "model", workload_precision(rows.workloads[i])) for gpu, i in pairs)


def _counted(labels: Iterable[Label]) -> dict[Label, int]:
    counts: dict[Label, int] = {}
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
    return counts


def label_of(row: ErrorRow) -> Label:
    """The kind that a row of errors is of."""
    return row.gpu, row.family, row.operator, row.precision


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
