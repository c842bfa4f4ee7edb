"""The dataset and the log of a campaign: what is written comes back, nothing finished is lost, and what is damaged is told."""

import json
import multiprocessing
import os
import resource
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.dataset.schema import KERNEL_COLUMNS, SCHEMA_VERSION, repeated_rows
from collector.dataset.writer import claimed_dataset, export_dataset, open_kernel_writer
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


@pytest.mark.parametrize("behind", [b"", b"\0\0\0", b"damage\n\n"])
def test_a_log_cut_anywhere_loses_the_torn_row_alone_and_goes_on(tmp_path, behind):
    sizes = [len(write_log(tmp_path, count).read_bytes()) for count in range(3)]
    log = write_log(tmp_path, 2)
    whole = log.read_bytes()
    for cut in range(sizes[0], len(whole) + 1):
        log.write_bytes(whole[:cut] + behind)
        recovered = read_log(log)
        rows = sum(size <= cut for size in sizes[1:])
        assert recovered.table.column("row_id").to_pylist() == [f"r{i}" for i in range(rows)], cut
        assert recovered.whole_bytes == max(size for size in sizes if size <= cut)
    with open_kernel_writer(tmp_path / "dataset.parquet", recovered.metadata, recovered.table) as writer:
        assert writer.rows == 2
        writer.append(a_row("r2"))
        assert writer.table().column("row_id").to_pylist() == ["r0", "r1", "r2"]
    assert read_log(log).whole_bytes == log.stat().st_size


def test_whole_rows_behind_a_damaged_line_are_told_of(tmp_path):
    log = write_log(tmp_path, 3)
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], lines[1], lines[2][:100] + b"\n", lines[3]]))
    with pytest.raises(DatasetError, match="line 3 is damaged and 1 whole rows follow"):
        read_log(log)


@pytest.mark.parametrize("line", [b"", b"x", b"00000000 {}\n", b"\xff\xfe", b"[" * 100_000, b'{"format": "other"}\n'])
def test_a_log_without_a_whole_beginning_is_told(tmp_path, line):
    log = log_path(tmp_path / "d.parquet")
    log.write_bytes(line)
    with one_line(DatasetError, "--fresh"):
        read_log(log)


@settings(max_examples=60)
@given(st.integers(0, 5000), st.integers(0, 255))
def test_any_flipped_byte_of_a_log_costs_rows_from_there_on_and_invents_none(place, byte):
    with tempfile.TemporaryDirectory() as name:
        log = write_log(Path(name), 4)
        content = bytearray(log.read_bytes())
        content[place % len(content)] = byte
        log.write_bytes(bytes(content))
        try:
            found = read_log(log).table.to_pylist()
        except DatasetError:
            return
        whole = [row["row_id"] for row in found]
        assert whole == ["r0", "r1", "r2", "r3"][: len(whole)]
        assert all(row["latency_s"] == 1e-4 for row in found)


@pytest.mark.parametrize(
    "changes",
    [{"latency_s": "fast"}, {"launches": 1.5}, {"launches": True}, {"family": 3}, {"flags": "hot"}, {"cuda_cores": 1},
     {"kernel_name": "\ud800"}, {"colour": "red"}, {"launches": None}],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_refused_before_it_is_written(tmp_path, changes):
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row("r0"))
        with pytest.raises(DatasetError):
            writer.append(a_row("r1", **changes))
        writer.append(a_row("r2", launches=np.int64(5), latency_s=np.float64(0.5)))
        assert writer.table().column("row_id").to_pylist() == ["r0", "r2"]


def test_a_log_that_somebody_removed_costs_no_row(tmp_path):
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row("r0"))
        log_path(output).unlink()
        writer.append(a_row("r1"))
        writer.finish(METADATA)
    assert read_kernel_dataset(output).table.num_rows == 2
    assert list(tmp_path.iterdir()) == [output]


def test_metadata_are_json_or_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="JSON"), open_kernel_writer(tmp_path / "e.parquet", {"power": float("nan")}):
        pass


def hold(told, output):
    """Claim a dataset and be killed."""
    with claimed_dataset(output):
        told.send(True)
        signal.pause()


def test_one_process_at_a_time_writes_a_dataset_and_a_killed_one_bars_nobody(tmp_path):
    output = tmp_path / "d.parquet"
    mine, its = multiprocessing.Pipe()
    writer = multiprocessing.get_context("fork").Process(target=hold, args=(its, output), daemon=True)
    writer.start()
    mine.recv()
    with pytest.raises(DatasetError, match="another campaign is writing there"), claimed_dataset(output):
        pass
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    with claimed_dataset(output), pytest.raises(DatasetError, match="another campaign"), claimed_dataset(output):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_had_not_finished_is_removed_by_the_next_one(tmp_path):
    left = [".d.parquet.4711.0a1b2c3d.part", ".d.parquet.log.jsonl.part", ".d.parquet.killers.json.4711.0a1b2c3d.part"]
    others = [".e.parquet.4711.0a1b2c3d.part", "d.parquet.part", ".d.parquet.part"]
    for name in (*left, *others):
        (tmp_path / name).write_bytes(b"x")
    with claimed_dataset(tmp_path / "d.parquet", (".killers.json",)):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_a_row_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("collector.dataset.writer.os.fsync", lambda file: synced.append(os.fstat(file).st_size))
    with open_kernel_writer(tmp_path / "d.parquet", METADATA) as writer:
        for number in range(2):
            writer.append(a_row(f"r{number}"))
            assert synced[-1] == log_path(tmp_path / "d.parquet").stat().st_size
