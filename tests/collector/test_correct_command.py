"""`collect correct`: what is printed, written, refused; a sensor that the readings contradict is said, the right one never is."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from collector.errors import CollectorError
from collector.recordings.run import read_reference, read_run
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import Candidate, SensorCalibration
from collector.sensing.correct import correct_recording
from collector.sensing.known_sensor import possible_responses
from tests.collector.made_readings import made, sensor_of
from tests.words import answer, refused


def correct(files, *more, status=0):
    """What `collect correct` says of files, which are named by its options."""
    return answer("correct", *(word for name, path in files.items() for word in (f"--{name}", path)), *more, status=status)


def written(record, folder, origin_s=100.0):
    """A recording as the three files that the command takes."""
    paths = {"readings": folder / "R.csv", "load": folder / "L.csv", "sensor": folder / "sensor.json"}
    rows = zip(record.time_s + origin_s, record.power_w, strict=True)
    paths["readings"].write_text("t_s,power_w\n" + "".join(f"{t:.6f},{w:.2f}\n" for t, w in rows))
    edges = [(t, 1) for t in record.load.start_s] + [(t, 0) for t in record.load.end_s]
    paths["load"].write_text("t_s,level\n" + "".join(f"{t + origin_s:.6f},{level}\n" for t, level in sorted(edges)))
    paths["sensor"].write_text(json.dumps(record.calibration.document()))
    return paths


def true_energy_j(record):
    """From the first execution's start to the last one's end."""
    return float(record.energy_j(record.load.start_s[:1], record.load.end_s[-1:])[0])


@pytest.fixture(scope="module")
def record():
    return made("boxcar", 0.1, 0.09997, 1.5 + 0.31 * np.arange(16), 0.2, seed=4)


@pytest.fixture
def files(record, tmp_path):
    return written(record, tmp_path)


def test_energy_with_and_without_the_load_is_true_within_its_error(record, files):
    for paths in ({name: path for name, path in files.items() if name != "load"}, files):
        document = correct(paths)
        start, end = document["start_s"] - 100.0, document["end_s"] - 100.0
        true = float(record.energy_j(np.array([start]), np.array([end]))[0])
        assert abs(document["energy_j"] - true) < 4.0 * document["energy_std_j"]
        assert document["energy_j"] == pytest.approx(true, rel=0.01)
        assert abs(document["naive_energy_j"] / true - 1.0) > abs(document["energy_j"] / true - 1.0)
        assert document["power_w"] == pytest.approx(document["energy_j"] / (end - start))
        assert document["power_std_w"] > 0.0
        assert document["update_period_s"] == pytest.approx(0.09997, abs=1e-4)
    assert document["executions"]["count"] == 16
    kept = record.energy_j(record.load.start_s, record.load.end_s).mean()
    assert abs(document["executions"]["energy_j"] - kept) < 4.0 * document["executions"]["energy_std_j"]
    assert document["recording"]["end_s"] > document["end_s"]


def test_the_table_holds_the_power(record, files, tmp_path):
    out = tmp_path / "C.csv"
    correct(files, "--out", out)
    time_s, power, std = np.loadtxt(out, delimiter=",", skiprows=1).T
    assert np.all(np.diff(time_s) > 0)
    assert np.all(std > 0)
    inside = (time_s > 101.5) & (time_s < 106.0)
    true = np.interp(time_s[inside] - 100.0, record.grid_s, record.true_w)
    assert np.abs(power[inside].mean() - true.mean()) < 0.02 * true.mean()


def test_a_single_execution_and_unequal_ones_are_corrected_too(record):
    lone = made("boxcar", 0.1, 0.09997, np.array([1.5]), 2.0, seed=2)
    unlike = LoadStamps(start_s=record.load.start_s[[0, 2, 8]], end_s=record.load.end_s[[0, 6, 9]])
    for case, share in ((lone, 0.01), (replace(record, load=unlike), 0.003)):
        found = correct_recording(case.time_s, case.power_w, case.calibration, case.load)
        true = true_energy_j(case)
        assert found.span.energy_j == pytest.approx(true, rel=share)
        assert abs(found.span.energy_j - true) < 4.0 * found.span.energy_std_j < 4.0 * share * true


def test_executions_without_readings_near_them_are_left_out(record):
    late_s = np.where(record.time_s > 4.0, 900.0, 0.0)
    found = correct_recording(record.time_s + late_s, record.power_w, record.calibration, record.load)
    assert found.repeated.executions == np.count_nonzero(record.load.end_s < 4.0)
    assert "left out" in found.notes["load"]


@pytest.mark.parametrize("unknown", ["gain", "averaging", "all"])
def test_what_the_sensor_does_not_tell_widens_the_error_and_is_noted(record, tmp_path, unknown):
    nothing = {}
    if unknown in ("gain", "all"):
        nothing |= {"gain": None, "gain_std": None, "offset_w": None, "offset_std_w": None}
    if unknown in ("averaging", "all"):
        nothing |= {"averaging": "undetermined", "window_s": None, "window_std_s": None, "delay_s": None, "delay_std_s": None}
    if unknown == "all":
        nothing |= {"update_period_s": None, "reading_noise_w": None, "update_jitter_s": None}
    blind = written(replace(record, calibration=replace(record.calibration, **nothing)), tmp_path)
    known = correct_recording(record.time_s, record.power_w, record.calibration, record.load)
    document = correct(blind, status=0 if unknown == "gain" else 3)
    true = true_energy_j(record)
    assert document["energy_std_j"] > known.span.energy_std_j
    assert abs(document["energy_j"] - true) < 3.0 * document["energy_std_j"]
    assert ("gain" if unknown != "averaging" else "averaging") in document["notes"]


def test_candidates_of_an_undetermined_averaging_are_weighed_by_the_readings(record):
    own = record.calibration
    rivals = tuple(
        Candidate(kernel=kernel, score=score, window_s=width_s, window_std_s=1e-3, delay_s=own.delay_s, delay_std_s=own.delay_std_s)
        for kernel, score, width_s in ((own.averaging, -1.0, own.window_s), ("low-pass", 0.0, 0.3), ("boxcar", -20.0, 1.0))
    )
    blind = replace(own, averaging="undetermined", window_s=None, window_std_s=None)
    weighed, guessed = (
        correct_recording(record.time_s, record.power_w, replace(blind, candidates=given), record.load) for given in (rivals, ())
    )
    true = true_energy_j(record)
    assert "candidates are weighed" in weighed.notes["averaging"]
    assert possible_responses(replace(blind, candidates=rivals)).reach_s < 1.0, "the last one is out of the question"
    assert abs(weighed.span.energy_j - true) < 3.0 * weighed.span.energy_std_j < 1.5 * guessed.span.energy_std_j


def logged(record, path, column, board):
    """The readings as a log of nvidia-smi."""
    stamps = [datetime.fromtimestamp(1.7e9 + at, UTC).strftime("%Y/%m/%d %H:%M:%S.%f") for at in record.time_s.tolist()]
    rows = [f"{stamp}, {board}, {power:.2f} W" for stamp, power in zip(stamps, record.power_w.tolist(), strict=True)]
    path.write_text("\n".join([f"timestamp, uuid, {column} [W]", *rows, ""]))
    return path


@pytest.mark.parametrize(
    "field, column, status",
    [
        ("instant", "power.draw.instant", 0),
        ("power.draw.average", "power.draw.average", 0),
        ("instant", "power.draw.average", 3),
        ("power.draw.average", "power.draw", 3),
        ("recorded", "power.draw", 0),
    ],
)
def test_readings_of_another_field_than_the_sensors_are_a_warning(record, tmp_path, field, column, status):
    known = written(replace(record, calibration=replace(record.calibration, field=field)), tmp_path)["sensor"]
    log = logged(record, tmp_path / "log.csv", column, "GPU-0")
    assert ("field" in answer(f"correct --readings {log} --sensor {known}", status=status)["notes"]) == (status == 3)


def test_readings_of_another_board_than_the_sensors_are_refused(record, tmp_path):
    known = written(replace(record, calibration=replace(record.calibration, gpu_uuid="GPU-abc")), tmp_path)["sensor"]
    own, other = (logged(record, tmp_path / f"{board}.csv", "power.draw.instant", board) for board in ("GPU-ABC", "GPU-def"))
    answer(f"correct --readings {own} --sensor {known}")
    reason = "readings of board GPU-def, the sensor is that of board GPU-abc"
    refused(1, reason, f"correct --readings {other} --sensor {known}")


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(1e-4, 0.5), st.floats(allow_nan=True, allow_infinity=True)), max_size=60),
    st.builds(
        partial(SensorCalibration, gpu_uuid="", driver="", sensor="", field=""),
        averaging=st.sampled_from(["boxcar", "low-pass", "trailing-mean", "none", "undetermined"]),
        window_s=st.none() | st.floats(0.0, 10.0),
        update_period_s=st.none() | st.floats(1e-3, 10.0),
        delay_s=st.none() | st.floats(-5.0, 5.0),
    ),
)
def test_no_readings_and_no_sensor_crash_it(polls, calibration):
    steps, power_w = np.array(polls, dtype=np.float64).reshape(-1, 2).T
    try:
        document = correct_recording(np.cumsum(steps), power_w, calibration).document()
    except CollectorError as error:
        document = {"refused": str(error)}
    assert "\n" not in document.get("refused", "")
    json.dumps(document, allow_nan=False)


def test_the_recorded_a100_square_wave_agrees_with_its_meter(shared_data, tmp_path):
    folder = shared_data / "sensors" / "a100_square_wave"
    published = sensor_of("""
"gpu_uuid": "", "driver": "535.54.03", "sensor": "nvidia-smi", "field": "instant", "averaging": "low-pass",
"n_updates": 75, "update_period_s": 0.1012, "window_s": 0.025, "window_std_s": 0.001, "tau_s": 0.0125,
"delay_s": -0.0055, "delay_std_s": 0.001, "gain": 0.954, "gain_std": 0.005, "offset_w": -1.18, "offset_std_w": 1.0,
"reading_noise_w": 1.0
""")
    (tmp_path / "s.json").write_text(json.dumps(published.document()))
    paths = {"readings": folder / "gpudata.csv", "load": folder / "timestamps.csv", "sensor": tmp_path / "s.json"}
    document = correct(paths, "--column", "power.draw.instant")
    meter = read_reference(folder / "PMD_data.bin")
    time_s, power = meter.time_s, meter.power_w
    zone_s = 3600.0 * round((document["start_s"] - 1.5 - time_s[0]) / 3600.0)
    inside = (time_s + zone_s >= document["start_s"]) & (time_s + zone_s <= document["end_s"])
    true = float(trapezoid(power[inside], time_s[inside]))
    assert document["energy_j"] == pytest.approx(true, rel=0.006)
    assert abs(document["energy_j"] - true) < 2.0 * document["energy_std_j"]
    # The naive integral is right by luck (gain against sampling); with gain and offset taken out it is 5 % too high.
    length = document["end_s"] - document["start_s"]
    assert (document["naive_energy_j"] + 1.18 * length) / 0.954 / true - 1.0 > 0.04


AGAINST = ("sensor", "update_period_s")
A100 = sensor_of("""
"gpu_uuid": "", "driver": "535.54.03", "sensor": "nvidia-smi", "field": "instant", "averaging": "low-pass",
"n_updates": 124, "update_period_s": 0.101217, "update_period_std_s": 8e-06, "update_jitter_s": 0.0006,
"window_s": 0.0249, "window_std_s": 0.0002, "tau_s": 0.01246, "delay_s": -0.00588, "delay_std_s": 0.00014,
"gain": 0.9596, "gain_std": 0.001, "offset_w": -2.3, "offset_std_w": 0.1, "residual_w": 1.48, "reading_noise_w": 0.16
""")
RTX3090 = sensor_of("""
"gpu_uuid": "", "driver": "535.54.03", "sensor": "nvidia-smi", "field": "instant", "averaging": "boxcar",
"n_updates": 161, "update_period_s": 0.09997, "update_period_std_s": 5e-06, "update_jitter_s": 0.00023,
"window_s": 0.1026, "window_std_s": 0.0005, "delay_s": -0.00396, "delay_std_s": 0.0003, "gain": 0.9501,
"gain_std": 0.001, "offset_w": 0.0, "offset_std_w": 0.3, "residual_w": 0.69, "reading_noise_w": 0.13
""")
"""What `collect sensor` finds in the two recordings."""


def jittered(averaging, width_s, seed):
    """Executions of 58 ms that do not lock to the updates."""
    starts = 1.5 + np.cumsum(0.127 + np.random.default_rng(seed).uniform(-3e-3, 3e-3, 60))
    return made(averaging, width_s, 0.1, starts, 0.058, seed=seed)


@pytest.fixture(scope="module")
def varied():
    return jittered("boxcar", 0.025, 3)


def against(case, calibration):
    """Keys of the notes that speak against a sensor."""
    return set(correct_recording(case.time_s, case.power_w, calibration, case.load).notes) & set(AGAINST)


@pytest.mark.parametrize("averaging, width_s", [("boxcar", 0.025), ("boxcar", 0.1), ("low-pass", 0.025), ("low-pass", 0.2)])
def test_the_right_sensor_is_not_contradicted(averaging, width_s):
    case = jittered(averaging, width_s, 5)
    assert not against(case, case.calibration)
    assert not against(case, replace(case.calibration, delay_s=3e-3, delay_std_s=5e-4)), "within its stated error"
    kept = (case.time_s - 0.5) % 0.87 > 0.14  # each pause lies in another phase of the updates; some hold two
    assert not against(replace(case, time_s=case.time_s[kept], power_w=case.power_w[kept]), case.calibration)


def test_stamps_on_another_clock_are_said_beyond_the_sensors_own_scatter_alone(varied):
    moved = replace(varied, load=varied.load.moved(0.37))
    assert "sensor" in against(moved, replace(varied.calibration, residual_w=1.0))
    assert "sensor" not in against(moved, replace(varied.calibration, residual_w=100.0))


@pytest.mark.parametrize(
    "change, said",
    [
        ({"window_s": 0.1}, {"sensor"}),
        ({"averaging": "low-pass", "window_s": 0.2}, {"sensor"}),
        ({"delay_s": 0.012}, {"sensor"}),
        ({"averaging": "none", "window_s": None}, {"sensor"}),
        ({"update_period_s": 0.1002, "update_period_std_s": 1e-5}, set()),
        ({"update_period_s": 0.10125, "update_period_std_s": 1e-5}, {"update_period_s"}),
    ],
)
def test_what_the_readings_contradict_is_said(varied, change, said):
    found = against(varied, replace(varied.calibration, **change))
    assert said <= found if said else not found


def test_a_contradicted_sensor_is_a_note_and_gives_status_3(varied, tmp_path):
    paths = written(replace(varied, calibration=replace(varied.calibration, delay_s=0.05)), tmp_path)
    assert "the readings contradict the sensor" in correct(paths, status=3)["notes"]["sensor"]


@pytest.mark.parametrize(
    "folder, calibration, expected",
    [
        ("a100_square_wave", A100, set()),
        ("rtx3090_step", RTX3090, set()),
        ("a100_square_wave", RTX3090, {"sensor", "update_period_s"}),
        ("rtx3090_step", A100, {"update_period_s"}),
    ],
)
def test_recorded_boards_have_their_own_sensor_and_not_the_other(shared_data, folder, calibration, expected):
    place = shared_data / "sensors" / folder
    run_read = read_run(place / "gpudata.csv", place / "timestamps.csv", column="power.draw.instant").record
    found = correct_recording(run_read.time_s, run_read.power_w, calibration, run_read.load)
    assert set(found.notes) & set(AGAINST) == expected


@pytest.mark.parametrize("first, last", [(None, 20), (10, None), (10, 20)])
def test_executions_that_the_recording_cuts_contradict_nothing(first, last):
    """Cut in the middle of an execution, which a quick sensor reads many times."""
    starts = 1.5 + np.cumsum(0.41 + np.random.default_rng(3).uniform(-3e-3, 3e-3, 30))
    case = made("boxcar", 0.01, 0.02, starts, 0.3, seed=3)
    begin_s = -np.inf if first is None else starts[first] + 0.1
    end_s = np.inf if last is None else starts[last] + 0.2
    kept = (case.time_s > begin_s) & (case.time_s < end_s)
    found = correct_recording(case.time_s[kept], case.power_w[kept], case.calibration, case.load)
    assert "lie wholly within" in found.notes["load"]
    assert not set(found.notes) & set(AGAINST)
    left_w = (found.updates.value - found.repeated.fit.predicted_w)[found.repeated.fit.used]
    assert np.sqrt(np.mean(left_w**2)) < 2.0, "readings of what was cut are none of a board at rest"
    inside = (starts > begin_s) & (starts + 0.3 < end_s)
    true_j = float(case.energy_j(starts[inside], starts[inside] + 0.3).mean())
    assert abs(found.repeated.energy_j - true_j) < 3.0 * found.repeated.energy_std_j
