"""A dataset worked out again from its traces: another calibration of the sensor, or a better correction."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from collector.campaigns.files import MeasurementSettings
from collector.campaigns.outcome import idle_entry, known, outcome_columns
from collector.campaigns.summary import anchor_drift, idle_drift, voltage_by_clock
from collector.dataset.log import LOG_SUFFIX
from collector.dataset.reader import file_digest, read_kernel_dataset
from collector.dataset.schema import rows_to_table
from collector.dataset.traces import IDLE, REST, RUN, TraceRecord, read_traces, running_traces_path, traces_of, traces_path
from collector.dataset.writer import write_kernel_dataset
from collector.errors import DatasetError
from collector.sensing.calibration import SensorCalibration, calibration_from_document
from collector.sensing.catalogue import given_sensor
from estimator import __version__
from estimator.vocabulary.reader import FaultError, read

KEPT_DOUBTS: Final = ("kernel_untraced", "shared_board", "result_wrong", "low_confidence")
"""Flags that the traces do not decide: a row keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocessed:
    """What came of it: rows written, rows left out for want of a trace, and the relative change of power, mean and largest."""

    rows: int
    untraced: int
    mean_change: float
    largest_change: float


def reprocess_dataset(dataset: Path, sensor: str | None, output: Path) -> Reprocessed:
    """Write a new dataset from the traces of another, with the calibration in `sensor` or its own.

    Rows without a trace are left out.  Raises DatasetError for a dataset without traces or with foreign ones, SensorError for a
    calibration of another board or sensor.
    """
    content = read_kernel_dataset(dataset)
    if len(content.files) > 1:
        raise DatasetError(f"{dataset}: is a folder of parts; work them out again one by one")
    metadata = content.metadata
    source = traces_file(dataset)
    calibration = _calibration(sensor, metadata, dataset)
    settings = _settings(metadata, dataset)
    rows = {(row["row_id"], row["started_unix_s"]): row for row in content.table.to_pylist()}
    worked_out: dict[str, dict[str, Any]] = {}
    idle: list[dict[str, float | None]] = []
    for record, rest in _pairs(source):
        if record.kind == IDLE:
            idle.append(idle_entry(record, calibration))
        elif (row := rows.get((record.row_id, record.started_unix_s))) is not None:
            worked_out[record.row_id] = _row(row, record, rest, settings, calibration)
    if not worked_out:
        raise DatasetError(f"{source}: holds no trace of a row of {dataset}; they do not belong together")
    order = [row_id for row_id, _ in rows if row_id in worked_out]
    table = rows_to_table([worked_out[row_id] for row_id in order], {})
    before = len(metadata.get("idle") or [])
    renewed = {
        **metadata,
        "sensor": calibration.document(),
        "idle": idle[:before] if len(idle) >= before else metadata.get("idle"),
        "idle_after": idle[before:] or None,
        "voltage": voltage_by_clock(table),
        "drift": anchor_drift(table) | idle_drift(idle[:before], idle[before:]),
        "reprocessed": {
            "from": dataset.name,
            "dataset_sha256": file_digest(dataset),
            "traces_sha256": file_digest(source),
            "sensor_before": metadata.get("sensor"),
            "sensor_file": Path(sensor).name if sensor else None,
            "rows_without_trace": len(rows) - len(order),
            "wattprint_version": __version__,
        },
    }
    write_kernel_dataset([worked_out[row_id] for row_id in order], renewed, output)
    changes = [_change(row, worked_out[row["row_id"]]) for row in rows.values() if row["row_id"] in worked_out]
    told = np.array([change for change in changes if change is not None] or [0.0])
    return Reprocessed(
        rows=len(order), untraced=len(rows) - len(order), mean_change=float(told.mean()), largest_change=float(told[np.abs(told).argmax()])
    )


def traces_file(dataset: Path) -> Path:
    """The traces beside a dataset or beside the log of an unfinished campaign.  Raises DatasetError."""
    output = dataset.with_name(dataset.name.removesuffix(LOG_SUFFIX))
    found = traces_of(output) if output == dataset else running_traces_path(output)
    if found is None or not found.is_file():
        raise DatasetError(f"{dataset}: no traces lie beside it ({traces_path(output).name}); `collect --traces` keeps them")
    return found


def _pairs(source: Path) -> Iterator[tuple[TraceRecord, TraceRecord | None]]:
    """Runs, each with the rest before it where there is one, and idle records."""
    run: TraceRecord | None = None
    for record in read_traces(source):
        if run is not None:
            rested = record.kind == REST and (run.row_id, run.started_unix_s) == (record.row_id, record.started_unix_s)
            yield run, record if rested else None
        run = record if record.kind == RUN else None
        if record.kind == IDLE:
            yield record, None
    if run is not None:
        yield run, None


def _row(
    row: dict[str, Any], run: TraceRecord, rest: TraceRecord | None, settings: MeasurementSettings, calibration: SensorCalibration
) -> dict[str, Any]:
    """A row with the columns that its traces decide worked out again."""
    doubts = tuple(flag for flag in KEPT_DOUBTS if flag in row["flags"])
    columns = outcome_columns(run, rest, settings, calibration, generated=row["energy_mtsm_j"] is not None, doubts=doubts)
    return {**row, **{name: known(value) for name, value in columns.items()}}


def _calibration(sensor: str | None, metadata: dict[str, Any], dataset: Path) -> SensorCalibration:
    """The calibration to use.  Raises SensorError, DatasetError."""
    own = calibration_from_document(metadata.get("sensor") or {}, f"{dataset}: sensor")
    if sensor is None:
        return own
    given = given_sensor(sensor, own.gpu_uuid, own.driver, own.field)
    if given.field != own.field:
        raise DatasetError(f"{sensor}: is of the field {given.field!r}; the traces of {dataset} are of {own.field!r}")
    return given


def _settings(metadata: dict[str, Any], dataset: Path) -> MeasurementSettings:
    """How the rows were measured.  Raises DatasetError for a dataset that does not say."""
    try:
        return read(MeasurementSettings, (metadata.get("campaign") or {}).get("measurement"), "campaign", "measurement")
    except FaultError as error:
        raise DatasetError(f"{dataset}: does not say how its rows were measured ({error}); it cannot be worked out again") from error


def _change(before: dict[str, Any], after: dict[str, Any]) -> float | None:
    """Relative change of power; None where either is not known."""
    if not before["power_w"] or after["power_w"] is None:
        return None
    return float(after["power_w"] / before["power_w"] - 1.0)
