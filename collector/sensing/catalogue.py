"""The catalogue of power sensors, by board, driver and field: to compare with, or in place of a characterisation.

One TOML file for each board or generation: `configs/sensors`, and the folder that the environment variable WATTPRINT_SENSORS names,
whose entries come first.  A sensor is looked up in one way: the board's name, normalised, matches a pattern; the driver is of the same
era; the field is the same.  Boards come before generations, so that a board without a row of its own gets its generation's.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from collector.devices.protocols import GpuIdentity
from collector.errors import SensorError
from collector.sensing.calibration import (
    Averaging,
    Candidate,
    Delay,
    Offset,
    ResponseKernel,
    Seconds,
    SensorCalibration,
    SlowSeconds,
    Transient,
    load_calibration,
    read_calibration,
)
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import is_simulated_uuid
from estimator.vocabulary.reader import LEAST_ONE, Count, FaultError, Span, Text, Words, read, read_file
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.values import frozen

COLUMN_OF_FIELD: Final[Mapping[str, str]] = {
    "instant": "power.draw.instant",
    "usage": "power.draw",
    "average": "power.draw.average",
}
"""nvidia-smi's names of NVML's power fields; the field that averages least is first."""
POWER_COLUMNS: Final = tuple(COLUMN_OF_FIELD.values())
ERAS: Final = ("post-530", "530", "pre-530")
"""Driver eras, newest first; drivers of one era average in the same way (Yang, Adamek, Armour, figure 14)."""
WIDTH_STD_SHARE: Final = 0.1
"""Relative standard error of a width from another board of the same name or generation: A100s have 17.6 to 25.8 ms, published 25."""
PERIOD_STD_SHARE: Final = 0.03
"""Relative standard error of an update period: published medians of polls are up to 2.8 % off (104 ms for 101.2)."""
VENDOR_WORDS: Final = frozenset({"nvidia", "geforce", "tesla", "quadro"})
CATALOGUE: Final = "catalogue"
"""`SensorCalibration.sensor` of an entry that stands in for a characterisation."""
OWN_FOLDER: Final = "WATTPRINT_SENSORS"
"""Environment variable: a folder of further entries."""


@frozen
class PublishedSensor:
    """A row of an entry: figures are medians over `runs` runs, None for an unknown figure.

    `boards` are patterns of normalised names; `generation` is true for a class of figure 14.  `driver` is a version or an era, `fields`
    are names of NVML (`usage` is power.draw).  `averaging` is that of a calibration, "window" (a boxcar was fitted, no other response
    tried) or "estimated" (no sensor at all).
    """

    name: Text
    boards: Annotated[tuple[Text, ...], LEAST_ONE]
    driver: Text
    fields: Annotated[tuple[Annotated[str, Words(tuple(COLUMN_OF_FIELD))], ...], LEAST_ONE]
    averaging: Averaging | Literal["window", "estimated"]
    generation: bool = False
    runs: Count = 0
    update_period_s: Seconds = None
    transient: Transient | None = None
    window_s: Seconds = None
    window_std_s: Seconds = None
    delay_s: Delay = None
    delay_std_s: Seconds = None
    rise_time_s: SlowSeconds = None
    gain: Annotated[float | None, Span(0.1, 10.0)] = None
    offset_w: Offset = None
    doubts: tuple[str, ...] = ()

    def names(self, board: str) -> bool:
        """Whether a board's name, from a driver or this catalogue, belongs to this sensor."""
        return any(fnmatchcase(_normalised(board), pattern) for pattern in self.boards)

    def source(self) -> str:
        """Source of the figures, in words."""
        if self.generation:
            return f"the class {self.name} of figure 14 with drivers {self.driver}"
        return f"{self.name} with driver {self.driver}" + (f", {self.runs} run(s)" if self.runs else "")

    def calibration(self, gpu_uuid: str, driver: str, field: str) -> SensorCalibration:
        """Calibration for a board that was not characterised: with correspondingly larger errors, without gain and offset.

        A width has at least the error `WIDTH_STD_SHARE`; where only a boxcar was tried, a low-pass of the same width is as likely.
        """
        width_s = self.window_s or 0.0
        window = {"window_s": width_s, "window_std_s": max(self.window_std_s or 0.0, WIDTH_STD_SHARE * width_s)} if width_s else {}
        averaging: Averaging = "undetermined" if self.averaging == "window" or self.averaging == "estimated" else self.averaging
        kernels: tuple[ResponseKernel, ...] = ("boxcar", "low-pass") if self.averaging == "window" and window else ()
        taken = f"taken from the catalogue ({self.source()}): this board was not characterised"
        return SensorCalibration(
            gpu_uuid=gpu_uuid,
            driver=driver,
            sensor=CATALOGUE,
            field=field,
            averaging=averaging,
            n_updates=0,
            update_period_s=self.update_period_s,
            card_period_std_s=self.update_period_s and PERIOD_STD_SHARE * self.update_period_s,
            transient=self.transient,
            delay_s=self.delay_s,
            delay_std_s=self.delay_std_s,
            rise_time_s=self.rise_time_s,
            tau_s=0.5 * width_s if width_s and self.averaging == "low-pass" else None,
            candidates=tuple(Candidate(kernel=kernel, score=0.0, **window) for kernel in kernels),
            notes=FrozenMapping({CATALOGUE: "; ".join((taken, *self.doubts))}),
            **({} if averaging == "undetermined" else window),
        )


@frozen
class SensorFile:
    """An entry: fields as in `PublishedSensor`, shared by `rows`, which hold the others."""

    name: Text
    boards: tuple[str, ...]
    rows: Annotated[tuple[Mapping[str, Any], ...], LEAST_ONE]
    generation: bool = False
    doubts: tuple[str, ...] = ()


def catalogue() -> tuple[PublishedSensor, ...]:
    """All rows, those of boards before those of generations, and those of WATTPRINT_SENSORS before those that come along.

    Raises SensorError for a folder that is not there, and for an entry that cannot be used.
    """
    return _rows(os.environ.get(OWN_FOLDER, ""))


@cache
def _rows(own: str) -> tuple[PublishedSensor, ...]:
    if own and not Path(own).is_dir():
        raise SensorError(f"{OWN_FOLDER}={own}: no such folder; name the one with your entries, or unset it")
    folders = ([Path(own)] if own else []) + [resource_folder("sensors")]
    found = [row for folder in folders for path in sorted(folder.glob("*.toml")) for row in _rows_of(path)]
    return tuple(sorted(found, key=lambda row: row.generation))


def _rows_of(path: Path) -> list[PublishedSensor]:
    file = read_file(SensorFile, path, "sensor", SensorError)
    shared = {name: value for name, value in asdict(file).items() if name != "rows"}
    rows = [{**shared, **row, "doubts": (*row.get("doubts", ()), *file.doubts)} for row in file.rows]
    try:
        return [read(PublishedSensor, row, "rows", place) for place, row in enumerate(rows)]
    except FaultError as fault:
        raise SensorError(f"sensor {path}: {fault}") from fault


def find_sensor(board: str, driver: str = "", field: str = "") -> PublishedSensor | None:
    """The published sensor of a board, by name; else that of its generation; else None.

    `driver` is a version or an era, "" for the newest known era; `field` is a name of NVML or nvidia-smi; any other
    name selects the field that averages least.
    """
    named = [sensor for sensor in catalogue() if sensor.names(board)]
    bare = field_name(field)
    for era in (era_of(driver),) if driver else ERAS:
        for wanted in (bare,) if bare else COLUMN_OF_FIELD:
            found = [sensor for sensor in named if era_of(sensor.driver) == era and wanted in sensor.fields]
            if found:
                return min(found, key=lambda sensor: sensor.driver != driver)
    return None


def is_file_name(text: str) -> bool:
    """Whether the value of `--sensor` names a file rather than an entry of the catalogue."""
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def given_sensor(text: str, gpu_uuid: str = "", driver: str = "", field: str = "") -> SensorCalibration:
    """The calibration that `--sensor` names: a file, or an entry NAME[@DRIVER][:FIELD] of the catalogue.

    `gpu_uuid`, `driver` and `field` belong to the measured board; for a recording they may be unknown, and then a file may belong to
    any board.  Raises SensorError for a file that cannot be used or is another board's, for an unknown name, and where nothing is
    published for that driver and field.
    """
    if is_file_name(text):
        return read_calibration(Path(text), gpu_uuid, driver) if gpu_uuid else load_calibration(Path(text))
    rest, colon, asked_field = text.partition(":")
    entry, _, asked_driver = rest.partition("@")
    named = [sensor for sensor in catalogue() if (_normalised(entry) == sensor.name if sensor.generation else sensor.names(entry))]
    if not named:
        raise SensorError(f"--sensor {text}: no such file, and no entry of the catalogue; `collect sensors` lists them")
    of_driver, of_field = asked_driver or driver, asked_field or field
    found = None if colon and not field_name(asked_field) else find_sensor(entry, of_driver, of_field)
    if found is None:
        wanted = f"driver {of_driver or 'any'}, field {of_field or 'any'}"
        known = ", ".join(dict.fromkeys(f"{sensor.name}@{sensor.driver}:{name}" for sensor in named for name in sensor.fields))
        raise SensorError(f"--sensor {text}: nothing is published for {wanted}; known: {known}")
    return found.calibration(gpu_uuid, driver or found.driver, field_name(of_field) or found.fields[0])


def board_sensor(text: str | None, identity: GpuIdentity, sensor: str, field: str) -> SensorCalibration:
    """The calibration that `--sensor` names for a board; without one, that of a sensor of which only the names are known.

    Raises SensorError as `given_sensor`.
    """
    if text:
        return given_sensor(text, identity.uuid, identity.driver, field)
    return SensorCalibration(gpu_uuid=identity.uuid, driver=identity.driver, sensor=sensor, field=field)


def entry_text(calibration: SensorCalibration, board: str) -> str:
    """A characterised sensor as an entry for boards of a name: TOML, without the board's UUID.

    Raises SensorError for a sensor without driver, field or averaging, and for a simulated one.
    """
    if is_simulated_uuid(calibration.gpu_uuid):
        raise SensorError("this sensor is a simulated board's, which says nothing about a GPU: no entry")
    name, field = _normalised(board), field_name(calibration.field)
    known = {"driver": calibration.driver, "field": field, "averaging": calibration.averaging != "undetermined", "name": name}
    if missing := [what for what, there in known.items() if not there]:
        raise SensorError(f"no entry without {' and '.join(missing)}: characterise the board with `collect sensor --gpu`")
    figures = ("update_period_s", "averaging", "transient", "window_s", "window_std_s", "rise_time_s", "gain", "offset_w")
    row = {"driver": calibration.driver, "fields": [field], "runs": 1, **{one: getattr(calibration, one) for one in figures}}
    cells = ", ".join(f"{key} = {json.dumps(value)}" for key, value in row.items() if value is not None)
    own = json.dumps(name)
    return f"# Characterised with `collect sensor`.\nname = {own}\nboards = [{own}]\nrows = [\n    {{ {cells} }},\n]\n"


def missing_s(sensor: PublishedSensor, load_s: float) -> float:
    """Energy of a load's step that readings during the load do not show, as time at full step [s]; 0 without a known width.

    ∫₀ᵀ (1 − ∫₀ᵗ h) dt: W/2 for a boxcar with W ≤ T, else T − T²/2W; τ (1 − e^(−T/τ)) for a low-pass with W = 2τ.
    """
    width_s = sensor.window_s or 0.0
    if sensor.averaging == "low-pass" and width_s:
        return -0.5 * width_s * math.expm1(-2.0 * load_s / width_s)
    return 0.5 * width_s if width_s <= load_s else load_s - 0.5 * load_s**2 / width_s


def not_characterised(calibration: SensorCalibration) -> str:
    """The warning for a sensor that is an entry of the catalogue; "" for one that was characterised."""
    return calibration.notes.get(CATALOGUE, "") if calibration.sensor == CATALOGUE else ""


def check_board(calibration: SensorCalibration, board: str, where: str) -> None:
    """Raises SensorError if a log and the calibration name different boards, by UUID; gain and offset differ between cards."""
    if is_uuid(board) and is_uuid(calibration.gpu_uuid) and board.lower() != calibration.gpu_uuid.lower():
        raise SensorError(f"{where}: readings of board {board}, the sensor is that of board {calibration.gpu_uuid}; characterise this one")


def is_uuid(board: str) -> bool:
    """Whether a board's name is a UUID."""
    return board.lower().startswith("gpu-")


def field_doubt(calibration: SensorCalibration, column: str) -> str:
    """The warning for a log's column other than the characterised field; "" if it is that field or the field is unknown."""
    known = COLUMN_OF_FIELD.get(calibration.field, calibration.field)
    if known not in POWER_COLUMNS or column not in POWER_COLUMNS or known == column:
        return ""
    return (
        f"the readings are {column}, the sensor was characterised by {known}: these may average differently, and errors do not hold that; "
        f"choose the column with --column, or characterise {column}"
    )


def field_name(text: str) -> str:
    """NVML's name of a field, from NVML's or nvidia-smi's name; "" for another text."""
    return next((name for name, column in COLUMN_OF_FIELD.items() if text in (name, column)), "")


def era_of(driver: str) -> str:
    """The era of a driver, by its full version; an era returns itself, and a driver without a number is new."""
    if driver in ERAS:
        return driver
    version = tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
    # First release of branch 525 with the newer fields, of 30 March 2023; release 530 is older.
    if not version or version >= (531,) or (525, 105) <= version < (526,):
        return "post-530"
    return "530" if version[0] == 530 else "pre-530"


@cache
def _normalised(board: str) -> str:
    return "-".join(word for word in re.findall(r"[a-z0-9]+", board.lower()) if word not in VENDOR_WORDS)
