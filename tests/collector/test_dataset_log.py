"""The log of a campaign cut off or damaged at any byte, and who writes it: whole rows are read, and what cannot be is told."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.dataset.reader import log_path, read_kernel_dataset, read_log
from collector.dataset.writer import claimed_dataset, open_kernel_writer
from collector.errors import DatasetError
from tests.collector.dataset_rows import METADATA, a_row, write_log
from tests.words import one_line


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
