"""How a known sensor weighs the past: shares of a reading that fall into given stretches of time.

A reading at u is Σ share · power, the shares being the part of the sensor's weight (a boxcar of width W or a
first-order low-pass, ending `delay_s` before u) that lies in each stretch.  All shares are exact integrals.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from collector.sensor.calibration import SensorCalibration
from collector.sensor.load import BIN_S, LoadShapes, pole
from estimator.frozen import FrozenMapping
from estimator.quantities import Array

LEAST_WIDTH_S: Final = 1e-3
"""Averaging shorter than this is taken for this long: power itself is not defined on a finer scale here."""
LEAST_DURATION_S: Final = 1e-9
"""An interval is at least so long: host stamps resolve no less."""
DEFAULT_PERIOD_S: Final = 0.1
"""Update period where none is known; the longest common one (`configs/sensors`, catalogue)."""
GUESSED_SHARES: Final = (("boxcar", 1.0), ("boxcar", 0.25), ("low-pass", 0.25))
"""What a sensor may be where nothing is known of it, in update periods: the three classes of the catalogue."""
CANDIDATE_LEAD: Final = 8.0
"""Log-likelihood beyond which a candidate of an undecided characterisation no longer counts."""
GUESSED_WIDTH_STD_SHARE: Final = 0.05
GUESSED_DELAY_STD_S: Final = 3e-3
"""Uncertainty of what a calibration leaves open; stamps of readers are up to some milliseconds early."""
UNKNOWN_DELAY_STD_S: Final = 5e-3
"""Uncertainty where no delay was told at all, about 0: those of the two boards that were recorded are −4.0 and −5.5 ms."""
NO_DELAY: Final = f"the sensor's delay is not known: 0 ± {UNKNOWN_DELAY_STD_S * 1e3:g} ms is taken, and errors hold that"


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResponse:
    """A sensor's weight over the past: `kernel` boxcar or low-pass, `width_s` W or 2τ, ending `delay_s` before the stamp."""

    kernel: str
    width_s: float
    delay_s: float
    width_std_s: float = 0.0
    delay_std_s: float = 0.0

    @property
    def lag_s(self) -> float:
        """Mean age of the power in a reading [s]: W / 2 or τ, and the delay."""
        return 0.5 * self.width_s + self.delay_s

    @property
    def reach_s(self) -> float:
        """Time into the past beyond which power no longer counts (e⁻⁶ for a low-pass) [s]."""
        return self.width_s * (1.0 if self.kernel == "boxcar" else 3.0) + self.delay_s

    def moved(self, *, width_s: float = 0.0, delay_s: float = 0.0) -> "SensorResponse":
        """The same sensor with another width or delay, by so much."""
        return replace(self, width_s=max(self.width_s + width_s, LEAST_WIDTH_S), delay_s=self.delay_s + delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleResponses:
    """What a sensor may do, likeliest first, with probabilities that add up to 1, and remarks on what is not known."""

    responses: tuple[SensorResponse, ...]
    probabilities: tuple[float, ...]
    notes: Mapping[str, str]


def possible_responses(calibration: SensorCalibration, period_s: float | None = None) -> PossibleResponses:
    """The responses that a calibration leaves open: one where it names the averaging, else its candidates or a guess.

    `period_s` stands in for an update period that the calibration lacks.
    """
    period = calibration.update_period_s or period_s or DEFAULT_PERIOD_S
    told = calibration.delay_s is not None
    delay = calibration.delay_s if calibration.delay_s is not None else 0.0
    guessed_std = GUESSED_DELAY_STD_S if told else UNKNOWN_DELAY_STD_S
    delay_std = calibration.delay_std_s if told and calibration.delay_std_s is not None else guessed_std
    if calibration.averaging != "undetermined" and (calibration.window_s is not None or calibration.averaging == "none"):
        width = max(calibration.window_s or 0.0, LEAST_WIDTH_S)
        known = SensorResponse(
            kernel="low-pass" if calibration.averaging == "low-pass" else "boxcar",
            width_s=width,
            delay_s=delay,
            width_std_s=calibration.window_std_s if calibration.window_std_s is not None else GUESSED_WIDTH_STD_SHARE * width,
            delay_std_s=delay_std,
        )
        return PossibleResponses(responses=(known,), probabilities=(1.0,), notes=FrozenMapping({} if told else {"delay": NO_DELAY}))
    found = _candidates(calibration.candidates)
    if found:
        scores = np.array([score for _, score in found])
        weights = np.exp(scores - scores.max())
        note = "the sensor's averaging is undetermined: its candidates are weighed, errors hold their spread"
        return PossibleResponses(
            responses=tuple(response for response, _ in found),
            probabilities=tuple((weights / weights.sum()).tolist()),
            notes=FrozenMapping({"averaging": note}),
        )
    guesses = tuple(
        SensorResponse(
            kernel=kernel, width_s=share * period, delay_s=delay, width_std_s=GUESSED_WIDTH_STD_SHARE * period, delay_std_s=delay_std
        )
        for kernel, share in GUESSED_SHARES
    )
    note = "the sensor's averaging is unknown: the classes of the catalogue are taken for equally likely, errors hold their spread"
    return PossibleResponses(
        responses=guesses, probabilities=(1.0 / len(guesses),) * len(guesses), notes=FrozenMapping({"averaging": note})
    )


def _candidates(candidates: tuple[Mapping[str, Any], ...]) -> list[tuple[SensorResponse, float]]:
    """Responses and scores of the kernels that a characterisation compared, those far behind left out."""
    found = []
    for candidate in candidates:
        kernel = candidate.get("kernel")
        figures = [candidate.get(name) for name in ("window_s", "window_std_s", "score")]
        if kernel not in ("boxcar", "low-pass", "none") or not all(_is_number(figure) for figure in figures):
            continue
        width, width_std, score = (float(figure) for figure in figures if figure is not None)
        delay, delay_std = _delay_of(candidate)
        response = SensorResponse(
            kernel="low-pass" if kernel == "low-pass" else "boxcar",
            width_s=max(width, LEAST_WIDTH_S),
            delay_s=delay,
            width_std_s=abs(width_std),
            delay_std_s=delay_std,
        )
        found.append((response, score))
    best = max((score for _, score in found), default=0.0)
    return [(response, score) for response, score in found if score > best - CANDIDATE_LEAD]


def _delay_of(candidate: Mapping[str, Any]) -> tuple[float, float]:
    """A candidate's delay and its standard error [s]: what a kernel that may be the wrong one makes of it is known to no less."""
    delay, std = candidate.get("delay_s"), candidate.get("delay_std_s")
    if delay is None or not _is_number(delay):
        return 0.0, UNKNOWN_DELAY_STD_S
    return float(delay), max(GUESSED_DELAY_STD_S, float(std)) if std is not None and _is_number(std) else GUESSED_DELAY_STD_S


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def interval_shares(response: SensorResponse, start_s: Array, end_s: Array, bins: int, time_s: Array) -> Array:
    """Share of readings at `time_s` (n,) that lies in bin m of any interval, shape (n, bins).

    Intervals run from `start_s` to `end_s` (j,), ascending, not overlapping; each is divided into `bins` equal parts.
    """
    until = time_s - response.delay_s
    if response.kernel == "boxcar":
        spent = time_in_bins(start_s, end_s, bins, np.concatenate([until, until - response.width_s]))
        return (spent[: len(until)] - spent[len(until) :]) / response.width_s
    return _faded(start_s, end_s, bins, until, 0.5 * response.width_s)


def shape_columns(response: SensorResponse, shapes: LoadShapes, time_s: Array) -> Array:
    """The shapes of a load as readings at `time_s` (n,) show them, shape (n, number of shapes)."""
    until = time_s - response.delay_s
    count = shapes.shapes.shape[1]
    result = np.empty((len(time_s), len(shapes.shapes)))
    if response.kernel == "boxcar":
        edge = shapes.origin_s + BIN_S * np.arange(count + 1)
        for i, shape in enumerate(shapes.shapes):
            sums = np.concatenate([[0.0], np.cumsum(shape)]) * BIN_S
            result[:, i] = (np.interp(until, edge, sums) - np.interp(until - response.width_s, edge, sums)) / response.width_s
        return result
    end = shapes.origin_s + BIN_S * np.arange(1, count + 1)
    filtered = np.fft.irfft(np.fft.rfft(shapes.shapes, axis=1) * pole(count, 0.5 * response.width_s), n=count, axis=1)
    for i in range(len(shapes.shapes)):
        result[:, i] = np.interp(until, end, filtered[i])
    return result


def time_in_bins(start_s: Array, end_s: Array, bins: int, time_s: Array) -> Array:
    """Time spent in each bin of the intervals before `time_s` (n,) [s], shape (n, bins)."""
    duration = np.maximum(end_s - start_s, LEAST_DURATION_S)
    whole = np.concatenate([[0.0], np.cumsum(duration)]) / bins
    index = np.searchsorted(start_s, time_s, side="right") - 1
    current = np.maximum(index, 0)
    place = np.clip((time_s - start_s[current]) / duration[current], 0.0, 1.0) * bins
    within = np.clip(place[:, None] - np.arange(bins), 0.0, 1.0) * (duration[current] / bins)[:, None]
    result: Array = whole[current][:, None] + within
    return result


def _faded(start_s: Array, end_s: Array, bins: int, time_s: Array, tau_s: float) -> Array:
    """Integral of e^(−(t − x)/τ)/τ over the part of each bin before t = `time_s` (n,), shape (n, bins)."""
    edges = start_s[:, None] + (end_s - start_s)[:, None] * np.linspace(0.0, 1.0, bins + 1)
    following = np.append(start_s[1:], end_s[-1])
    left = np.exp((edges - following[:, None]) / tau_s)
    added = np.diff(left, axis=1)
    keep = np.exp((start_s - following) / tau_s)
    state = np.zeros((len(start_s), bins))
    for j in range(len(start_s) - 1):
        state[j + 1] = keep[j] * state[j] + added[j]
    index = np.searchsorted(start_s, time_s, side="right") - 1
    current = np.maximum(index, 0)
    reached = np.minimum(edges[current], time_s[:, None])
    now = np.diff(np.exp((reached - time_s[:, None]) / tau_s), axis=1)
    faded = np.exp(np.minimum(start_s[current] - time_s, 0.0) / tau_s)[:, None] * state[current] + now
    result: Array = np.where(index[:, None] >= 0, faded, 0.0)
    return result
