"""Runs of whole models: start-up is found and removed, bad runs are rejected with their reason."""

import csv
import os
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from fitter.errors import InputError
from fitter.report.page import selection_document, selection_lines
from fitter.rows.columns import Dataset, Selection, Startup, WorkloadRows
from fitter.rows.rejected import RejectedRow
from fitter.rows.tables import open_table
from fitter.rows.workload_dataset import COLUMNS, read_workload_dataset, target_duration_s

LIST = "gpt2model_gpt2_pbf16_b8_s512_modeprefill.json"


class Reading(NamedTuple):
    """What a workload dataset gives."""

    rows: WorkloadRows
    rejected: list[RejectedRow]
    startups: tuple[Startup, ...]


def read_file(path):
    found = read_workload_dataset(open_table(path, COLUMNS))
    return Reading(found.workloads, list(found.rejected), found.startups)


@pytest.fixture
def read(tmp_path, shared_data):
    """Reads runs of one workload; each run is given by the columns that differ from a good one."""
    (tmp_path / "workloads").mkdir()
    shutil.copy(shared_data / "energaizer" / "workloads" / LIST, tmp_path / "workloads" / LIST)
    header = "workload,gpu,sm_clock_mhz,sm_clock_measured_mhz,iterations,latency_s,energy_j,power_w,temperature_c,precision,attention"
    values = f"workloads/{LIST},a100-pcie-40gb,900,900,1490,0.0212,3.4,,60,bf16,eager"
    good = dict(zip(header.split(","), values.split(","), strict=True))

    def reader(*runs):
        path = tmp_path / "runs.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(good))
            writer.writeheader()
            writer.writerows({**good, **run} for run in runs)
        return read_file(path)

    return reader


@pytest.mark.parametrize(
    "name, startup_s, perturbed, rejected",
    [("a100_900mhz", 1.605, 3, []), ("a100_clocks", 1.67, 5, []), ("a10_900mhz", 1.125, 1, ["TRUNCATED_RUN"])],
)
def test_start_up_of_each_host_and_its_failed_runs_are_found(shared_data, name, startup_s, perturbed, rejected):
    reading = read_file(shared_data / "energaizer" / f"{name}.csv")
    (startup,) = reading.startups
    assert startup.target_s == 30.0
    assert startup.startup_s == pytest.approx(startup_s, abs=0.1)
    assert (reading.rows.weight < 1).sum() == perturbed
    assert [row.reason for row in reading.rejected] == rejected


@pytest.mark.parametrize("target_s, startup_s", [(30.0, 0.0), (30.0, 1.6), (10.0, 0.5)])
def test_target_and_start_up_come_from_the_runs_and_no_part_of_the_last_iteration(read, target_s, startup_s):
    """Runs with long iterations end half an iteration late on average; one of them takes 4 s longer than its trial iteration promised."""
    latency = np.linspace(0.02, 0.4, 40)
    iterations = np.ceil(target_s / latency)
    late = np.where(np.arange(40) == 7, 4.0, 0.0)
    measured = latency + (startup_s + late) / iterations
    runs = [
        {"iterations": f"{n:g}", "latency_s": repr(own), "energy_j": repr(160.0 * own)}
        for n, own in zip(iterations.tolist(), measured.tolist(), strict=True)
    ]
    rows, rejected, (startup,) = read(*runs)
    assert rejected == []
    assert startup.target_s == target_s
    assert startup.startup_s == pytest.approx(startup_s, abs=0.06)
    assert np.flatnonzero(rows.weight < 1).tolist() == [7]
    if startup_s:
        removed_w = (160.0 * measured - rows.energy_j) / (measured - rows.latency_s)
        np.testing.assert_allclose(removed_w, 55, atol=3)  # idle at 900 MHz and a board in use


def test_a_mean_power_without_an_energy_is_that_of_the_iteration(read):
    rows, rejected, _ = read({}, {"energy_j": "", "power_w": repr(3.4 / 0.0212)}, {"energy_j": "", "power_w": "160 W"})
    assert rows.energy_j.tolist() == pytest.approx([3.4, 3.4, np.nan], nan_ok=True)
    assert [one.reason for one in rejected] == ["BAD_POWER"]


def test_runs_of_fixed_iterations_have_no_target():
    assert np.isnan(target_duration_s(100 * np.geomspace(0.01, 1.0, 20)))
    assert np.isnan(target_duration_s(np.array([30.0, 30.1])))


@pytest.mark.parametrize(
    "run, reason",
    [
        ({"latency_s": "nan"}, "BAD_LATENCY"),
        ({"gpu": "a101"}, "UNKNOWN_GPU"),
        *[({"iterations": text}, "BAD_ITERATIONS") for text in ("0", "1e300", "")],
        ({"precision": "zz"}, "UNKNOWN_PRECISION"),
        ({"attention": "weird"}, "UNKNOWN_ATTENTION"),
        ({"temperature_c": "1e308"}, "BAD_TEMPERATURE"),
        ({"temperature_c": "hot"}, "BAD_TEMPERATURE"),
        ({"iterations": "100"}, "TRUNCATED_RUN"),
        ({"sm_clock_mhz": "900000"}, "BAD_CLOCK"),
        *[
            ({"workload": name}, "MISSING_WORKLOAD")
            for name in ("workloads/none.json", "../../../../etc/passwd", "/dev/zero", "pipe", "workloads")
        ],
        ({"workload": "x" * 10_000_000}, "BAD_TEXT"),
        ({"energy_j": "-1"}, "BAD_POWER (power)"),
        ({"energy_j": "0.3"}, "BAD_POWER (power)"),
        ({"energy_j": "3400"}, "ABOVE_LIMIT (power)"),
        ({"latency_s": "0.002", "iterations": "15800"}, "ABOVE_ROOF"),
    ],
)
def test_a_bad_run_is_rejected_with_its_reason(read, tmp_path, run, reason):
    os.mkfifo(tmp_path / "pipe")
    good = [{"temperature_c": str(50 + i)} for i in range(8)]
    reading = read(*good, run)
    assert [(r.row, f"{r.reason}{' (power)' * r.power_only}") for r in reading.rejected] == [(9, reason)]
    assert len(reading.rejected[0].detail) < 700
    assert len(reading.rows) == 8 + reading.rejected[0].power_only


def test_runs_in_another_unit_than_seconds_are_refused(read):
    runs = [{"temperature_c": str(50 + i), "latency_s": "21.2", "iterations": "9", "energy_j": ""} for i in range(9)]
    with pytest.raises(InputError, match="must be in seconds"):
        read(*runs)


def test_a_run_without_energy_among_others_is_used_for_its_latency(read):
    reading = read({}, {"energy_j": "", "temperature_c": "51"}, {"energy_j": "-1", "temperature_c": "52"}, {"latency_s": "0"})
    dataset = Dataset(name="runs.csv", sha256="", kind="workload dataset", rows=4, used=3, rejected={})
    selection = Selection(workloads=reading.rows, rejected=tuple(reading.rejected), datasets=(dataset,))
    told = selection_document(selection)
    assert told["rows"] == told["used"] + sum(told["rejected"].values())
    assert (told["rejected"], told["rejected_power_only"]) == ({"BAD_LATENCY": 1}, {"BAD_POWER": 1})
    assert selection_lines(selection)[0] == "3 of 4 rows used"


def test_a_run_shorter_than_an_update_of_a_sensor_has_no_power(read):
    reading = read(*({"iterations": str(n), "energy_j": energy} for n, energy in ((1, "3.4"), (4, ""), (4, "3.4"), (5, "3.4"))))
    assert [(row.row, row.reason, row.power_only) for row in reading.rejected] == [(1, "SHORT_RUN", True), (3, "SHORT_RUN", True)]
    assert np.isfinite(reading.rows.energy_j).tolist() == [False, False, False, True]


def test_a_run_has_its_own_number_format_and_its_path_may_lead_above_the_data_set(read, tmp_path):
    reading = read({"workload": f"../{tmp_path.name}/workloads/{LIST}"}, {"precision": "fp16"})
    assert reading.rejected == []
    formats = [{o.precision for o in workload.operators if o.family == "gemm"} for workload in reading.rows.row_workloads()]
    assert formats == [{"bf16"}, {"fp16"}]
