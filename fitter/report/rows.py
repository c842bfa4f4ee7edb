"""Rows left out of a fit as its report sees them: errors beside what they may depend on, and statistics of errors in bins.

Everything is columns and bins: a report of a million rows is as large as one of ten thousand.
"""

from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.vocabulary.quantities import Array
from estimator.vocabulary.workload import FAMILY_FIELDS
from fitter.rows.columns import Selection, WorkloadRows
from fitter.rows.screening import first_known
from fitter.validate.predictions import PERCENT, Prediction

QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of signed errors in every bin: ends, quarters and the middle."""

MOST_BINS: Final = 24
"""Bins of one chart."""

MOST_SEPARATE: Final = 40
"""Values that are told apart one by one, such as clocks; more are binned."""

SECONDS_PER_HOUR: Final = 3600.0

NOMINAL: Final = {50.0: 0.6745, 68.0: 0.9945, 80.0: 1.2816, 90.0: 1.6449, 95.0: 1.9600, 99.0: 2.5758}
"""Shares of a normal distribution [percent] and how many standard deviations on each side hold them."""


def held_frame(kind: str, prediction: Prediction, selection: Selection) -> pd.DataFrame:
    """Held-out predictions of one kind ("kernels", "workloads") beside what is known of their rows, a line for each.

    measured_Q, predicted_Q, std_Q, error_Q of the quantities Q latency [s], power [W] and energy [J]; errors in percent, std of the
    logarithm.  What the selection does not tell of the rows is nan.
    """
    p = prediction
    frame = pd.DataFrame({"origin": p.origins, "name": [" ".join(filter(None, label[1:])) for label in p.labels]})
    quantities: dict[str, tuple[Array, Array, Array]] = {
        "latency": (p.measured_s, p.predicted_s, p.latency_ln_std),
        "power": (p.measured_w, p.predicted_w, p.power_ln_std),
        "energy": (p.measured_s * p.measured_w, p.predicted_s * p.predicted_w, np.full(len(p), np.nan)),
    }
    for quantity, (measured, predicted, std) in quantities.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            error = (predicted / measured - 1.0) * PERCENT
        error = np.where(np.isfinite(error), error, np.nan)
        frame = frame.assign(**{f"measured_{quantity}": measured, f"predicted_{quantity}": predicted, f"std_{quantity}": std})
        frame[f"error_{quantity}"] = error
    return frame.assign(kind=kind, **_known_columns(kind, prediction, selection))


def _known_columns(kind: str, prediction: Prediction, selection: Selection) -> dict[str, Any]:
    """What ran, at which clock and temperature and when; nothing where the prediction does not have the selection's rows in their order."""
    rows = selection.kernels if kind == "kernels" else selection.workloads
    nothing = {"what": "", "clock": np.nan, "temperature": np.nan, "hours": np.nan}
    if rows is None or len(rows) != len(prediction):
        return nothing
    origins = [f"{rows.sources[s]} row {n}" for s, n in zip(rows.source_index.tolist(), rows.row.tolist(), strict=True)]
    if any(own not in ("", known) for own, known in zip(prediction.origins, origins, strict=True)):
        return nothing
    if isinstance(rows, WorkloadRows):
        clock = first_known(rows.sm_clock_asked_mhz, rows.sm_clock_measured_mhz)
        return nothing | {"what": [w.name for w in rows.row_workloads()], "clock": clock, "temperature": rows.temperature_c}
    shapes = [", ".join(f"{name} {size:g}" for name, size in zip(FAMILY_FIELDS[o.family], o.shape, strict=True)) for o in rows.operators]
    names = zip(rows.operator_index.tolist(), rows.kernel_name, strict=True)
    known = np.isfinite(rows.started_s)
    hours = (rows.started_s - np.nanmin(rows.started_s)) / SECONDS_PER_HOUR if known.any() else rows.started_s
    return {
        "what": [f"{shapes[i]} {name}".strip() for i, name in names],
        "clock": first_known(rows.sm_clock_asked_mhz, rows.sm_clock_mhz),
        "temperature": rows.temperature_c,
        "hours": hours,
    }


def binned(values: Array, errors: Array, *, logarithmic: bool = False) -> pd.DataFrame:
    """Signed errors by a value, shapes (n,): one bin for each value where there are few, else bins of equal width or equal ratio.

    A line for each bin that holds rows: low, high, place (where it is drawn), count, the errors' QUANTILES, and their median magnitude.
    """
    known = np.isfinite(values) & np.isfinite(errors) & ((values > 0.0) | (not logarithmic))
    place = np.log(values[known]) if logarithmic else values[known]
    frame = pd.DataFrame({"value": values[known], "error": errors[known]})
    separate = frame["value"].nunique() <= MOST_SEPARATE
    edges = np.linspace(place.min(), place.max(), MOST_BINS + 1) if len(place) else np.zeros(2)
    frame["bin"] = frame["value"] if separate else np.clip(np.searchsorted(edges, place, side="right"), 1, MOST_BINS)
    groups = frame.groupby("bin", sort=True)
    found = groups.agg(low=("value", "min"), high=("value", "max"), count=("value", "size"))
    found["place"] = np.sqrt(found["low"]) * np.sqrt(found["high"]) if logarithmic else 0.5 * (found["low"] + found["high"])
    for share in QUANTILES:
        found[share] = groups["error"].quantile(share)
    found["magnitude"] = frame["error"].abs().groupby(frame["bin"]).median()
    return found.reset_index(drop=True)


def coverage_of(held: pd.DataFrame, quantity: str) -> Array | None:
    """Share of rows inside their stated intervals, for each of NOMINAL [percent]; None where none is stated."""
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.abs(np.log(held[f"measured_{quantity}"] / held[f"predicted_{quantity}"])) / held[f"std_{quantity}"]
    score = score[~np.isnan(score)]
    return np.array([float((score <= half).mean()) * PERCENT for half in NOMINAL.values()]) if len(score) else None
