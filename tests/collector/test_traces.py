"""Traces beside a dataset: every row has one, and from them it can be worked out again."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collector.campaigns.files import CampaignSpec
from collector.campaigns.reprocess import reprocess_dataset
from collector.cli import main
from collector.dataset import DatasetError, read_kernel_dataset
from collector.dataset.log import log_path
from collector.dataset.traces import IDLE, REST, RUN, read_traces, running_traces_path, traces_path
from collector.sensing.calibration import SensorCalibration
from tests.collector.test_campaign import collected, stop_after


@pytest.fixture(scope="module")
def traced(tiny: CampaignSpec, calibration: SensorCalibration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("traced") / "d.parquet"
    collected(tiny, output, calibration, traces=True)
    return output


def test_every_row_has_its_trace_and_every_clock_its_rest(traced: Path) -> None:
    table = read_kernel_dataset(traced).table
    records = list(read_traces(traces_path(traced)))
    assert [record.row_id for record in records if record.kind == RUN] != []
    assert {record.row_id for record in records if record.kind == RUN} == set(table.column("row_id").to_pylist())
    rested = {row["row_id"] for row in table.to_pylist() if row["idle_before_w"] is not None}
    assert rested <= {record.row_id for record in records if record.kind == REST}
    assert len([record for record in records if record.kind == IDLE]) == 4, "two clocks, before and after"
    assert not log_path(traced).exists()
    assert not running_traces_path(traced).exists()
    bytes_a_row = traces_path(traced).stat().st_size / table.num_rows
    assert bytes_a_row < 30_000


def test_the_same_calibration_gives_the_same_rows(traced: Path, tmp_path: Path) -> None:
    done = reprocess_dataset(traced, None, tmp_path / "again.parquet")
    before, after = read_kernel_dataset(traced), read_kernel_dataset(tmp_path / "again.parquet")
    assert after.table.to_pylist() == before.table.to_pylist()
    assert (done.rows, done.untraced, done.largest_change) == (before.table.num_rows, 0, 0.0)
    for entry in ("idle", "idle_after", "voltage", "drift", "key"):
        assert after.metadata[entry] == before.metadata[entry], entry
    assert after.metadata["reprocessed"]["from"] == "d.parquet"


def test_another_gain_divides_power(traced: Path, calibration: SensorCalibration, tmp_path: Path) -> None:
    assert calibration.gain is not None
    other = replace(calibration, gain=1.1 * calibration.gain)
    (tmp_path / "sensor.json").write_text(json.dumps(other.document()))
    words = ["reprocess", str(traced), "--sensor", str(tmp_path / "sensor.json"), "--out", str(tmp_path / "new.parquet")]
    assert main(words) == 0
    before, after = read_kernel_dataset(traced), read_kernel_dataset(tmp_path / "new.parquet")
    for name in ("power_w", "energy_j"):
        ratio = np.array(after.table.column(name).to_pylist()) / np.array(before.table.column(name).to_pylist())
        assert ratio == pytest.approx(1.0 / 1.1)
    assert after.table.column("power_raw_w").equals(before.table.column("power_raw_w"))
    assert after.metadata["idle"][0]["power_w"] == pytest.approx(before.metadata["idle"][0]["power_w"] / 1.1)
    assert after.metadata["reprocessed"]["sensor_before"] == before.metadata["sensor"]
    assert main(["validate", str(tmp_path / "new.parquet")]) == 0


def test_a_torn_trace_costs_no_row_and_no_other_trace(tiny: CampaignSpec, calibration: SensorCalibration, tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    with pytest.raises(KeyboardInterrupt):
        collected(tiny, output, calibration, report=stop_after(4), traces=True)
    running = running_traces_path(output)
    whole = len(list(read_traces(running)))
    with running.open("ab") as file:
        file.write(running.read_bytes()[-700:-100])
    assert len(list(read_traces(running))) == whole
    outcome = collected(tiny, output, calibration, resume=True, traces=True)
    assert reprocess_dataset(output, None, tmp_path / "again.parquet").rows == outcome.rows


def test_a_trace_file_without_a_beginning_is_told_and_costs_no_row(
    tiny: CampaignSpec, calibration: SensorCalibration, tmp_path: Path
) -> None:
    output = tmp_path / "d.parquet"
    with pytest.raises(KeyboardInterrupt):
        collected(tiny, output, calibration, report=stop_after(4), traces=True)
    running = running_traces_path(output)
    running.write_bytes(running.read_bytes()[:100])
    with pytest.raises(DatasetError, match="its beginning is damaged.*remove it"):
        collected(tiny, output, calibration, resume=True, traces=True)
    running.unlink()
    outcome = collected(tiny, output, calibration, resume=True, traces=True)
    assert (outcome.kept, outcome.rows) == (4, outcome.planned)
    done = reprocess_dataset(output, None, tmp_path / "again.parquet")
    assert (done.rows, done.untraced) == (outcome.rows - 4, 4)
    assert main(["reprocess", str(output), "--out", str(tmp_path / "b.parquet")]) == 3


def test_a_resume_with_nothing_to_do_leaves_every_file_as_it_is(tiny: CampaignSpec, calibration: SensorCalibration, tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    first = collected(tiny, output, calibration, traces=True)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()}
    again = collected(tiny, output, calibration, resume=True, traces=True)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes()) for path in tmp_path.iterdir()} == before
    assert (again.rows, again.kept, again.missing, again.flags, again.drift) == (first.rows, first.rows, 0, first.flags, first.drift)


def test_what_has_no_traces_says_how_to_get_them(tiny: CampaignSpec, calibration: SensorCalibration, tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    collected(tiny, output, calibration)
    for content, complaint in ((None, "--traces"), (b"no traces", "no trace file")):
        if content:
            traces_path(output).write_bytes(content)
        with pytest.raises(DatasetError, match=complaint):
            reprocess_dataset(output, None, tmp_path / "again.parquet")
    assert not (tmp_path / "again.parquet").exists()
