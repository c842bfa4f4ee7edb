"""The calibration of one power sensor, as a value and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

from collector.errors import SensorError
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.reader import MAX_FILE_BYTES, Count, FaultError, Span, read
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.values import frozen

Seconds = Annotated[float | None, Span(0.0, 10.0, "s")]
Delay = Annotated[float | None, Span(-5.0, 5.0, "s")]
Offset = Annotated[float | None, Span(-1e3, 1e3, "W")]
SlowSeconds = Annotated[float | None, Span(0.0, 600.0, "s")]
Averaging = Literal["boxcar", "low-pass", "trailing-mean", "none", "undetermined"]
ResponseKernel = Literal["none", "boxcar", "low-pass"]
Transient = Literal["instant", "ramp", "lagged", "logarithmic"]
NO_METER: Final = "needs an external meter: without one, gain and offset cannot be told from the load's own power"


@frozen
class Candidate:
    """A response that was compared: `score` is its log-likelihood, `r2` the share of the readings' variance that it explains."""

    kernel: ResponseKernel
    score: float
    window_s: Annotated[float, Span(0.0, 10.0, "s")] = 0.0
    window_std_s: Annotated[float | None, Span(0.0, unit="s")] = None
    delay_s: float | None = None
    delay_std_s: Annotated[float | None, Span(0.0, unit="s")] = None
    r2: float | None = None


@frozen
class SensorCalibration:
    """How one sensor of one board turns power into readings; None is "not known", with the reason under `notes`.

    `gpu_uuid`, `driver`, `sensor` and `field` identify the sensor.  Updates come every `update_period_s`, on average over the record, with
    the error `update_period_std_s`, and `card_period_std_s` as the card's own period.  Each update averages by `averaging` over `window_s`
    (boxcar width, or 2τ with τ = `tau_s`) and ends `delay_s` before its host stamp; `sampled_fraction` is the share of time that readings
    see.  `rise_time_s` is the time from a load's start to 90 % of its level, `settle_s` to within one per cent, without creep; the
    board's power alone takes `board_rise_s`; `transient` is the class.  A reading is `gain` · power + `offset_w`, with noise
    `reading_noise_w` in steps of `resolution_w`; `residual_w` is the rms distance of readings from the fit.  `_std` are standard errors,
    those of gain and offset correlated by `gain_offset_correlation`; `candidates` the parameters of the compared responses, best first.
    """

    gpu_uuid: str
    driver: str
    sensor: str
    field: str
    averaging: Averaging = "undetermined"
    n_updates: Count = 0
    update_period_s: Annotated[float | None, Span(1e-3, 10.0, "s")] = None
    update_period_std_s: Seconds = None
    card_period_std_s: Seconds = None
    update_jitter_s: Seconds = None
    window_s: Seconds = None
    window_std_s: Seconds = None
    tau_s: Seconds = None
    delay_s: Delay = None
    delay_std_s: Seconds = None
    rise_time_s: SlowSeconds = None
    settle_s: SlowSeconds = None
    board_rise_s: SlowSeconds = None
    transient: Transient | None = None
    gain: Annotated[float | None, Span(0.1, 10.0)] = None
    gain_std: Annotated[float | None, Span(0.0, 10.0)] = None
    offset_w: Offset = None
    offset_std_w: Annotated[float | None, Span(0.0, 1e4, "W")] = None
    gain_offset_correlation: Annotated[float | None, Span(-1.0, 1.0)] = None
    sampled_fraction: Annotated[float | None, Span(0.0, 1.0)] = None
    residual_w: Annotated[float | None, Span(0.0, 1e4, "W")] = None
    reading_noise_w: Annotated[float | None, Span(0.0, 1e3, "W")] = None
    resolution_w: Annotated[float | None, Span(0.0, 1e3, "W")] = None
    poll_period_s: SlowSeconds = None
    candidates: tuple[Candidate, ...] = ()
    notes: Mapping[str, str] = EMPTY

    def document(self) -> dict[str, object]:
        """Plain data for JSON; `calibration_from_document` gives the value back."""
        return {**asdict(self), "notes": dict(self.notes)}


def calibration_from_document(document: Mapping[str, object], where: str = "sensor calibration") -> SensorCalibration:
    """A calibration from JSON data.  Raises SensorError, naming `where` and the key, for a key or figure that no sensor has."""
    try:
        return read(SensorCalibration, document)
    except FaultError as fault:
        raise SensorError(f"{where}: {fault}") from fault


def load_calibration(path: Path) -> SensorCalibration:
    """A calibration from a JSON file, of any board.  Raises SensorError for a file that cannot be used."""
    try:
        return read(SensorCalibration, parse_json(read_regular(path, MAX_FILE_BYTES)))
    except OSError as error:
        raise SensorError(f"{path}: cannot be read ({error.strerror}); `collect sensor --out SENSOR.json` makes a sensor file") from error
    except ValueError as error:
        raise SensorError(f"{path}: no sensor calibration ({error}); name a file that `collect sensor --out` wrote") from error


def read_calibration(path: Path, gpu_uuid: str, driver: str) -> SensorCalibration:
    """A calibration of one board's sensor from a JSON file.

    Raises SensorError for a file that cannot be read, is no calibration, or belongs to another board or driver: a driver may
    change the sensor's behaviour.
    """
    calibration = load_calibration(path)
    for key, mine, theirs in (("gpu_uuid", gpu_uuid, calibration.gpu_uuid), ("driver", driver, calibration.driver)):
        if mine != theirs:
            said = f"is for {key} {theirs}" if theirs else f"names no board, as it comes from a recording: write its {key} into it"
            raise SensorError(f"{path}: {said}, this is {key} {mine}; or characterise this one with `collect sensor`")
    return calibration
