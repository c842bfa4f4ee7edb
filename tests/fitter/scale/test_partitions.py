"""Partitioned Parquet: what is one data set, and what is refused, naming the file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.errors import DatasetError
from fitter.errors import InputError
from fitter.rows.partitions import open_partitioned, read_batches, shown
from tests.fitter.scale.generated import write_parts

TABLE = pa.table(
    {
        "operator": ["add", "copy", "gelu"] * 100,
        "latency_s": [1e-6 * number for number in range(1, 301)],
        "dim": [float(number**2 % 1009) for number in range(300)],
    }
)


def test_a_uri_and_a_path_are_the_same_data_set(tmp_path: Path) -> None:
    write_parts(TABLE, tmp_path, [100])
    local, remote = open_partitioned(tmp_path), open_partitioned(tmp_path.as_uri())
    assert (local.rows, local.sha256, local.name) == (remote.rows, remote.sha256, remote.name) == (300, local.sha256, tmp_path.name)
    for one, other in zip(local.partitions(), remote.partitions(), strict=True):
        assert pa.Table.from_batches(read_batches(one, TABLE.column_names)) == pa.Table.from_batches(
            read_batches(other, TABLE.column_names)
        )


def test_partitions_hold_every_row_once_in_the_order_of_the_files(tmp_path: Path) -> None:
    write_parts(TABLE, tmp_path, [10, 250], row_group=30)
    found = open_partitioned(tmp_path)
    read = [batch for part in found.partitions() for batch in read_batches(part, TABLE.column_names)]
    assert pa.Table.from_batches(read) == TABLE
    assert sum(part.rows for part in found.partitions()) == found.rows == 300


def test_the_digest_changes_with_a_value_and_not_with_the_folder(tmp_path: Path) -> None:
    one, two = write_parts(TABLE, tmp_path / "one", []), write_parts(TABLE, tmp_path / "two", [])
    other = TABLE.set_column(1, "latency_s", pa.array([value.as_py() * 1.5 for value in TABLE.column("latency_s")]))
    three = write_parts(other, tmp_path / "three", [])
    assert open_partitioned(one).sha256 == open_partitioned(two).sha256 != open_partitioned(three).sha256


def test_files_of_other_programs_beside_the_data_are_passed_over(tmp_path: Path) -> None:
    write_parts(TABLE, tmp_path, [100])
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.txt").write_text("x")
    write_parts(TABLE, tmp_path / ".cache", [])
    write_parts(TABLE, tmp_path / "_delta_log", [])
    assert open_partitioned(tmp_path).rows == 300


def test_numbers_of_another_width_are_the_same_column(tmp_path: Path) -> None:
    write_parts(TABLE, tmp_path, [])
    narrow = TABLE.set_column(1, "latency_s", TABLE.column("latency_s").cast(pa.float32()))
    pq.write_table(narrow, tmp_path / "part-009.parquet")
    assert open_partitioned(tmp_path).rows == 600


def test_damage_within_a_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    write_parts(TABLE, tmp_path, [])
    path = tmp_path / "part-000.parquet"
    content = bytearray(path.read_bytes())
    content[4:2000] = b"\xff" * 1996
    path.write_bytes(content)
    (only,) = open_partitioned(tmp_path).partitions()
    with pytest.raises((InputError, DatasetError), match=r"part-000.parquet: truncated, damaged or no Parquet file"):
        list(read_batches(only, TABLE.column_names))


@pytest.mark.parametrize("address", ["nowhere", "no-such-scheme://bucket/data"])
def test_an_address_without_data_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises((InputError, DatasetError), match="cannot be read"):
        open_partitioned(address if ":" in address else tmp_path / address)


def test_an_empty_folder_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises((InputError, DatasetError), match="no Parquet file here"):
        open_partitioned(tmp_path)
    pq.write_table(TABLE.slice(0, 0), tmp_path / "a.parquet")
    with pytest.raises((InputError, DatasetError), match="holds no rows"):
        open_partitioned(tmp_path)


def test_keys_in_an_address_are_not_shown() -> None:
    assert shown("s3://key:secret@bucket/data/x?endpoint_override=host") == "s3://bucket/data/x"
    assert shown("/a/b@c?d") == "/a/b@c?d"
