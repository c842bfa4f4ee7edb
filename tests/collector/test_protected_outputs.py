"""What `--fresh` and `--record` may replace, and what a flipped byte of a Parquet file is worth."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.dataset.reader import check_replaceable, read_kernel_dataset
from collector.errors import DatasetError
from fitter.rows.tables import open_table
from tests.collector.campaigns import campaign_words
from tests.words import called, refused, told

CAMPAIGN = """
[[kernels]]
family = "softmax"
operator = "softmax"
precision = "fp16"
count = 2
shape = {rows = [64, 128], dim = [64, 128, 256]}
[measurement]
window_s = 0.1
updates = 4
settle_s = 0.1
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory, sensor_file):
    """Options with a campaign's file and a sensor's."""
    return campaign_words(tmp_path_factory.mktemp("files"), sensor_file, CAMPAIGN, freqs="900")


@pytest.fixture(scope="module")
def measured(tmp_path_factory, files):
    """A dataset and the recording of its run."""
    folder = tmp_path_factory.mktemp("measured")
    out, recording = folder / "d.parquet", folder / "run.rec"
    assert called(f"{files} --out {out} --record {recording}") in (0, 3)
    return out, recording


def foreign_parquet(path):
    pq.write_table(pa.table({"a": [1, 2]}), path)


def notes(path):
    path.write_text("my notes\n")


@pytest.mark.parametrize("make", [notes, foreign_parquet])
def test_what_is_none_of_ours_is_not_replaced(make, files, tmp_path):
    file = tmp_path / "mine"
    make(file)
    before = file.read_bytes()
    refused(1, "name another file with --out", f"{files} --fresh --out {file}")
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}


def test_datasets_and_recordings_are_replaced_also_cut_ones_and_empty_files(measured, files, tmp_path):
    out, recording = tmp_path / "d.parquet", tmp_path / "run.rec"
    for keep in (None, 0, 500):
        out.write_bytes(measured[0].read_bytes()[:keep])
        check_replaceable(out)
    recording.write_bytes(measured[1].read_bytes())
    assert called(f"{files} --fresh --force --out {out} --record {recording}") in (0, 3)
    assert read_kernel_dataset(out).table.num_rows == 2


def test_a_refused_run_leaves_no_recording(measured, files, tmp_path):
    for words in (f"--out {measured[0]}", "--dry-run"):
        called(f"{files} {words} --record {tmp_path / 'run.rec'}")
        assert list(tmp_path.iterdir()) == []


def test_a_flipped_byte_in_a_page_is_noticed_by_every_reader(measured, tmp_path):
    content = bytearray(measured[0].read_bytes())
    column = pq.read_metadata(measured[0]).row_group(0).column(0)
    first = column.dictionary_page_offset or column.data_page_offset
    content[first + column.total_compressed_size - 1] ^= 1
    damaged = tmp_path / "d.parquet"
    damaged.write_bytes(content)
    for read in (read_kernel_dataset, lambda path: open_table(path, frozenset({"row_id"}))):
        with pytest.raises(DatasetError, match=r"CRC checksum verification failed.*collect it again"):
            read(damaged)


def test_a_file_that_came_while_a_program_was_measured_is_kept_and_the_result_is_printed(tmp_path):
    file = tmp_path / "run.json"
    out, err = told("run", "--gpu", "sim:a100-pcie-40gb", "--out", file, "--", "sh", "-c", f"touch {file}", status=1)
    assert "energy [J]" in out
    assert f"{file} exists" in err
    assert file.read_bytes() == b""
