import csv
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitter.report.text import selection_document, selection_lines
from fitter.rows.columns import Dataset, Selection, Startup, WorkloadRows
from fitter.rows.rejected import RejectedRow, count_reasons
from fitter.rows.startup import estimate_startup, is_perturbed, target_duration_s
from fitter.rows.tables import open_table
from fitter.rows.workload_dataset import COLUMNS, read_workload_dataset

LIST = "gpt2model_gpt2_pbf16_b8_s512_modeprefill.json"


class WorkloadReading(NamedTuple):
    """What a workload dataset gives."""

    rows: WorkloadRows | None
    rejected: list[RejectedRow]
    startups: tuple[Startup, ...]


Reader = Callable[..., WorkloadReading]


@pytest.fixture
def read(tmp_path: Path, shared_data: Path) -> Reader:
    """Reads runs of one workload; each run is given by the columns that differ from a good one."""
    (tmp_path / "workloads").mkdir()
    shutil.copy(shared_data / "energaizer" / "workloads" / LIST, tmp_path / "workloads" / LIST)
    good = {
        "workload": f"workloads/{LIST}",
        "gpu": "a100-pcie-40gb",
        "sm_clock_mhz": "900",
        "sm_clock_measured_mhz": "900",
        "iterations": "1490",
        "latency_s": "0.0212",
        "energy_j": "3.4",
        "temperature_c": "60",
        "precision": "bf16",
        "attention": "eager",
    }

    def reader(*runs: Mapping[str, str]) -> WorkloadReading:
        path = tmp_path / "runs.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(good))
            writer.writeheader()
            writer.writerows({**good, **run} for run in runs)
        return WorkloadReading(*read_workload_dataset(open_table(path, COLUMNS)))

    return reader


@pytest.mark.parametrize(
    ("name", "low", "high", "perturbed"), [("a100_900mhz", 1.59, 1.62, 3), ("a100_clocks", 1.62, 1.72, 5), ("a10_900mhz", 1.12, 1.13, 1)]
)
def test_start_up_of_each_host_is_recovered(shared_data: Path, name: str, low: float, high: float, perturbed: int) -> None:
    table = open_table(shared_data / "energaizer" / f"{name}.csv", COLUMNS)
    reading = WorkloadReading(*read_workload_dataset(table))
    (startup,) = reading.startups
    assert startup.target_s == 30.0
    assert low - 0.05 <= startup.startup_s <= high + 0.05
    assert reading.rows is not None
    assert int(reading.rows.perturbed.sum()) == perturbed
    assert (reading.rows.weight < 1).tolist() == reading.rows.perturbed.tolist()


def test_exactly_the_failed_run_is_rejected(shared_data: Path) -> None:
    table = open_table(shared_data / "energaizer" / "a10_900mhz.csv", COLUMNS)
    reading = WorkloadReading(*read_workload_dataset(table))
    assert [(r.reason, r.power_only) for r in reading.rejected] == [("TRUNCATED_RUN", False)]
    assert "b8_s2048" in table.texts("workload")[reading.rejected[0].row - 1]


def test_throttled_runs_reach_the_power_limit_once_start_up_is_removed(shared_data: Path) -> None:
    rows = read_workload_dataset(open_table(shared_data / "energaizer" / "a100_clocks.csv", COLUMNS))[0]
    assert rows is not None
    throttled = rows.sm_clock_asked_mhz - rows.sm_clock_measured_mhz > 5
    assert throttled.sum() == 15
    assert float(np.median(rows.power_w[throttled])) == pytest.approx(250.0, abs=1.5)
    assert float(np.median(rows.raw_power_w[throttled])) < 243.0


def test_removing_start_up_lowers_latency_and_keeps_energy_of_the_work(read: Reader) -> None:
    reading = read(*[{"iterations": str(n), "latency_s": repr(31.6 / n), "energy_j": "3.4"} for n in range(1480, 1490)])
    rows = reading.rows
    assert rows is not None
    assert np.all(rows.latency_s < rows.raw_latency_s)
    removed_w = (rows.raw_energy_j - rows.energy_j) / (rows.raw_latency_s - rows.latency_s)
    np.testing.assert_allclose(removed_w, 55, atol=3)  # idle at 900 MHz and a board in use


@pytest.mark.parametrize(
    ("run", "reason", "power_only"),
    [
        ({"latency_s": "nan"}, "BAD_LATENCY", False),
        ({"gpu": "a101"}, "UNKNOWN_GPU", False),
        ({"iterations": "0"}, "BAD_ITERATIONS", False),
        ({"iterations": "1e300"}, "BAD_ITERATIONS", False),
        ({"precision": "zz"}, "UNKNOWN_PRECISION", False),
        ({"attention": "weird"}, "UNKNOWN_ATTENTION", False),
        ({"temperature_c": "1e308"}, "BAD_TEMPERATURE", False),
        ({"temperature_c": "hot"}, "BAD_TEMPERATURE", False),
        ({"iterations": "100"}, "TRUNCATED_RUN", False),
        ({"sm_clock_mhz": "900000"}, "BAD_CLOCK", False),
        ({"workload": "workloads/none.json"}, "MISSING_WORKLOAD", False),
        ({"workload": "../../../../etc/passwd"}, "MISSING_WORKLOAD", False),
        ({"workload": "/dev/zero"}, "MISSING_WORKLOAD", False),
        ({"workload": "workloads"}, "MISSING_WORKLOAD", False),
        ({"workload": "x" * 10_000_000}, "BAD_TEXT", False),
        ({"energy_j": "-1"}, "BAD_POWER", True),
        ({"energy_j": "0.3"}, "BAD_POWER", True),
        ({"energy_j": "3400"}, "ABOVE_LIMIT", True),
        ({"latency_s": "0.002", "iterations": "15800"}, "ABOVE_ROOF", False),
    ],
)
def test_a_bad_run_is_left_out_with_its_reason(read: Reader, run: dict[str, str], reason: str, power_only: bool) -> None:
    good = [{"temperature_c": str(50 + i)} for i in range(8)]
    reading = read(*good, run)
    assert [(r.row, r.reason, r.power_only) for r in reading.rejected] == [(9, reason, power_only)]
    assert len(reading.rejected[0].detail) < 700
    assert reading.rows is not None
    assert len(reading.rows) == (9 if power_only else 8)


def test_a_pipe_in_place_of_a_workload_does_not_hang(read: Reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert count_reasons(read({"workload": "pipe"}).rejected) == {"MISSING_WORKLOAD": 1}


def test_a_run_without_energy_among_others_is_used_for_its_latency_and_counted(read: Reader) -> None:
    reading = read({}, {"energy_j": "", "temperature_c": "51"}, {"energy_j": "-1", "temperature_c": "52"}, {"latency_s": "0"})
    assert [(r.row, r.reason, r.power_only) for r in reading.rejected] == [(3, "BAD_POWER", True), (4, "BAD_LATENCY", False)]
    dataset = Dataset(name="runs.csv", sha256="", kind="workload dataset", rows=4, used=3, rejected={}, metadata={})
    selection = Selection(
        kernels=None, workloads=reading.rows, rejected=tuple(reading.rejected), startups=(), datasets=(dataset,), notes=()
    )
    told = selection_document(selection)
    assert told["rows"] == told["used"] + sum(told["rejected"].values())
    assert (told["rejected"], told["rejected_power_only"]) == ({"BAD_LATENCY": 1}, {"BAD_POWER": 1})
    assert told["used_latency_only"] == 2
    assert "3 of 4 rows used, 2 of them for their latency alone" in selection_lines(selection)[0]


@given(
    target=st.sampled_from([5.0, 10.0, 30.0, 60.0]),
    startup=st.floats(0.0, 0.06),
    latencies=st.lists(st.floats(0.005, 0.1), min_size=12, max_size=40),
)
def test_the_target_and_start_up_come_from_the_runs_themselves(target: float, startup: float, latencies: list[float]) -> None:
    latency = np.array(latencies)
    iterations = np.ceil(target / latency)
    duration = iterations * latency + startup * target
    assert target_duration_s(duration) == target
    measured = duration / iterations
    found = estimate_startup(duration, measured, np.ones(len(latency), dtype=bool), target)
    assert found.startup_s == pytest.approx(startup * target, abs=0.05)
    assert not is_perturbed(duration, measured, target, found.startup_s).any()


def test_the_start_up_holds_no_part_of_the_last_iteration() -> None:
    """Of long iterations a run is over by half a one on average, from nothing to a whole one."""
    latency = np.linspace(0.2, 1.0, 41)
    duration = 1.5 + np.ceil(30.0 / latency) * latency
    everywhere = np.ones(len(latency), dtype=bool)
    assert estimate_startup(duration, latency, everywhere, 30.0).startup_s == pytest.approx(1.5, abs=0.1)
    assert not is_perturbed(duration, latency, 30.0, 1.5).any()
    around = 30.0 + 1.5 + 0.5 + np.array([-2.7, 2.2])
    assert is_perturbed(around, np.ones(2), 30.0, 1.5).tolist() == [True, False], "2 s and half an iteration around the middle"


def test_runs_of_fixed_iterations_have_no_target() -> None:
    assert np.isnan(target_duration_s(100 * np.geomspace(0.01, 1.0, 20)))
    assert np.isnan(target_duration_s(np.array([30.0, 30.1])))


def test_a_run_without_its_count_cannot_lose_its_start_up(read: Reader) -> None:
    runs = [{"latency_s": f"{0.0212 + 1e-5 * i:g}", "iterations": "1490"} for i in range(8)]
    reading = read(*runs, {"iterations": ""})
    assert [(row.row, row.reason) for row in reading.rejected] == [(9, "BAD_ITERATIONS")]


def test_a_run_in_another_number_format_than_its_list_is_read_in_its_own(read: Reader) -> None:
    reading = read({}, {"precision": "fp16"})
    assert reading.rows is not None
    first, second = reading.rows.row_workloads()
    assert {o.precision for o in first.operators if o.family == "gemm"} == {"bf16"}
    assert {o.precision for o in second.operators if o.family == "gemm"} == {"fp16"}


def test_a_path_above_the_data_set_is_followed(read: Reader, tmp_path: Path) -> None:
    reading = read({"workload": f"../{tmp_path.name}/workloads/{LIST}"})
    assert reading.rejected == []
