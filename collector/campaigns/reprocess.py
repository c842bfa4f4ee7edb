"""A dataset recomputed from its traces: another calibration of the sensor, or a better correction."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from collector.campaigns.files import MeasurementSettings
from collector.campaigns.outcome import idle_entry, known, outcome_columns
from collector.campaigns.summary import anchor_drift, idle_drift, voltage_by_clock
from collector.dataset.log import LOG_SUFFIX
from collector.dataset.reader import file_digest, read_kernel_dataset
from collector.dataset.schema import Metadata, Row, rows_to_table
from collector.dataset.traces import IDLE, REST, RUN, TraceRecord, read_traces, running_traces_path, traces_of, traces_path
from collector.dataset.writer import write_kernel_dataset
from collector.errors import DatasetError
from collector.sensing.calibration import SensorCalibration, calibration_from_document
from collector.sensing.catalogue import given_sensor
from estimator import __version__
from estimator.vocabulary.reader import FaultError, read

KEPT_DOUBTS: Final = ("kernel_untraced", "shared_board", "result_wrong", "low_confidence")
"""Flags that do not follow from the traces: a row keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocessed:
    """Result of reprocessing: rows written, rows left out without a trace, and the relative change of power, mean and largest."""

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
    renewed: dict[tuple[str, float], Row] = {}
    idle: list[dict[str, float | None]] = []
    for record, rest in _pairs(source):
        key = record.row_id, record.started_unix_s
        if record.kind == IDLE:
            idle.append(idle_entry(record, calibration))
        elif key in rows:
            renewed[key] = _row(rows[key], record, rest, settings, calibration)
    if not renewed:
        raise DatasetError(f"{source}: holds no trace of a row of {dataset}; they do not belong together")
    kept = [key for key in rows if key in renewed]
    table = rows_to_table([renewed[key] for key in kept], {})
    before = len(metadata.get("idle") or [])
    about = {
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
            "rows_without_trace": len(rows) - len(kept),
            "wattprint_version": __version__,
        },
    }
    write_kernel_dataset(table.to_pylist(), about, output)
    change = np.array([[rows[key]["power_w"], renewed[key]["power_w"]] for key in kept], dtype=np.float64)
    change = change[np.isfinite(change).all(axis=1)]
    relative = change[:, 1] / change[:, 0] - 1.0 if len(change) else np.zeros(1)
    return Reprocessed(
        rows=len(kept),
        untraced=len(rows) - len(kept),
        mean_change=float(relative.mean()),
        largest_change=float(relative[np.abs(relative).argmax()]),
    )


def traces_file(dataset: Path) -> Path:
    """The traces beside a dataset or beside the log of an unfinished campaign.  Raises DatasetError."""
    output = dataset.with_name(dataset.name.removesuffix(LOG_SUFFIX))
    found = traces_of(output) if output == dataset else running_traces_path(output)
    if found is None or not found.is_file():
        raise DatasetError(f"{dataset}: no traces lie beside it ({traces_path(output).name}); `collect --traces` keeps them")
    return found


def _pairs(source: Path) -> Iterator[tuple[TraceRecord, TraceRecord | None]]:
    """Runs, each with the preceding rest if present, and idle records."""
    run: TraceRecord | None = None
    for record in read_traces(source):
        if record.kind == REST and run is not None and (run.row_id, run.started_unix_s) == (record.row_id, record.started_unix_s):
            yield run, record
            run = None
            continue
        if run is not None:
            yield run, None
        run = record if record.kind == RUN else None
        if record.kind == IDLE:
            yield record, None
    if run is not None:
        yield run, None


def _row(row: Row, run: TraceRecord, rest: TraceRecord | None, settings: MeasurementSettings, calibration: SensorCalibration) -> Row:
    """A row with the columns that follow from its traces recomputed."""
    doubts = tuple(flag for flag in KEPT_DOUBTS if flag in row["flags"])
    columns = outcome_columns(run, rest, settings, calibration, generated=row["energy_mtsm_j"] is not None, doubts=doubts)
    return {**row, **{name: known(value) for name, value in columns.items()}}


def _calibration(sensor: str | None, metadata: Metadata, dataset: Path) -> SensorCalibration:
    """The calibration to use.  Raises SensorError, DatasetError."""
    own = calibration_from_document(metadata.get("sensor") or {}, f"{dataset}: sensor")
    if sensor is None:
        return own
    given = given_sensor(sensor, own.gpu_uuid, own.driver, own.field)
    if given.field != own.field:
        raise DatasetError(f"{sensor}: is of the field {given.field!r}; the traces of {dataset} are of {own.field!r}")
    return given


def _settings(metadata: Metadata, dataset: Path) -> MeasurementSettings:
    """Measurement settings of the rows.  Raises DatasetError for a dataset without them."""
    try:
        return read(MeasurementSettings, (metadata.get("campaign") or {}).get("measurement"), "campaign", "measurement")
    except FaultError as error:
        raise DatasetError(f"{dataset}: does not say how its rows were measured ({error}); it cannot be worked out again") from error
