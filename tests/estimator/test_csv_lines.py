"""CSV lines give their values back, and no spreadsheet runs one of them."""

import csv
import io
import math

from hypothesis import given
from hypothesis import strategies as st

from estimator.display.text import FORMULA_START, csv_lines
from estimator.vocabulary.documents import printable

STARTS = st.sampled_from(["", *FORMULA_START, "\t=", "\r=", '"'])
TEXTS = st.builds(str.__add__, STARTS, st.text(st.characters(exclude_categories=("Cs",))))
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)


@given(st.lists(st.lists(VALUES, min_size=2, max_size=2), max_size=4))
def test_every_value_comes_back_and_no_text_begins_as_a_formula(rows):
    read = list(csv.reader(io.StringIO(csv_lines(rows, header=["a", "b"]), newline="")))
    assert read[0] == ["a", "b"]
    assert len(read) == 1 + len(rows)
    for row, cells in zip(rows, read[1:], strict=True):
        for value, cell in zip(row, cells, strict=True):
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                assert cell == ""
            elif isinstance(value, float):
                assert float(cell) == value
            elif isinstance(value, str):
                assert not cell.startswith(FORMULA_START)
                assert cell.isprintable()
                assert cell.removeprefix(" ") == printable(value).removeprefix(" ")
            else:
                assert cell == str(value)
