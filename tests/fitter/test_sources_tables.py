import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.errors import DatasetError
from fitter.errors import InputError
from fitter.rows.tables import LONGEST_TEXT, Table, file_digest, open_table

COLUMNS = frozenset({"a", "b", "name"})


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def csv_table(path: Path, content: str) -> Table:
    return open_table(written(path, content), COLUMNS)


def test_csv_and_parquet_of_the_same_values_read_alike(tmp_path: Path) -> None:
    text = csv_table(tmp_path / "t.csv", "a,b,name\n1,2.5,x\n3,,y\n")
    pq.write_table(pa.table({"a": [1, 3], "b": [2.5, None], "name": ["x", "y"]}), tmp_path / "t.parquet")
    binary = open_table(tmp_path / "t.parquet", COLUMNS)
    for column in ("a", "b"):
        np.testing.assert_array_equal(text.numbers(column), binary.numbers(column))
    assert text.texts("name") == binary.texts("name") == ["x", "y"]


def test_a_blank_number_is_missing_and_a_word_is_garbled(tmp_path: Path) -> None:
    table = csv_table(tmp_path / "t.csv", "a,b\n1, \n2,word\n3,nan\n4,inf\n5,1e400\n6,0x10\n7,1_000\n")
    assert table.garbled("b").tolist() == [False, True, True, True, True, True, True]
    assert not np.isfinite(table.numbers("b")).any()


def test_a_missing_column_reads_as_unknown(tmp_path: Path) -> None:
    table = csv_table(tmp_path / "t.csv", "a\n1\n")
    assert math.isnan(table.numbers("b")[0])
    assert table.texts("name") == [""]
    assert "b" not in table


def test_a_field_of_megabytes_is_found_and_not_a_number(tmp_path: Path) -> None:
    table = csv_table(tmp_path / "t.csv", "a,name\n1,ok\n" + "9" * 10_000_000 + ",ok\n3," + "x" * (LONGEST_TEXT + 1) + "\n")
    assert table.long.tolist() == [False, True, True]
    assert math.isnan(table.numbers("a")[1])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\n\n  \n", "empty"),
        (b"a,b\n", "no rows"),
        (b"\x00\x01\x02\x03" * 100, "binary"),
        (b"\xff\xfe\xfd a,b\n1,2\n", "UTF-8"),
        (b"a,b,a\n1,2,3\n", "twice"),
        (b"a,b\n1,2\n3,4,5,6\n", "CSV"),
        (b"PAR1" + b"\x00" * 64, "Parquet"),
        (b"a;b;name\n1,5;2;x\n", "semicolons"),
        (b"a\tb\tname\n1\t2\tx\n", "tabs"),
        ("a,b,name\n1,2,x\n".encode("utf-16"), "UTF-8"),
        (b"a,b\n1,2,3\n4,5,6\n", "another number of fields"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = written(tmp_path / "bad", content)
    with pytest.raises((InputError, DatasetError), match=says) as caught:
        open_table(path, COLUMNS)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_has_a_digest_that_changes_with_any_byte(tmp_path: Path) -> None:
    written(tmp_path / "x", "1")
    before = file_digest(tmp_path)
    written(tmp_path / "x", "2")
    assert file_digest(tmp_path) != before


def test_marks_of_byte_order_and_ends_of_lines_change_nothing(tmp_path: Path) -> None:
    plain = "a,b,name\n1,2.5,x\n3,4.5,y\n"
    for content in (plain.encode("utf-8-sig"), plain.replace("\n", "\r\n").encode(), plain.replace("\n", "\r").encode()):
        table = open_table(written(tmp_path / "t.csv", content), COLUMNS)
        assert table.numbers("b").tolist() == [2.5, 4.5]
        assert table.texts("name") == ["x", "y"]


def test_a_column_that_states_another_unit_than_its_name_is_refused(tmp_path: Path) -> None:
    for unit, name, fine in (
        (b"s", "latency_s", True),
        (b"ms", "latency_s", False),
        ("°C".encode(), "temperature_c", True),
        (b"mW", "power_w", False),
    ):
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table([pa.array([1.0])], schema=pa.schema([pa.field(name, pa.float64(), metadata={"unit": unit})])), path)
        if fine:
            assert len(open_table(path, frozenset({name}))) == 1
        else:
            with pytest.raises((InputError, DatasetError), match="states the unit"):
                open_table(path, frozenset({name}))


def test_lists_and_structures_are_no_numbers(tmp_path: Path) -> None:
    for values in ([[1.0], [2.0]], [{"x": 1.0}, {"x": 2.0}]):
        pq.write_table(pa.table({"a": values}), tmp_path / "t.parquet")
        with pytest.raises((InputError, DatasetError), match="plain numbers or text"):
            open_table(tmp_path / "t.parquet", COLUMNS)
