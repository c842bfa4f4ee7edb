"""A sensor that was characterised before: its possible responses, and the inversion from readings to power."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from collector.sensing.calibration import ResponseKernel, SensorCalibration
from collector.sensing.response import POINT_S, SensorResponse
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

Figure = TypeVar("Figure", float, Array)

DEFAULT_PERIOD_S: Final = 0.1
"""Default update period if unknown [s]; the longest common one (`configs/sensors`)."""
GUESSES: Final[tuple[tuple[ResponseKernel, float], ...]] = (("boxcar", 1.0), ("boxcar", 0.25), ("low-pass", 0.25))
"""Responses of an unknown sensor, widths in update periods: the classes of the catalogue."""
GUESSED_WIDTH_SHARE: Final = 0.05
GUESSED_DELAY_STD_S: Final = 3e-3
"""Errors of a guessed width (as a share) and delay [s]; stamps of readers are up to some milliseconds early."""
UNKNOWN_DELAY_STD_S: Final = 5e-3
"""Error of an unknown delay, about 0 [s]: the delays of two recorded boards are −4.0 and −5.5 ms."""
HARDLY_KNOWN_S: Final = 5.5e-3
"""A delay with at least this error [s] drifts, or a meter's clock was not tied; energies of loads with pauses are then determined better
with a delay of their own: 0.1 to 1.6 instead of 0.5 to 13 % off for executions of 0.05 to 2 s on a simulated H200 sensor."""
TRIED_STDS, TRIED_DELAYS = 2.0, 9
"""Range of the delays that are tried, in standard errors, and their number: 4 ms apart for an error of 8 ms."""
NO_DELAY: Final = f"the sensor's delay is not known: 0 ± {UNKNOWN_DELAY_STD_S * 1e3:g} ms is taken, and errors hold that"
WEIGHED: Final = "the sensor's averaging is undetermined: its candidates are weighed, errors hold their spread"
GUESSED: Final = "the sensor's averaging is unknown: the classes of the catalogue are taken for equally likely, errors hold their spread"
GAIN_PRIOR_STD: Final = 0.057
OFFSET_PRIOR_STD_W: Final = 8.6
GAIN_OFFSET_PRIOR_CORRELATION: Final = -0.6
"""Prior of gain and offset of a board never compared with a meter: standard deviations and correlation.

They come from the 72 measured runs of the published catalogue, whose spread is 12 % at 60 W, 5 % at 150 W and 4.5 % at 250 W.
"""
UNSTATED_GAIN_STD: Final = 0.01
UNSTATED_OFFSET_STD_W: Final = 1.5
"""Errors of gain and offset of a calibration that states none: the result of two levels against a meter (published recordings)."""
NO_GAIN: Final = "gain and offset are not known: readings are taken for power, errors hold the spread of 72 measured boards"


@frozen
class Inversion:
    """Inversion of readings: power = (reading − `offset_w`) / `gain`, errors correlated by `correlation`.

    `known` is false if a calibration has no gain or no offset; the spread of boards then replaces them.
    """

    gain: float
    gain_std: float
    offset_w: float
    offset_std_w: float
    correlation: float
    known: bool

    def energy(self, reading_j: Figure, std_j: Figure, duration_s: float) -> tuple[Figure, Figure]:
        """Energy and its standard error [J] of integrated readings with error `std_j`, over `duration_s`; power [W] for one second.

        The share of gain and offset is common to all of several energies.
        """
        energy = (reading_j - self.offset_w * duration_s) / self.gain
        return energy, np.hypot(std_j / self.gain, self.common_std_j(energy, duration_s))

    def common_std_j(self, energy_j: Figure, duration_s: float) -> Figure:
        """The part of an energy's standard error that gain and offset cause [J]."""
        of_gain, of_offset = energy_j * self.gain_std, duration_s * self.offset_std_w
        both = of_gain**2 + of_offset**2 + 2.0 * of_gain * of_offset * self.correlation
        std: Figure = np.sqrt(np.maximum(both, 0.0)) / self.gain
        return std


def inversion(calibration: SensorCalibration) -> Inversion:
    """Gain and offset of a calibration; the spread of boards if it has no gain or offset."""
    known = calibration.gain is not None and calibration.offset_w is not None
    gain_std, offset_std_w, correlation = GAIN_PRIOR_STD, OFFSET_PRIOR_STD_W, GAIN_OFFSET_PRIOR_CORRELATION
    if known:
        gain_std = UNSTATED_GAIN_STD if calibration.gain_std is None else calibration.gain_std
        offset_std_w = UNSTATED_OFFSET_STD_W if calibration.offset_std_w is None else calibration.offset_std_w
        correlation = calibration.gain_offset_correlation or 0.0
    return Inversion(
        gain=calibration.gain or 1.0,
        gain_std=gain_std,
        offset_w=calibration.offset_w or 0.0,
        offset_std_w=offset_std_w,
        correlation=correlation,
        known=known,
    )


@frozen
class PossibleResponses:
    """Possible responses with their log-likelihoods so far, and notes on unknown figures.

    `guessed` responses are known too poorly for readings to decide between them.
    """

    responses: tuple[SensorResponse, ...]
    scores: tuple[float, ...]
    notes: Mapping[str, str]
    guessed: bool = False

    def weighed(self, evidence: Array) -> Array:
        """Probabilities after readings, by the log evidence of each response, shape (r,)."""
        score = np.array(self.scores) + (0.0 if self.guessed else evidence)
        weight = np.exp(score - score.max())
        return np.asarray(weight / weight.sum())

    def with_delays(self) -> "PossibleResponses":
        """The same, with several delays in place of one that is hardly known: a load's edges in the readings determine it."""
        responses, scores = [], []
        for response, score in zip(self.responses, self.scores, strict=True):
            hardly = response.delay_std_s > HARDLY_KNOWN_S
            away = np.linspace(-TRIED_STDS, TRIED_STDS, TRIED_DELAYS) if hardly else np.zeros(1)
            left_s = response.delay_std_s * (0.5 * float(away[1] - away[0]) if hardly else 1.0)
            responses += [replace(response.moved(delay_s=one * response.delay_std_s), delay_std_s=left_s) for one in away.tolist()]
            scores += (score - 0.5 * away**2).tolist()
        return replace(self, responses=tuple(responses), scores=tuple(scores))

    @property
    def reach_s(self) -> float:
        """The longest memory of a reading [s]."""
        return max(response.reach_s for response in self.responses)


def possible_responses(calibration: SensorCalibration, period_s: float | None = None) -> PossibleResponses:
    """The responses that a calibration permits: one if it names the averaging, else its candidates, else guesses.

    `period_s` replaces an update period that the calibration lacks.
    """
    period = calibration.update_period_s or period_s or DEFAULT_PERIOD_S
    told, delay = calibration.delay_s is not None, calibration.delay_s or 0.0
    guessed = GUESSED_DELAY_STD_S if told else UNKNOWN_DELAY_STD_S
    delay_std = calibration.delay_std_s if told and calibration.delay_std_s is not None else guessed
    if calibration.averaging != "undetermined" and (calibration.window_s is not None or calibration.averaging == "none"):
        width = max(calibration.window_s or 0.0, POINT_S)
        width_std = calibration.window_std_s if calibration.window_std_s is not None else GUESSED_WIDTH_SHARE * width
        found = [(_response(calibration.averaging, width, width_std, delay, delay_std), 0.0)]
        notes = {} if told else {"delay": NO_DELAY}
    elif candidates := calibration.candidates:
        best, notes = max(one.score for one in candidates), {"averaging": WEIGHED}
        found = [
            (
                _response(
                    one.kernel,
                    one.window_s,
                    one.window_std_s or 0.0,
                    one.delay_s or 0.0,
                    UNKNOWN_DELAY_STD_S if one.delay_s is None else max(GUESSED_DELAY_STD_S, one.delay_std_s or 0.0),
                ),
                one.score,
            )
            for one in candidates
            if one.score > best - 8.0
        ]
    else:
        notes = {"averaging": GUESSED}
        found = [(_response(kernel, share * period, GUESSED_WIDTH_SHARE * period, delay, delay_std), 0.0) for kernel, share in GUESSES]
    responses, scores = zip(*found, strict=True)
    return PossibleResponses(responses=responses, scores=scores, notes=FrozenMapping(notes), guessed=GUESSED in notes.values())


def _response(kernel: str, width_s: float, width_std_s: float, delay_s: float, delay_std_s: float) -> SensorResponse:
    """A response by an averaging's name: a trailing mean is a boxcar, and so is a point of POINT_S, its delay counted from the middle."""
    if kernel == "none":
        width_s, delay_s = POINT_S, delay_s - 0.5 * POINT_S
    return SensorResponse(
        kernel="low-pass" if kernel == "low-pass" else "boxcar",
        width_s=max(width_s, POINT_S),
        delay_s=delay_s,
        width_std_s=width_std_s,
        delay_std_s=delay_std_s,
    )
