"""Who writes a dataset: one process at a time, and whoever comes after one that was killed."""

import multiprocessing
import os
import signal

import pytest

from collector.dataset import DatasetError, claimed_dataset


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
    left = [".d.parquet.4711.0a1b2c3d.part", ".d.parquet.log.jsonl.part"]
    left.append(".d.parquet.killers.json.4711.0a1b2c3d.part")
    others = [".e.parquet.4711.0a1b2c3d.part", "d.parquet.part", ".d.parquet.part"]
    for name in (*left, *others):
        (tmp_path / name).write_bytes(b"x")
    with claimed_dataset(tmp_path / "d.parquet", (".killers.json",)):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(DatasetError, match="--out"), claimed_dataset(tmp_path / "nowhere" / "d.parquet"):
        pass
