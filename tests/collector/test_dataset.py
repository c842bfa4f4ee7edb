"""The dataset: what is written comes back, nothing finished is lost, and what is damaged is told."""

import json
import resource
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.dataset.schema import KERNEL_COLUMNS, SCHEMA_VERSION, repeated_rows
from collector.dataset.writer import export_dataset, open_kernel_writer
from collector.errors import DatasetError
from estimator import make_operator
from estimator.vocabulary.workload import FAMILY_FIELDS
from tests.collector.dataset_rows import (
    METADATA,
    a_row,
    disk_with,
    operators_of,
    operators_of_every_kind,
    rows_to_table,
    write_kernel_dataset,
    write_log,
)
from tests.words import one_line


def test_rows_equal_in_all_that_ran_are_repetitions_whatever_came_out():
    numbers = [name for name, column in KERNEL_COLUMNS.items() if column.kind == "number"]
    for name in numbers:
        table = rows_to_table([a_row("a"), a_row("b", **{name: 7.5}), a_row("c", tile_m=7), a_row("d", flags=["throttled"])], METADATA)
        same = [[0, 1], [2]] if KERNEL_COLUMNS[name].outcome else [[0], [1], [2]]
        assert repeated_rows(table, frozenset({"throttled"})) == same, name


def test_operators_survive_the_round_trip_through_a_table():
    kv = dict.fromkeys(FAMILY_FIELDS["attention"], 1) | {"precision_kv": "fp8"}
    odd = (
        make_operator("gemm", "bmm", "fp32", cuda_cores=True, batch=1, m=2**40, n=3, k=1),
        make_operator("attention", "decode", "bf16", **kv),
    )
    wanted = [*operators_of_every_kind("fp16"), *odd]
    table = rows_to_table([a_row(f"r{i}", operator) for i, operator in enumerate(wanted)], METADATA)
    assert operators_of(table) == wanted


def test_a_file_holds_units_and_metadata_and_null_for_what_is_not_known(tmp_path):
    path = tmp_path / "d.parquet"
    write_kernel_dataset([a_row(power_w=None, voltage_v=None)], METADATA, path)
    schema = pq.read_schema(path)
    for name, column in KERNEL_COLUMNS.items():
        assert schema.field(name).metadata == {b"unit": column.unit.encode(), b"meaning": column.meaning.encode()}
        assert column.meaning
        assert column.unit or column.kind in ("text", "truth", "texts")
    assert json.loads(schema.metadata[b"wattprint"]) == {**METADATA, "schema_version": SCHEMA_VERSION}
    table = read_kernel_dataset(path).table
    assert table.column("power_w").null_count == table.column("voltage_v").null_count == table.column("rows").null_count == 1


def test_threads_that_read_leave_the_limit_of_memory_as_it_was(tmp_path):
    limit, path = resource.getrlimit(resource.RLIMIT_DATA), tmp_path / "d.parquet"
    write_kernel_dataset([a_row(f"r{number}") for number in range(40)], METADATA, path)
    with ThreadPoolExecutor(4) as readers:
        tables = list(readers.map(lambda _: read_kernel_dataset(path).table, range(80)))
    found = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, limit)
    assert found == limit
    assert all(table.equals(tables[0]) for table in tables)


def test_a_folder_is_one_dataset(tmp_path):
    write_kernel_dataset([a_row("a")], METADATA, tmp_path / "1.parquet")
    write_kernel_dataset([a_row("b"), a_row("c")], {"gpu": {"name": "another"}}, tmp_path / "2.parquet")
    dataset = read_kernel_dataset(tmp_path)
    with pytest.raises(DatasetError, match="did not finish.*--resume"):
        read_kernel_dataset(write_log(tmp_path, 2).with_name("dataset.parquet"))
    assert dataset.table.column("row_id").to_pylist() == ["a", "b", "c"]
    assert dataset.metadata["gpu"] == {"name": "a board"}
    assert [file["gpu"]["name"] for file in dataset.files] == ["a board", "another"]


def test_a_campaign_run_again_is_more_data_a_copied_file_is_not(tmp_path):
    write_kernel_dataset([a_row("a", started_unix_s=1.0)], METADATA, tmp_path / "1.parquet")
    write_kernel_dataset([a_row("a", started_unix_s=2.0)], METADATA, tmp_path / "2.parquet")
    assert read_kernel_dataset(tmp_path).table.num_rows == 2
    (tmp_path / "copy.parquet").write_bytes((tmp_path / "2.parquet").read_bytes())
    with pytest.raises(DatasetError, match="more than once"):
        read_kernel_dataset(tmp_path)


def test_what_cannot_be_read_is_told_in_one_line(tmp_path):
    table = rows_to_table([a_row()], METADATA)
    newer = {b"wattprint": json.dumps({"schema_version": "2.0"}).encode()}
    path, latency = tmp_path / "d.parquet", table.schema.get_field_index("latency_s")
    for content, reason in (
        (pa.table({"a": [1]}), "no kernel dataset"),
        (table.replace_schema_metadata(newer), "schema version .2.0"),
        (table.drop_columns(["latency_s"]), "columns are missing: latency_s"),
        (table.set_column(latency, "latency_s", pa.array(["fast"])), "another type"),
        (rows_to_table([a_row(), a_row()], METADATA), "more than once"),
    ):
        pq.write_table(content, path)
        with one_line(DatasetError, reason):
            read_kernel_dataset(path)
    for content, reason in ((path.read_bytes()[:-9], "truncated"), (b"", "no Parquet file")):
        path.write_bytes(content)
        with one_line(DatasetError, reason):
            read_kernel_dataset(path)
    path.unlink()
    for gone, reason in ((path, "no such file"), (tmp_path, "no Parquet file in this folder")):
        with one_line(DatasetError, reason):
            read_kernel_dataset(gone)


def test_a_full_disk_keeps_the_rows_and_says_how_to_go_on(tmp_path):
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row("r0"))
        with disk_with(log_path(output).stat().st_size + 100), pytest.raises(DatasetError, match=r"1 rows are safe.*--resume"):
            writer.append(a_row("r1"))
    recovered = read_log(log_path(output))
    assert recovered.table.column("row_id").to_pylist() == ["r0"]
    assert recovered.whole_bytes == log_path(output).stat().st_size, "what the disk took of the second row is cut off again"
    with open_kernel_writer(output, METADATA, recovered.table) as writer:
        told = r"cannot be written.*all 1 rows are safe in .*log\.jsonl; .* --resume finishes it"
        with disk_with(log_path(output).stat().st_size), pytest.raises(DatasetError, match=told):
            writer.finish(METADATA)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.parquet.log.jsonl"]


def test_export_gives_the_same_rows(tmp_path):
    path, copy = tmp_path / "d.parquet", tmp_path / "copy.parquet"
    write_kernel_dataset([a_row("a", flags=["hot", "drifting"], kernel_name="k\x1b[31m"), a_row("b")], METADATA, path)
    assert export_dataset(path, "csv", tmp_path / "d.csv") == 2
    first = (tmp_path / "d.csv").read_text().splitlines()[1]
    assert "hot;drifting" in first
    assert "k?[31m" in first, "a terminal would obey an escape sequence"
    export_dataset(path, "parquet", copy)
    assert read_kernel_dataset(copy).table.equals(read_kernel_dataset(path).table)
