"""`collect sensor --readings`: from files to the contract's JSON, and one line for everything that cannot be."""

import json

import numpy as np
import pytest
from random_sensors import PlantedSensor, record

from tests.words import answer, refused

CONTRACT = {
    "update_period_s", "averaging", "window_s", "tau_s", "window_std_s", "delay_s", "rise_time_s", "transient", "gain", "offset_w",
    "n_updates", "sampled_fraction", "notes",
}  # fmt: skip

PLANTED = PlantedSensor(
    kernel="boxcar", width_s=0.025, period_s=0.1, rigid=True, gain=0.97, offset_w=4.0, delay_s=1e-3, load_period_s=0.127,
    poll_s=0.005, noise_w=0.3, step_w=120.0, jitter_s=3e-4,
)  # fmt: skip


@pytest.fixture(scope="module")
def recording():
    return record(PLANTED, np.random.default_rng(2))


@pytest.fixture(scope="module")
def files(recording, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tables = (
        ("readings.csv", "t_s,power_w", recording.time_s, recording.reading_w),
        ("load.csv", "t_s,level", recording.edge_s, recording.level),
        ("meter.csv", "t_s,power_w", recording.meter_s, recording.meter_w),
    )
    for name, header, time_s, value in tables:
        np.savetxt(folder / name, np.stack([time_s, value], axis=1), fmt="%.6f", delimiter=",", header=header, comments="")
    return folder


def test_three_files_give_every_field_of_the_contract(files, tmp_path):
    out = tmp_path / "sensor.json"
    inputs = ["--readings", str(files / "readings.csv"), "--load", str(files / "load.csv"), "--reference", str(files / "meter.csv")]
    found = answer("sensor", *inputs, "--out", out)
    assert found == json.loads(out.read_text())
    assert found.keys() >= CONTRACT
    assert found["averaging"] == "boxcar"
    assert found["window_s"] == pytest.approx(PLANTED.width_s, abs=1e-3)
    assert found["update_period_s"] == pytest.approx(PLANTED.period_s, abs=1e-4)
    assert found["gain"] == pytest.approx(PLANTED.gain, abs=4.0 * found["gain_std"])
    assert found["offset_w"] == pytest.approx(PLANTED.offset_w, abs=4.0 * found["offset_std_w"])
    assert found["sampled_fraction"] == pytest.approx(0.25, abs=0.01)
    for key in CONTRACT - {"notes"}:
        assert found[key] is not None or found["notes"][key]


def test_readings_alone_leave_nulls_with_their_reasons(files):
    found = answer(f"sensor --readings {files / 'readings.csv'}")
    assert found["update_period_s"] == pytest.approx(PLANTED.period_s, abs=1e-4)
    for key in ("window_s", "gain", "offset_w", "delay_s", "rise_time_s", "transient", "sampled_fraction"):
        assert found[key] is None
        assert found["notes"][key]
    assert "square wave" in found["notes"]["averaging"]


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        ("--load l.csv", 2, "--load needs --readings"),
        ("--column x", 2, "--column needs --readings"),
        ("--readings r.csv --seed 1", 2, "--seed has no meaning with --readings"),
        ("--readings none.csv", 1, "none.csv: cannot be read"),
    ],
)
def test_wrong_use_is_one_line(arguments, status, words):
    refused(status, words, f"sensor {arguments}")


def test_a_log_without_a_clock_ends_with_a_warning(tmp_path):
    path = tmp_path / "flat.csv"
    path.write_text("t_s,power_w\n" + "".join(f"{i * 0.01:.2f},60\n" for i in range(500)))
    found = answer(f"sensor --readings {path}", status=3)
    assert "0 changes" in found["notes"]["update_period_s"]
