"""Logs of datasets: writers that die, lose their claim or their file, and damaged lines."""

import errno
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.dataset import (
    DatasetError,
    open_kernel_writer,
    read_kernel_dataset,
)
from collector.dataset.claim import claim_path
from collector.dataset.log import log_path, read_log
from tests.collector.dataset_rows import METADATA, a_row, write_log


def test_two_campaigns_cannot_write_one_dataset(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA), pytest.raises(DatasetError, match="another campaign"), open_kernel_writer(output, METADATA):
        pass
    with open_kernel_writer(output, METADATA):
        pass  # the first has ended, its lock with it


def test_what_a_killed_writer_had_not_finished_is_removed_by_the_next_one(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    left = [".d.parquet.4711.0a1b2c3d.part", ".d.parquet.log.jsonl.part", ".d.parquet.log.jsonl.traces.arrows.part"]
    left.append(".d.parquet.log.jsonl.4711.0a1b2c3d.part")
    others = [".e.parquet.4711.0a1b2c3d.part", "d.parquet.part", ".d.parquet.part"]
    for name in (*left, *others):
        (tmp_path / name).write_bytes(b"x")
    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row())
        writer.finish(METADATA)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["d.parquet", *others])


def test_a_writer_that_was_taken_for_dead_appends_no_row_to_the_log_of_another(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row("r0"))
        claim = json.loads(claim_path(output).read_bytes())
        claim_path(output).write_text(json.dumps({**claim, "host": "elsewhere"}))
        before = log_path(output).read_bytes()
        with pytest.raises(DatasetError, match="writes there now"):
            writer.append(a_row("r1"))
        with pytest.raises(DatasetError, match="writes there now"):
            writer.finish(METADATA)
    assert log_path(output).read_bytes() == before
    assert not output.exists()


def test_a_log_that_somebody_removed_is_put_back_with_all_its_rows(tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        for name in ("r0", "r1", "r2"):
            writer.append(a_row(name))
            log_path(output).unlink()
        writer.append(a_row("r3"))
        assert read_log(log_path(output)).table.column("row_id").to_pylist() == ["r0", "r1", "r2", "r3"]
        log_path(output).unlink()
        writer.finish(METADATA)
    assert read_kernel_dataset(output).table.num_rows == 4
    assert list(tmp_path.iterdir()) == [output]


def test_a_log_that_cannot_be_put_back_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "d.parquet"

    def stale(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row("r0"))
        log_path(output).unlink()
        monkeypatch.setattr(os, "pread", stale)  # as NFS of version 3 has it
        with pytest.raises(DatasetError, match=r"its 1 rows with it.*Stale file handle.*--fresh"):
            writer.append(a_row("r1"))
    assert list(tmp_path.iterdir()) == []


def test_rows_of_a_file_that_its_server_knows_no_more_are_not_called_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(_: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with open_kernel_writer(tmp_path / "d.parquet", METADATA) as writer:
        writer.append(a_row("r0"))
        monkeypatch.setattr(os, "fsync", stale)
        with pytest.raises(DatasetError, match="safe only where the server still has that file"):
            writer.append(a_row("r1"))


def test_what_ended_a_writer_is_told_where_its_claim_cannot_be_removed_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "d.parquet"

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def fails() -> None:
        with open_kernel_writer(output, METADATA) as writer:
            writer.append(a_row("r0"))
            for name in ("fsync", "unlink"):  # a server that takes nothing any more
                monkeypatch.setattr(os, name, read_only)
            writer.append(a_row("r1"))

    with pytest.raises(DatasetError, match=r"1 rows are safe.*--resume"):
        fails()
    monkeypatch.undo()
    assert read_log(log_path(output)).table.column("row_id").to_pylist() == ["r0"]


def test_a_log_that_goes_on_keeps_its_rows_and_loses_its_torn_tail(tmp_path: Path) -> None:
    log = write_log(tmp_path, 3)
    with log.open("ab") as file:
        file.write(b"12345678 {half a row")
    kept = read_log(log)
    with open_kernel_writer(tmp_path / "dataset.parquet", kept.metadata, kept.table) as writer:
        assert writer.rows == 3
        writer.append(a_row("r3"))
        assert writer.table().column("row_id").to_pylist() == ["r0", "r1", "r2", "r3"]
    assert read_log(log).torn_bytes == 0


@pytest.mark.parametrize("line", [b"", b"x", b"00000000 {}\n", b"\xff\xfe", b"[" * 100_000, b'{"format": "other"}\n'])
def test_a_log_without_a_whole_beginning_is_told(tmp_path: Path, line: bytes) -> None:
    log = log_path(tmp_path / "d.parquet")
    log.write_bytes(line)
    with pytest.raises(DatasetError, match="--fresh") as caught:
        read_log(log)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [True, 1.0, "1", 2, None])
def test_a_log_of_another_version_is_refused_and_true_is_no_version(tmp_path: Path, version: object) -> None:
    log = write_log(tmp_path, 1)
    header, *rows = log.read_bytes().splitlines(keepends=True)
    document = json.loads(header[9:])
    assert type(document["version"]) is int
    text = json.dumps({**document, "version": version}, separators=(",", ":")).encode()
    log.write_bytes(b"%08x %s\n" % (zlib.crc32(text), text) + b"".join(rows))
    with pytest.raises(DatasetError, match="no log of kernel rows of this version"):
        read_log(log)


@settings(max_examples=60)
@given(st.integers(0, 5000), st.integers(0, 255))
def test_any_flipped_byte_of_a_log_costs_rows_from_there_on_and_invents_none(place: int, byte: int) -> None:
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
    [{"latency_s": "fast"}, {"launches": 1.5}, {"launches": True}, {"launches": 2**63}, {"latency_s": 2**60}, {"family": 3},
     {"flags": "hot"},
     {"cuda_cores": 1}, {"latency_s": float("nan")}, {"kernel_name": "\ud800"}, {"colour": "red"}, {"launches": None}],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_refused_before_it_is_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    output = tmp_path / "d.parquet"
    with open_kernel_writer(output, METADATA) as writer:
        writer.append(a_row("r0"))
        with pytest.raises(DatasetError):
            writer.append(a_row("r1", **changes))
        writer.append(a_row("r2", launches=np.int64(5), latency_s=np.float64(0.5)))
        assert writer.table().column("row_id").to_pylist() == ["r0", "r2"]
