"""`collect validate`: a sound dataset breaks no rule, and each rule notices what it is there for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from collector.campaigns.files import CampaignSpec
from collector.cli import main
from collector.dataset import read_kernel_dataset, write_kernel_dataset
from collector.dataset.rules import RULES
from collector.dataset.schema import IDENTITY_COLUMNS, KERNEL_COLUMNS, SHAPE_COLUMNS
from collector.dataset.validation import validate_dataset
from collector.sensing.calibration import SensorCalibration
from tests.collector.test_campaign import collected

OUTCOME_COLUMNS = frozenset(name for name, column in KERNEL_COLUMNS.items() if column.outcome)

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


def drifted(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
    """Every anchor at one clock draws a little more than the one before."""
    anchors = sorted((row for row in rows if row["operator"] == "add"), key=lambda row: row["started_unix_s"])
    while len(anchors) < 6:
        anchors.append({**anchors[-1], "row_id": f"more{len(anchors)}", "started_unix_s": anchors[-1]["started_unix_s"] + 60.0})
        rows.append(anchors[-1])
    for index, row in enumerate(anchors):
        row["sm_clock_mhz"] = row["sm_clock_measured_mhz"] = 900.0
        row["power_w"] = 150.0 * (1.0 + 0.02 * index)
        row["energy_j"] = row["power_w"] * row["latency_s"]


def unusable(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
    for row in rows[:4]:
        row["flags"] = ["power_missing"]


def too_fast(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
    """The largest product in a microsecond."""
    row = max(rows, key=lambda row: (row["m"] or 0) * (row["n"] or 0) * (row["k"] or 0))
    row.update({"latency_s": 1e-6, "energy_j": 1e-6 * row["power_w"], "energy_counter_j": None})


def early(rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
    one(started_unix_s=lambda row: row["started_unix_s"] - 3.0)(rows, metadata)
    metadata["simulated"] = False


SPOILERS: dict[str, Change] = {
    "D01": copied,
    "D02": told(complete=False),
    "D03": one(gpu_uuid="GPU-other"),
    "D04": told(sensor={}),
    "D05": unusable,
    "R01": one(temperature_c=4000.0),
    "R02": one(m=-5),
    "R03": one(flags=["odd"]),
    "R04": one(kernel_name=None),
    "R05": one(samples=1),
    "R06": one(power_std_w=lambda row: row["power_w"]),
    "T01": early,
    "T02": drifted,
    "T03": told(drift={"idle": 0.3}),
    "P01": one(energy_j=lambda row: 1.001 * row["energy_j"]),
    "P02": one(power_w=300.0, energy_j=lambda row: 300.0 * row["latency_s"]),
    "P03": one(power_w=12.0, power_std_w=0.1, energy_j=lambda row: 12.0 * row["latency_s"]),
    "P04": one(sm_clock_measured_mhz=lambda row: 0.9 * row["sm_clock_mhz"]),
    "P05": one(throttle_reasons=0x40),
    "P06": one(energy_counter_j=lambda row: 2.0 * row["energy_j"]),
    "P07": too_fast,
}


def test_every_rule_has_a_spoiler() -> None:
    assert list(SPOILERS) == [rule.id for rule in RULES]


def test_a_sound_dataset_breaks_no_rule(sound: Path) -> None:
    findings = validate_dataset(sound)
    assert findings.broken == {}
    assert len(findings.row_ids) == read_kernel_dataset(sound).table.num_rows


@pytest.mark.parametrize("rule", list(SPOILERS))
def test_a_rule_notices_what_it_is_there_for(rule: str, sound: Path, tmp_path: Path) -> None:
    findings = validate_dataset(spoilt(sound, tmp_path, SPOILERS[rule]))
    assert rule in findings.broken
    assert all("\n" not in breach.what for breaches in findings.broken.values() for breach in breaches)


@pytest.mark.parametrize(
    ("rule", "flag"), [("P04", "clock_off_target"), ("P06", "counter_disagrees"), ("R05", "few_samples"), ("R04", "kernel_untraced")]
)
def test_a_doubt_that_a_row_states_breaks_no_rule(rule: str, flag: str, sound: Path, tmp_path: Path) -> None:
    def change(rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
        SPOILERS[rule](rows, metadata)
        next(row for row in rows if row["operator"] == "linear")["flags"] = [flag]

    assert rule not in validate_dataset(spoilt(sound, tmp_path, change)).broken


def distinct(name: str, index: int) -> Any:
    """A value of a column that the rows with other numbers do not have."""
    column = KERNEL_COLUMNS[name]
    if column.type == pa.bool_():
        return index % 2 == 0  # of six rows three each: too few for a trend
    return {pa.string(): f"other{index}", pa.int64(): 7 + index, pa.float64(): 7.5 + index}[column.type]


@pytest.mark.parametrize("name", IDENTITY_COLUMNS[::9])
def test_only_rows_that_are_equal_in_all_that_ran_are_compared(name: str, sound: Path, tmp_path: Path) -> None:
    def change(rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
        drifted(rows, metadata)
        for index, row in enumerate([row for row in rows if row["operator"] == "add"]):
            row[name] = distinct(name, index)

    assert "T02" not in validate_dataset(spoilt(sound, tmp_path, change)).broken


def test_nothing_that_came_out_hides_a_drift(sound: Path, tmp_path: Path) -> None:
    assert {*SHAPE_COLUMNS, "precision", "grid_x", "tile_m", "l2_state", "sm_clock_mhz"} <= set(IDENTITY_COLUMNS)

    def change(rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
        drifted(rows, metadata)
        for index, row in enumerate([row for row in rows if row["operator"] == "add"]):
            row.update({name: distinct(name, index) for name in OUTCOME_COLUMNS - {"flags", "power_w", "latency_s", "started_unix_s"}})

    assert "T02" in validate_dataset(spoilt(sound, tmp_path, change)).broken


def test_files_of_a_simulated_board_may_begin_at_one_hour_and_those_of_a_real_board_may_not(sound: Path, tmp_path: Path) -> None:
    def another(simulated: bool) -> Change:
        def change(rows: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
            metadata["simulated"] = simulated
            for row in rows:
                row["row_id"] = f"other{row['row_id']}"

        return change

    for simulated in (True, False):
        folder = tmp_path / str(simulated)
        folder.mkdir()
        spoilt(sound, folder, told(simulated=simulated)).rename(folder / "first.parquet")
        spoilt(sound, folder, another(simulated))
        assert ("T01" in validate_dataset(folder).broken) is not simulated


def test_a_dataset_without_rows_is_not_valid(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = spoilt(sound, tmp_path, lambda rows, _metadata: rows.clear())
    assert main(["validate", str(empty)]) == 3
    assert "it has no rows" in capsys.readouterr().out


def test_nan_stands_for_nothing(sound: Path, tmp_path: Path) -> None:
    names = [name for name, column in KERNEL_COLUMNS.items() if column.type == pa.float64()]
    breaches = validate_dataset(spoilt(sound, tmp_path, one(**dict.fromkeys(names, float("nan"))))).broken["R01"]
    assert [breach.what.split()[0] for breach in breaches if "NaN" in breach.what] == names


def test_unknown_numbers_break_no_rule(sound: Path, tmp_path: Path) -> None:
    def change(rows: list[dict[str, Any]], _metadata: dict[str, Any]) -> None:
        for row in rows:
            row.update({"voltage_v": None, "energy_counter_j": None, "idle_before_w": None, "memory_clock_mhz": None})

    assert validate_dataset(spoilt(sound, tmp_path, change)).broken == {}


def test_the_command_tells_by_its_status(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(sound)]) == 0
    bad = spoilt(sound, tmp_path, SPOILERS["P01"])
    assert main(["validate", str(bad), "--json"]) == 3
    captured = capsys.readouterr()
    document = json.loads(captured.out.split("\n", 1)[1])
    assert document["valid"] is False
    assert [rule["rule"] for rule in document["rules"] if rule["broken"]] == ["P01"]
    assert "1 of 21 rules" in captured.err
    assert main(["validate", str(tmp_path / "none.parquet")]) == 1
    assert main(["validate"]) == 2
    (tmp_path / "cut.parquet").write_bytes(bad.read_bytes()[:-7])
    assert main(["validate", str(tmp_path / "cut.parquet")]) == 1


def test_rules_and_ranges_stand_in_the_documentation(repository: Path) -> None:
    page = " ".join((repository / "docs" / "dataset-format.md").read_text(encoding="utf-8").split())
    for rule in RULES:
        assert f"| `{rule.id}` | {rule.what} | {rule.limit} |" in page
    for name, column in KERNEL_COLUMNS.items():
        if column.range is not None:
            assert f"`{name}` {column.range[0]:g} to {column.range[1]:g}" in page
