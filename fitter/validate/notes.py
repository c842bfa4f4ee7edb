"""What errors on rows left out of a fit do not tell, and which kinds of rows the fit describes poorly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from fitter.rows.columns import Selection
from fitter.validate.predictions import LABEL, QUANTITIES, ErrorRow, Label, compared, error_rows, kind_of, row_labels, same_numbers

SINGLE: Final = "a single {}: left out, the fit has none of its kind, and the figures are those of a forecast from other kinds"
NONE_LEFT_OUT: Final = "no {} was left out of a fit: nothing to compare"


def held_out_notes(selection: Selection, held_out: Mapping[str, pd.DataFrame]) -> dict[Label, str]:
    """For each kind of rows of which the held-out errors tell less than they seem, or nothing, the reason."""
    found: dict[Label, str] = {}
    for rows in selection.tables:
        kind = kind_of(rows)
        known = {row.label for row in error_rows(compared(held_out[kind]))} if kind in held_out else set()
        members = Counter(label for label, _ in set(zip(row_labels(rows), same_numbers(rows).tolist(), strict=True)))
        reasons = {
            label: SINGLE if label in known else NONE_LEFT_OUT for label, count in members.items() if count == 1 or label not in known
        }
        found |= {label: reason.format(kind[:-1]) for label, reason in reasons.items()}
    return found


def note_documents(notes: Mapping[Label, str]) -> list[dict[str, str]]:
    """The notes as plain data."""
    return [{**dict(zip(LABEL, label, strict=True)), "note": note} for label, note in notes.items()]


LARGEST_ERROR: Final = {"latency": 15.0, "power": 10.0}
"""Mean held-out error above which a kind of kernel is not described [percent]."""

FEWEST_ROWS: Final = 5
"""Kinds of fewer held-out rows show nothing."""


def fit_warnings(rows: Sequence[ErrorRow]) -> tuple[str, ...]:
    """One line for each quantity with the kinds of kernel, or whole workloads, that the fit describes poorly on held-out rows."""
    lines = []
    for quantity in QUANTITIES:
        known = [(row, errors) for row in rows if (errors := getattr(row, quantity)) is not None and errors.n >= FEWEST_ROWS]
        poor = sorted((pair for pair in known if pair[1].mape > LARGEST_ERROR[quantity]), key=lambda pair: -pair[1].mape)
        if poor:
            listed = ", ".join(f"{' '.join(filter(None, row.label[1:]))} {e.mape:.1f} % (bias {e.bias:+.1f} %)" for row, e in poor)
            lines.append(f"{quantity} of rows left out of the fit is poorly described, the model may lack something: {listed}")
    return tuple(lines)
