"""The dataset, its log and its page: what is written comes back, nothing finished is lost, what is damaged is told, pages stay safe."""

import json
import multiprocessing
import os
import re
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

from collector.campaigns.page import dataset_page, deviations
from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.dataset.schema import FLAGS, KERNEL_COLUMNS, SCHEMA_VERSION, repeated_rows
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
from tests.fitter.page import Page
from tests.words import answer, one_line, refused, told


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


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
POWER_CAP = 0x04


def dataset(folder, rows, **metadata):
    path = folder / "dataset.parquet"
    write_kernel_dataset(rows, {**METADATA, "complete": True, **metadata}, path)
    return path


def a_campaign():
    """Rows at two clocks, with repeated kernels at the end; every tenth row is throttled."""
    rows = []
    for i in range(120):
        throttled = i % 10 == 0
        clock = (510.0, 1410.0)[i % 2]
        at_limit = {"flags": ["throttled"], "throttle_reasons": POWER_CAP} if throttled else {}
        warm = {"temperature_c": 40.0 + i / 10, "started_unix_s": 1.7e9 + 60.0 * i, "idle_before_w": 50.0}
        clocks = {"sm_clock_mhz": clock, "sm_clock_measured_mhz": clock - 30.0 * throttled}
        rows.append(a_row(f"r{i}", m=64 * (i + 1), power_w=100.0 + i, **warm, **clocks, **at_limit))
    again = [{**rows[i], "row_id": f"again{i}", "trial": 1, "power_w": rows[i]["power_w"] * 1.02} for i in (1, 3, 5)]
    return rows + again


def test_the_page_states_what_was_measured_and_what_is_doubtful(tmp_path):
    idle = [{"sm_clock_mhz": 510.0, "power_w": 45.25, "std_w": None, "temperature_c": 38.0}]
    path = dataset(tmp_path, a_campaign(), rejected={"needs more memory than the board has": 7}, idle=idle, simulated=True)
    text, rows = dataset_page(path)
    page = Page(text)
    assert rows == 123
    assert page.open == []
    assert {"summary", "power", "rest", "drift", "throttling", "flags", "rejected"} <= set(page.having("id"))
    assert len(page.all("svg")) == 5
    words = re.sub(r"<[^>]+>", " ", text)
    for part in ("123 with time", "7 kernels", "needs more memory", "throttled 12 (9.8%)", FLAGS["throttled"], "sw_power_cap", "45.25"):
        assert part in words, part
    assert "say nothing about a GPU" in words
    assert "did not finish" not in words
    assert "power within 0.99 %" in words


def test_repeated_rows_deviate_from_their_own_mean_and_no_others():
    rows = [a_row("a", power_w=99.0), a_row("b", power_w=101.0, trial=1), a_row("c", power_w=300.0, m=999)]
    rows += [a_row("d", power_w=900.0, trial=2, flags=["throttled"]), a_row("e", power_w=None, trial=3)]
    found = deviations(rows_to_table(rows, METADATA))
    np.testing.assert_allclose(found["power_w"], [-1.0, 1.0, np.nan, np.nan, np.nan])
    np.testing.assert_allclose(found["latency_s"], [0.0, 0.0, np.nan, np.nan, 0.0], atol=1e-12)


def test_the_page_of_many_rows_is_as_large_as_that_of_few(tmp_path):
    sizes = []
    for times in (100, 400):
        table = rows_to_table(a_campaign(), METADATA)
        ids = [f"{i}-{row}" for i in range(times) for row in range(table.num_rows)]
        many = table.take(np.tile(np.arange(table.num_rows), times))
        pq.write_table(many.set_column(many.schema.get_field_index("row_id"), "row_id", [ids]), tmp_path / "many.parquet")
        sizes.append(len(dataset_page(tmp_path / "many.parquet")[0]))
    assert sizes[1] < 1.1 * sizes[0] < 600_000


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": HOSTILE, "family": HOSTILE},
        {"latency_s": None, "power_w": None},
        {"sm_clock_mhz": np.nan, "sm_clock_measured_mhz": np.nan, "power_w": np.nan},
        {"started_unix_s": 1e90, "temperature_c": -1e90, "sm_clock_measured_mhz": 1e90},
        {"flags": ["a flag of another version"], "throttle_reasons": -1},
    ],
)
def test_odd_values_are_shown_as_text_or_left_out(tmp_path, changes):
    text, _ = dataset_page(dataset(tmp_path, [a_row("r0", **changes), a_row("r1", **changes)]))
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.tags} & {"script", "img"}


def test_bad_input_gives_one_line_and_no_page(tmp_path):
    log = write_log(tmp_path, 3)
    damaged, empty, foreign = (tmp_path / name for name in ("damaged.parquet", "empty.parquet", "rejected.parquet"))
    damaged.write_bytes(b"PAR1" + bytes(40))
    pq.write_table(rows_to_table([], METADATA), empty)
    pq.write_table(rows_to_table([a_row()], {**METADATA, "rejected": {"a reason": "many"}}), foreign)
    out = tmp_path / "page.html"
    for path, words in ((damaged, "damaged"), (empty, "no row"), (foreign, "metadata are damaged"), (tmp_path / "none", "no such file")):
        refused(1, words, f"report {path} -o {out}")
        assert not out.exists()
    assert answer(f"report {log} -o {out}") == {"output": str(out), "rows": 3}
    assert "did not finish" in out.read_text()


@pytest.mark.parametrize("command", ["report {} -o {}", "export {} --to csv -o {}"])
def test_rows_of_unfinished_campaigns_in_a_folder_are_left_out_with_a_warning(tmp_path, command):
    (folder := tmp_path / "d").mkdir()
    write_log(folder, 3)
    refused(1, "3 rows of 1 unfinished campaign are left out", command.format(folder, tmp_path / "out"))
    write_kernel_dataset([a_row("a")], METADATA, folder / "whole.parquet")
    out, err = told(f"{command.format(folder, tmp_path / 'out')} --json")
    assert json.loads(out)["rows"] == 1
    assert "3 rows of 1 unfinished campaign are left out" in err
