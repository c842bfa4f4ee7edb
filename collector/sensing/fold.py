"""The power profile within one execution, finer than the sensor's updates.

Executions repeat and updates fall on different places of them.  Folded by place, the readings are a dense record of the profile,
averaged by the sensor.  Each place has an error and a resolution; places that no update saw are undetermined.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensing.board_power import LAUNCH_RISE_S, LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.executions import FitSettings, fit_executions
from collector.sensing.known_sensor import NO_GAIN, inversion, possible_responses
from collector.sensing.repeated import response_probabilities
from collector.sensing.updates import BoardUpdates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

BINS: Final = (12, 200)
BINS_PER_WINDOW: Final = 5.0
"""Number of profile parts in a window of the sensor, within limits, and at most the number of readings (simulated boards)."""
UNSEEN_SHARE, UNSEEN_BINS = 0.8, 4.0
"""A place is undetermined if its error exceeds this share of the profile's size and its value smears over more parts than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Power by place in an execution, gain and offset corrected.

    `place_s` (n,) is the time since the start stamp, with LAUNCH_RISE_S for the power to follow; `power_w` ± `std_w` is the power there
    (nan where undetermined), `resolution_s` the time over which each value is smeared (inf where nothing was seen).
    `duration_s` is the mean length, over `executions`; `attained_s` the median resolution, nan where the whole is undetermined.
    """

    place_s: Array
    power_w: Array
    std_w: Array
    resolution_s: Array
    duration_s: float
    executions: int
    attained_s: float
    notes: Mapping[str, str]


def fold_profile(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, *, discard_s: float = 0.0) -> Profile:
    """The profile within the executions of a load, without those that start in the first `discard_s`.

    Raises SensorError if there are too few executions, or they differ in length or level.
    """
    kept = load.start_s >= load.start_s[0] + discard_s
    if np.count_nonzero(kept) < 4:
        raise SensorError(f"{np.count_nonzero(kept)} executions after the rise; at least 4 are needed to fold them")
    if not load.alike:
        raise SensorError("the executions differ in length or level: they have no common profile to fold")
    duration = float(np.mean(load.length_s[kept]))
    possible = possible_responses(calibration, updates.period_s)
    inside = np.count_nonzero((updates.time_s > load.start_s[0]) & (updates.time_s < load.end_s[-1]))
    fits = [
        fit_executions(
            updates.time_s,
            updates.value,
            response,
            load,
            FitSettings(
                bins=int(np.clip(round(min(BINS_PER_WINDOW * duration / response.width_s, float(inside))), *BINS)),
                discard_s=discard_s,
                noise_w=calibration.reading_noise_w,
                jitter_s=updates.time_std_s,
                any_size=True,
            ),
        )
        for response in possible.responses
    ]
    fit = fits[int(np.argmax(response_probabilities(possible, fits)))]
    bins, back = len(fit.profile_w), inversion(calibration)
    std = back.power_std_w(fit.profile_w, np.hypot(fit.profile_std_w, 0.02 * abs(float(fit.profile_w.mean()))))
    smeared = fit.profile_resolution > UNSEEN_BINS
    unseen = smeared & (fit.profile_std_w > UNSEEN_SHARE * fit.profile_size_w) & (fit.profile_size_w > fit.noise_w)
    notes = {**updates.notes, **possible.notes, **({} if back.known else {"gain": NO_GAIN})}
    if np.any(unseen):
        notes["profile"] = (
            f"{np.count_nonzero(unseen)} of {bins} places were not seen by any update: executions of {duration * 1e3:.4g} ms keep the same "
            f"phase to updates of {updates.period_s * 1e3:.4g} ms; put pauses of changing length between them"
        )
    resolution = fit.profile_resolution * duration / bins
    return Profile(
        place_s=LAUNCH_RISE_S + (np.arange(bins) + 0.5) * duration / bins,
        power_w=np.where(unseen, np.nan, back.power_w(fit.profile_w)),
        std_w=np.where(unseen, np.nan, std),
        resolution_s=np.where(unseen, np.inf, resolution),
        duration_s=duration,
        executions=fit.executions,
        attained_s=float(np.median(resolution[~unseen])) if not np.all(unseen) else math.nan,
        notes=FrozenMapping(notes),
    )
