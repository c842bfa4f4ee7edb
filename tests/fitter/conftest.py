"""Tables of rows as files."""

import pytest

from fitter.rows.selection import read_selection


@pytest.fixture
def read_table(tmp_path):
    """Reads a table given as lines."""

    def reader(*lines):
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines) + "\n")
        return read_selection([path])

    return reader
