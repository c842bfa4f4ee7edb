"""What is known of one power sensor, as a value and as JSON."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from collector.errors import SensorError
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.regular_files import read_regular

AVERAGING_KINDS: Final = ("boxcar", "low-pass", "trailing-mean", "none", "undetermined")
TRANSIENTS: Final = ("instant", "ramp", "lagged", "logarithmic")

PLAUSIBLE: Final = {
    "update_period_s": (1e-3, 10.0),
    "update_jitter_s": (0.0, 10.0),
    "window_s": (0.0, 10.0),
    "window_std_s": (0.0, 10.0),
    "tau_s": (0.0, 10.0),
    "delay_s": (-5.0, 5.0),
    "delay_std_s": (0.0, 5.0),
    "rise_time_s": (0.0, 600.0),
    "settle_s": (0.0, 600.0),
    "gain": (0.1, 10.0),
    "gain_std": (0.0, 10.0),
    "offset_w": (-1e3, 1e3),
    "offset_std_w": (0.0, 1e4),
    "gain_offset_correlation": (-1.0, 1.0),
    "reading_noise_w": (0.0, 1e3),
    "resolution_w": (0.0, 1e3),
    "n_updates": (0, 1e12),
}
"""Limits beyond which a figure of a calibration belongs to no power sensor: far outside all that was measured."""

MOST_BYTES: Final = 1 << 20
"""A calibration with all its notes takes some kilobytes."""

NO_METER: Final = "needs an external meter: without one, gain and offset cannot be told from the load's own power"


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorCalibration:
    """How one sensor of one board turns power into readings; None is "not known", with the reason under `notes`.

    `gpu_uuid`, `driver`, `sensor` and `field` say which.  Updates come every `update_period_s`, on average over the record, whose
    error is `update_period_std_s`; the card's own period lies within `card_period_68_s` of it in 68 of 100 cases, within
    `card_period_95_s` in 95.  Each update averages by `averaging` over `window_s` (boxcar width, or 2τ with τ = `tau_s`) and ends
    `delay_s` before its host stamp; `sampled_fraction` is the share of time that readings see.  `rise_time_s` is the time from a
    load's start to 90 % of its level, `settle_s` to within one per cent, creep aside; the board's power alone takes `board_rise_s`,
    the sensor `sensor_rise_s`; `transient` is the class.  A reading is `gain` · power + `offset_w`, with noise `reading_noise_w` in
    steps of `resolution_w`; `residual_w` is the rms distance of readings from the fit.  `_std` are standard errors, those of gain
    and offset correlated by `gain_offset_correlation`; `candidates` the parameters of the kernels that were compared, best first.
    """

    gpu_uuid: str
    driver: str
    sensor: str
    field: str
    averaging: str
    n_updates: int
    update_period_s: float | None = None
    update_period_std_s: float | None = None
    card_period_68_s: float | None = None
    card_period_95_s: float | None = None
    update_jitter_s: float | None = None
    window_s: float | None = None
    window_std_s: float | None = None
    tau_s: float | None = None
    delay_s: float | None = None
    delay_std_s: float | None = None
    rise_time_s: float | None = None
    settle_s: float | None = None
    board_rise_s: float | None = None
    sensor_rise_s: float | None = None
    transient: str | None = None
    gain: float | None = None
    gain_std: float | None = None
    offset_w: float | None = None
    offset_std_w: float | None = None
    gain_offset_correlation: float | None = None
    sampled_fraction: float | None = None
    residual_w: float | None = None
    reading_noise_w: float | None = None
    resolution_w: float | None = None
    poll_period_s: float | None = None
    candidates: tuple[FrozenMapping[Any], ...] = ()
    notes: Mapping[str, str] = FrozenMapping({})

    def without_delay(self) -> "SensorCalibration":
        """The same with no delay, in the candidates neither."""
        candidates = tuple(FrozenMapping({**candidate, "delay_s": None, "delay_std_s": None}) for candidate in self.candidates)
        return replace(self, delay_s=None, delay_std_s=None, candidates=candidates)

    def document(self) -> dict[str, Any]:
        """Plain data for JSON; `calibration_from_document` gives the value back."""
        document = asdict(self)
        document["candidates"] = [dict(candidate) for candidate in self.candidates]
        document["notes"] = dict(self.notes)
        return document


def calibration_from_document(document: Mapping[str, Any], where: str = "sensor calibration") -> SensorCalibration:
    """A calibration from JSON data.

    Raises SensorError, naming `where` and the key, for an unknown or missing key and for a figure that cannot be.
    """
    known = {item.name: item for item in fields(SensorCalibration)}
    for key in document:
        if key not in known:
            raise SensorError(f"{where}: unknown key {key!r}")
    values: dict[str, Any] = dict(document)
    for key in ("gpu_uuid", "driver", "sensor", "field", "averaging"):
        if not isinstance(values.get(key), str):
            raise SensorError(f"{where}: {key} must be a text, got {values.get(key)!r}")
    if values["averaging"] not in AVERAGING_KINDS:
        raise SensorError(f"{where}: averaging = {values['averaging']!r}; known: {', '.join(AVERAGING_KINDS)}")
    if values.get("transient") not in (None, *TRANSIENTS):
        raise SensorError(f"{where}: transient = {values['transient']!r}; known: {', '.join(TRANSIENTS)}")
    for key, item in known.items():
        number = values.get(key)
        if item.type != (float | None) or number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise SensorError(f"{where}: {key} = {number!r:.40} must be a finite number or null")
        values[key] = float(number)
    for key in ("update_period_s", "gain"):
        if values.get(key) is not None and values[key] <= 0:
            raise SensorError(f"{where}: {key} = {values[key]!r} must be positive")
    if isinstance(values.get("n_updates"), bool) or not isinstance(values.get("n_updates"), int):
        raise SensorError(f"{where}: n_updates must be a whole number, got {values.get('n_updates')!r}")
    notes, candidates = values.get("notes", {}), values.get("candidates", [])
    if (
        not isinstance(notes, Mapping)
        or not isinstance(candidates, list | tuple)
        or not all(isinstance(item, Mapping) for item in candidates)
    ):
        raise SensorError(f"{where}: notes must be a table of texts, candidates a list of tables")
    values["notes"] = FrozenMapping({str(key): str(text) for key, text in notes.items()})
    values["candidates"] = tuple(FrozenMapping(candidate) for candidate in candidates)
    return SensorCalibration(**values)


def check_plausible(calibration: SensorCalibration, where: str) -> None:
    """Raises SensorError, naming `where` and the key, for a figure that no power sensor has."""
    for key, (low, high) in PLAUSIBLE.items():
        value = getattr(calibration, key)
        if value is not None and not low <= value <= high:
            shown = f"{value:g}" if abs(value) <= sys.float_info.max else f"a number of {len(str(value))} digits"
            raise SensorError(f"{where}: {key} = {shown} is no power sensor's; {low:g} to {high:g} is what one can have")


ANOTHER: Final = "name a file that `collect sensor --out SENSOR.json` wrote"
"""What to do about a file that is there and no calibration: nothing that would write over it."""


def load_calibration(path: Path) -> SensorCalibration:
    """A calibration from a JSON file, whatever board it is of.

    Raises SensorError for a file that cannot be read, is none, or has a figure that no power sensor has.
    """
    try:
        document = parse_json(read_regular(path, MOST_BYTES))
    except FileNotFoundError as error:
        raise SensorError(f"{path}: cannot be read ({error.strerror}); `collect sensor --out {path}` makes a sensor calibration") from error
    except OSError as error:
        raise SensorError(f"{path}: cannot be read ({error.strerror}); {ANOTHER}") from error
    except ValueError as error:
        raise SensorError(f"{path}: no sensor calibration ({error}); {ANOTHER}") from error
    if not isinstance(document, Mapping):
        raise SensorError(f"{path}: no sensor calibration, it is no JSON object; {ANOTHER}")
    try:
        calibration = calibration_from_document(document, str(path))
        check_plausible(calibration, str(path))
    except SensorError as error:
        raise SensorError(f"{error}; {ANOTHER}") from error
    return calibration


def read_calibration(path: Path, gpu_uuid: str, driver: str) -> SensorCalibration:
    """A calibration of one board's sensor from a JSON file.

    Raises SensorError for a file that cannot be read, is none, or belongs to another board or driver: a driver may
    change what a sensor does.
    """
    calibration = load_calibration(path)
    if not calibration.gpu_uuid or not calibration.driver:
        raise SensorError(
            f"{path}: names no board and driver, as it comes from a recording; characterise board {gpu_uuid} with `collect sensor`, "
            f"or write its gpu_uuid and driver ({driver}) into the file"
        )
    for name, mine, theirs in (("board", gpu_uuid, calibration.gpu_uuid), ("driver", driver, calibration.driver)):
        if mine != theirs:
            raise SensorError(f"{path}: for {name} {theirs}, this is {name} {mine}; characterise this one with `collect sensor`")
    return calibration
