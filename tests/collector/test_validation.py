"""`collect validate`: a sound dataset breaks no rule, and each rule notices what it is there for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from collector.campaigns.files import CampaignSpec
from collector.campaigns.metadata import anchor_drift
from collector.cli import main
from collector.dataset import read_kernel_dataset, rows_to_table, write_kernel_dataset
from collector.dataset.rules import RULES, validate_dataset
from collector.dataset.schema import IDENTITY_COLUMNS, KERNEL_COLUMNS, SHAPE_COLUMNS
from collector.sensing.calibration import SensorCalibration
from tests.collector.test_campaign import collected

Change = Callable[[list[dict[str, Any]], dict[str, Any]], None]


@pytest.fixture(scope="module")
def sound(tiny: CampaignSpec, calibration: SensorCalibration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign on the simulated board."""
    output = tmp_path_factory.mktemp("sound") / "d.parquet"
    collected(tiny, output, calibration)
    return output


def spoilt(sound: Path, folder: Path, change: Change) -> Path:
    """The dataset with something changed."""
    dataset = read_kernel_dataset(sound)
    rows, metadata = dataset.table.to_pylist(), json.loads(json.dumps(dataset.metadata))
    change(rows, metadata)
    write_kernel_dataset(rows, metadata, folder / "spoilt.parquet")
    return folder / "spoilt.parquet"


def one(**columns: Any) -> Change:
    """The first row that is no anchor with other values; a function makes one from the old."""

    def change(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
        row = next(row for row in rows if row["operator"] == "linear")
        row.update({name: value(row) if callable(value) else value for name, value in columns.items()})

    return change


def copied(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
    rows.append(dict(rows[0]))


def told(**entries: Any) -> Change:
    return lambda _rows, metadata: metadata.update(entries)


def unusable(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
    for row in rows[:4]:
        row["flags"] = ["power_missing"]


def too_fast(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
    """The largest product in a microsecond."""
    row = max(rows, key=lambda row: (row["m"] or 0) * (row["n"] or 0) * (row["k"] or 0))
    row.update({"latency_s": 1e-6, "energy_j": 1e-6 * row["power_w"], "energy_counter_j": None})


SPOILERS: dict[str, Change] = {
    "D01": copied,
    "D02": told(complete=False),
    "D04": told(sensor={}),
    "D05": unusable,
    "R01": one(temperature_c=4000.0),
    "R02": one(m=-5),
    "R04": one(kernel_name=None),
    "R06": one(power_std_w=lambda row: row["power_w"]),
    "T02": told(drift={"idle": 0.3}),
    "P01": one(energy_j=lambda row: 1.001 * row["energy_j"]),
    "P02": one(power_w=300.0, energy_j=lambda row: 300.0 * row["latency_s"]),
    "P03": one(power_w=12.0, power_std_w=0.1, energy_j=lambda row: 12.0 * row["latency_s"]),
    "P04": one(sm_clock_measured_mhz=lambda row: 0.9 * row["sm_clock_mhz"]),
    "P06": one(energy_counter_j=lambda row: 2.0 * row["energy_j"]),
    "P07": too_fast,
}


def test_a_sound_dataset_breaks_no_rule_nor_does_what_is_not_known(sound: Path, tmp_path: Path) -> None:
    assert list(SPOILERS) == [rule.id for rule in RULES]

    def unknown(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
        for row in rows:
            row.update({"voltage_v": None, "energy_counter_j": None, "idle_before_w": None, "memory_clock_mhz": None})

    findings = validate_dataset(sound)
    assert findings.broken == validate_dataset(spoilt(sound, tmp_path, unknown)).broken == {}
    assert len(findings.row_ids) == read_kernel_dataset(sound).table.num_rows


@pytest.mark.parametrize("rule", list(SPOILERS))
def test_a_rule_notices_what_it_is_there_for(rule: str, sound: Path, tmp_path: Path) -> None:
    findings = validate_dataset(spoilt(sound, tmp_path, SPOILERS[rule]))
    assert rule in findings.broken
    assert all("\n" not in breach.what for breaches in findings.broken.values() for breach in breaches)


@pytest.mark.parametrize(("rule", "flag"), [("P04", "clock_off_target"), ("P06", "counter_disagrees"), ("R04", "kernel_untraced")])
def test_a_doubt_that_a_row_states_breaks_no_rule(rule: str, flag: str, sound: Path, tmp_path: Path) -> None:
    def change(rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
        SPOILERS[rule](rows, metadata)
        next(row for row in rows if row["operator"] == "linear")["flags"] = [flag]

    assert rule not in validate_dataset(spoilt(sound, tmp_path, change)).broken


def drift_of(sound: Path, **changed: float) -> float:
    """Drift of the power of four anchors that each draw 2 % more than the one before, and differ in some columns."""
    anchor = next(row for row in read_kernel_dataset(sound).table.to_pylist() if row["operator"] == "add")
    rows = [
        {**anchor, **{name: value + i for name, value in changed.items()}, "power_w": 150.0 * (1.0 + 0.02 * i), "trial": i}
        for i in range(4)
    ]
    return anchor_drift(rows_to_table(rows, {})).get("power", 0.0)


def test_rows_that_are_equal_in_all_that_ran_are_compared_and_no_outcome_hides_a_drift(sound: Path) -> None:
    assert {*SHAPE_COLUMNS, "precision", "grid_x", "tile_m", "l2_state", "sm_clock_mhz"} <= set(IDENTITY_COLUMNS)
    assert drift_of(sound, tile_m=7) == drift_of(sound, sm_clock_mhz=7.5) == 0.0
    outcomes = {name for name, column in KERNEL_COLUMNS.items() if column.outcome and column.kind == "number"} - {"power_w"}
    assert drift_of(sound, **dict.fromkeys(outcomes, 7.5)) > 0.05


def test_a_dataset_without_rows_is_not_valid(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = spoilt(sound, tmp_path, lambda rows, _metadata: rows.clear())
    assert main(["validate", str(empty)]) == 3
    assert "it has no rows" in capsys.readouterr().out


def test_nan_stands_for_nothing(sound: Path, tmp_path: Path) -> None:
    names = [name for name, column in KERNEL_COLUMNS.items() if column.type == pa.float64()]
    breaches = validate_dataset(spoilt(sound, tmp_path, one(**dict.fromkeys(names, float("nan"))))).broken["R01"]
    assert [breach.what.split()[0] for breach in breaches if "NaN" in breach.what] == names


def test_the_command_tells_by_its_status(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(sound)]) == 0
    bad = spoilt(sound, tmp_path, SPOILERS["P01"])
    assert main(["validate", str(bad), "--json"]) == 3
    captured = capsys.readouterr()
    document = json.loads(captured.out.split("\n", 1)[1])
    assert document["valid"] is False
    assert [rule["rule"] for rule in document["rules"] if rule["broken"]] == ["P01"]
    assert "1 of 15 rules" in captured.err
    assert main(["validate", str(tmp_path / "none.parquet")]) == 1


def test_rules_and_ranges_stand_in_the_documentation(repository: Path) -> None:
    page = " ".join((repository / "docs" / "dataset-format.md").read_text(encoding="utf-8").split())
    for rule in RULES:
        assert f"| `{rule.id}` | {rule.what} | {rule.limit} |" in page
    for name, column in KERNEL_COLUMNS.items():
        if column.range is not None:
            assert f"`{name}` {column.range[0]:g} to {column.range[1]:g}" in page
