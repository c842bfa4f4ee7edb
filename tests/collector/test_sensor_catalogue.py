"""The catalogue of published sensors answers for every board of figure 14 by driver and field, and stands in for a characterisation."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import trapezoid

from collector.cli import main
from collector.errors import SensorError
from collector.sensing.board_power import GRID_S, Signal
from collector.sensing.catalogue import catalogue, entry_text, find_sensor, given_sensor, missing_s
from collector.sensing.response import seen
from estimator.vocabulary.gpu import simulated_uuid
from tests.collector.made_readings import sensor_of
from tests.words import answer, one_line, refused, told

QUERIES = {"power.draw": "usage", "power.draw.average": "average", "power.draw.instant": "instant"}


def table(text):
    return dict(line.split(" = ") for line in text.strip().splitlines())


ARCHITECTURES = table("""
Hopper/GH100 = hopper
Ada Lovelace = ada
Ampere = ampere
GA100 = ga100
Turing = turing
Volta = volta
Pascal = pascal
Maxwell 2.0 = maxwell-2
Maxwell 1.0 = maxwell-1
Kepler 2.0 = kepler-2
Kepler 1.0 = kepler-1
Fermi 2.0 = fermi-2
Fermi 1.0 = fermi-1
""")
BOARDS = table("""
NVIDIA H100 PCIe = h100-pcie
NVIDIA H100 80GB HBM3 = hopper
NVIDIA GH200 480GB = gh200
NVIDIA H200 NVL = hopper
NVIDIA H200 = h200
NVIDIA GeForce RTX 4090 = rtx-4090
NVIDIA RTX 6000 Ada Generation = ada
NVIDIA L40S = ada
NVIDIA A100-PCIE-40GB = a100-pcie-40gb
NVIDIA A100 80GB PCIe = ga100
NVIDIA A100-SXM4-40GB = ga100
NVIDIA A100-SXM4-80GB = ga100
NVIDIA A10 = ampere
NVIDIA RTX A6000 = ampere
NVIDIA RTX A5000 = rtx-a5000
NVIDIA GeForce RTX 3090 = rtx-3090
NVIDIA GeForce RTX 3070 Ti = rtx-3070-ti
Quadro RTX 8000 = rtx-8000
NVIDIA TITAN RTX = titan-rtx
NVIDIA GeForce RTX 2080 Ti = rtx-2080-ti
NVIDIA GeForce RTX 2060 SUPER = rtx-2060-super
NVIDIA GeForce GTX 1650 Ti = turing
Tesla T4 = turing
Tesla V100-SXM2-16GB = v100-sxm2-16gb
Tesla V100-PCIE-32GB = volta
Tesla P100-PCIE-16GB = p100-pcie-16gb
NVIDIA TITAN Xp = titan-x-pascal
NVIDIA TITAN X (Pascal) = titan-x-pascal
NVIDIA GeForce GTX 1080 Ti = gtx-1080-ti
GeForce GTX 1080 Ti = gtx-1080-ti
NVIDIA GeForce GTX 1080 = gtx-1080
Tesla M40 = m40
Tesla M40 24GB = m40
Quadro K620 = k620
NVIDIA GeForce GTX TITAN X = gtx-titan-x
NVIDIA GeForce GTX 745 = maxwell-1
""")
"""Boards of the publication, and others of their generations, as NVML names them: whose figures they get for `instant` on 550."""


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_has_its_own_sensor_or_that_of_its_generation(board):
    found = find_sensor(board, "550.90.07", "instant")
    assert found.name == BOARDS[board]
    assert found.generation == (found.name in ARCHITECTURES.values())
    assert ("the class " in found.source()) == found.generation


@pytest.mark.parametrize("board", ["Tesla K40m", "Tesla K80", "Tesla M2090", "GeForce GTX 680"])
def test_boards_that_new_drivers_dropped_have_the_old_ones_sensor(board):
    old = find_sensor(board, "470.82.01", "usage")
    assert old is not None
    assert find_sensor(board) == old
    assert find_sensor(board, "550.90.07", "instant") is None


def test_every_cell_of_figure_14_is_a_generation_and_no_other(shared_data):
    with (shared_data / "sensors" / "catalogue.csv").open(newline="") as stream:
        cells = [row for row in csv.DictReader(stream) if row["source"].startswith("class-matrix")]
    assert len(cells) == 65
    for cell in cells:
        found = find_sensor(ARCHITECTURES[cell["architecture"]], cell["driver"], QUERIES[cell["query"]])
        assert (found is not None) == (cell["supported"] == "1"), cell
        if found is None:
            continue
        period, window = cell["update_period_ms_median"], cell["window_nominal_ms"]
        assert not period or found.update_period_s == pytest.approx(float(period) * 1e-3)
        assert not window or found.window_s == pytest.approx(float(window) * 1e-3)


@pytest.mark.parametrize(
    "sensor, width_ms",
    [
        ("NVIDIA GeForce RTX 3090@525.116.03:instant", 98),
        ("NVIDIA GeForce RTX 3090@525.116.03:usage", 1000),
        ("NVIDIA GeForce RTX 3090@525.89.02:usage", 1000),
        ("NVIDIA GeForce RTX 3090@530.30.02:power.draw", 100),
        ("NVIDIA GeForce RTX 3090@525.89.02:instant", None),
        ("NVIDIA H100 PCIe@525.60.13:usage", None),
        ("NVIDIA H100 PCIe@525.105.17:instant", 25),
        ("NVIDIA H100 PCIe@535.104.05:usage", 1000),
        ("NVIDIA A100-PCIE-40GB@535.54.03:usage", 26),
        ("NVIDIA A100-PCIE-40GB@535.54.03:average", None),
        ("NVIDIA GH200 480GB@535.104.05:average", 1000),
        ("NVIDIA B200@570.86.15:instant", None),
    ],
)
def test_driver_and_field_decide(sensor, width_ms):
    found = find_sensor(*re.split("[@:]", sensor))
    assert (None if found is None or found.window_s is None else round(found.window_s * 1e3)) == width_ms


def test_an_entry_is_found_by_its_name_and_is_possible():
    for entry in catalogue():
        assert entry.names(entry.name)
        assert entry.averaging in ("boxcar", "low-pass", "trailing-mean", "window", "estimated")
        assert all(value is None or 0.0 < value < 2.0 for value in (entry.update_period_s, entry.window_s, entry.rise_time_s, entry.gain))
        for field in entry.fields:
            taken = given_sensor(f"{entry.name}@{entry.driver}:{field}")
            assert (taken.gain, taken.offset_w, taken.n_updates) == (None, None, 0)
            assert "not characterised" in taken.notes["catalogue"]
            widths = [taken.window_std_s, *(one.window_std_s for one in taken.candidates)]
            assert entry.window_s is None or all(one is None or one >= 0.099 * entry.window_s for one in widths)


@pytest.mark.parametrize(
    "text, said",
    [
        ("a100-pcie-40g", "`collect sensors` lists them"), ("./no.json", "cannot be read"),
        ("rtx-3090@525.89:instant", "rtx-3090@525.89.02:usage"), ("a10:power", "nothing is published"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_with_what_does(text, said):
    with one_line(SensorError, said):
        given_sensor(text, field="instant")


def test_a_recording_is_corrected_by_an_entry(shared_data):
    readings = shared_data / "sensors" / "a100_square_wave" / "gpudata.csv"
    found = answer("correct", "--readings", readings, "--sensor", "a100-pcie-40gb", status=3)
    assert "this board was not characterised" in found["notes"]["catalogue"]
    assert 0.05 < found["power_std_w"] / found["power_w"] < 0.15  # what boards differ by in gain and offset


def test_sensors_are_listed_for_people_and_programs():
    out, _ = told("sensors")
    assert len([line for line in out.splitlines() if not line.startswith("  note: ")]) == 1 + len(catalogue())
    assert {entry["name"] for entry in answer("sensors", "NVIDIA H100 PCIe")} == {"h100-pcie", "hopper"}
    refused(1, "lists them", "sensors rtx-309")


# Entries of a laboratory's own -----------------------------------------------------------------------------------------------------

MEASURED = sensor_of("""
"gpu_uuid": "GPU-1", "driver": "550.54.15", "sensor": "nvml", "field": "instant", "averaging": "boxcar",
"window_s": 0.031, "window_std_s": 0.001, "update_period_s": 0.1, "transient": "instant", "gain": 1.01,
"offset_w": -2.5
""")


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTPRINT_SENSORS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("board", ['NVIDIA H300 "X"', "NVIDIA GeForce RTX 3090"])
def test_a_characterised_sensor_sent_as_an_entry_is_found_before_others(board, own_folder):
    sensor, out = own_folder / "sensor.json", own_folder / "new.toml"
    sensor.write_text(json.dumps(MEASURED.document()))
    words = ["sensors", board, *f"--entry {sensor} --out {out}".split()]
    assert [main(words), main(words)] == [0, 1], "an output is not replaced"
    assert "GPU-1" not in out.read_text()
    taken = given_sensor(board, "GPU-2", "550.90.07", "instant")
    assert (taken.averaging, taken.window_s, taken.update_period_s, taken.gain) == ("boxcar", 0.031, 0.1, None)
    found = find_sensor(board, "550.54.15", "instant")
    assert (found.gain, found.offset_w, found.transient, found.runs) == (1.01, -2.5, "instant", 1)
    assert find_sensor("NVIDIA H100 PCIe", "550.54.15", "instant") is not None, "what comes along stays"


@pytest.mark.parametrize(
    "change, said",
    [
        ({"driver": ""}, "without driver"),
        ({"field": "total"}, "without field"),
        ({"averaging": "undetermined"}, "without averaging"),
        ({"gpu_uuid": simulated_uuid("a100-pcie-40gb")}, "simulated"),
    ],
)
def test_a_sensor_that_is_not_known_makes_no_entry(change, said):
    with pytest.raises(SensorError, match=said):
        entry_text(replace(MEASURED, **change), "NVIDIA H300")


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("window_s = 0.031", "window_s = -1", r"rows\[0\].window_s"), ('["instant"]', '["total"]', r"rows\[0\].fields"),
        ("gain", "gian", "gian"), ('boards = ["h300"]', "boards = []", "boards"), ("rows = [", "rows = [1,", r"rows\[0\]"),
        ("name =", "nom =", "nom"),
    ],
)  # fmt: skip
def test_an_entry_with_a_fault_is_refused_with_its_place(old, new, said, own_folder):
    (own_folder / "bad.toml").write_text(entry_text(MEASURED, "H300").replace(old, new))
    with pytest.raises(SensorError, match=f"bad.toml: .*{said}"):
        catalogue()


def test_a_folder_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("WATTPRINT_SENSORS", "/no/such")
    refused(1, "WATTPRINT_SENSORS=/no/such", "sensors")
    monkeypatch.delenv("WATTPRINT_SENSORS")
    assert main(["sensors", "h300", "--entry", "sensor.json"]) == 2


@pytest.mark.parametrize("averaging", ["boxcar", "low-pass", "trailing-mean"])
@pytest.mark.parametrize("width_s", [0.025, 0.4, 1.0, 1.8])
def test_what_readings_miss_of_a_load_is_the_integral_of_the_response(averaging, width_s):
    sensor = replace(catalogue()[0], averaging=averaging, window_s=width_s)
    value = np.where((np.arange(round(11.0 / GRID_S)) + 0.5) * GRID_S >= 10.0, 1.0, 0.0)
    step = Signal(start_s=-10.0, value=value, area=np.concatenate([[0.0], np.cumsum(value) * GRID_S]))
    time_s = np.linspace(0.0, 1.0, 2001)
    shown = trapezoid(seen(step, "low-pass" if averaging == "low-pass" else "boxcar", width_s, time_s), time_s)
    assert missing_s(sensor, 1.0) == pytest.approx(1.0 - shown, abs=2e-3)
