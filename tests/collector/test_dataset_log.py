"""The log of a campaign cut off at any byte: every row that is whole is read, and what cannot be is told."""

from pathlib import Path

import pytest

from collector.dataset import DatasetError, open_kernel_writer
from collector.dataset.log import read_log
from tests.collector.dataset_rows import a_row, write_log


@pytest.mark.parametrize("behind", [b"", b"\0\0\0", b"damage\n\n"])
def test_a_log_cut_anywhere_loses_the_torn_row_alone(tmp_path: Path, behind: bytes) -> None:
    sizes = [len(write_log(tmp_path, count).read_bytes()) for count in range(3)]
    log = write_log(tmp_path, 2)
    whole = log.read_bytes()
    for cut in range(sizes[1] - 1, len(whole) + 1):
        log.write_bytes(whole[:cut] + behind)
        recovered = read_log(log)
        rows = sum(size - 1 <= cut for size in sizes[1:])  # the row is all there but for the end of its line
        assert recovered.table.column("row_id").to_pylist() == [f"r{i}" for i in range(rows)], cut
        assert recovered.whole_bytes + recovered.torn_bytes == cut + len(behind)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_log_whose_last_line_has_no_end_goes_on(tmp_path: Path, missing: int) -> None:
    log = write_log(tmp_path, 2)
    log.write_bytes(log.read_bytes()[:-1] + b"\0" * missing)
    kept = read_log(log)
    with open_kernel_writer(tmp_path / "dataset.parquet", kept.metadata, kept.table) as writer:
        writer.append(a_row("r2"))
    assert len(log.read_bytes().splitlines()) == 4
    assert read_log(log).table.column("row_id").to_pylist() == ["r0", "r1", "r2"]


def test_two_rows_on_one_line_are_two_rows(tmp_path: Path) -> None:
    lines = write_log(tmp_path, 3).read_bytes().splitlines(keepends=True)
    log = write_log(tmp_path, 3)
    log.write_bytes(b"".join([lines[0], lines[1][:-1], lines[2][:-1], lines[3]]))
    assert read_log(log).table.num_rows == 3


def test_a_whole_row_behind_half_a_row_on_its_line_is_told_of(tmp_path: Path) -> None:
    lines = write_log(tmp_path, 3).read_bytes().splitlines(keepends=True)
    log = write_log(tmp_path, 3)
    log.write_bytes(b"".join([lines[0], lines[1], lines[2][:100], lines[3]]))
    with pytest.raises(DatasetError, match="line 3 is damaged and 1 whole rows follow"):
        read_log(log)
