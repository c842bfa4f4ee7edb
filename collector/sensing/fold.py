"""The power profile within one execution, finer than the sensor's updates.

Executions repeat and updates fall on different places of them.  Folded by place, the readings are a dense record of the profile,
averaged by the sensor.  Each place has an error and a resolution; places that no update saw are undetermined.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collector.errors import SensorError
from collector.sensing.board_power import LAUNCH_RISE_S, LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.known_sensor import inversion
from collector.sensing.repeated import RepeatedEnergy
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array

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


def fold_profile(found: RepeatedEnergy, load: LoadStamps, calibration: SensorCalibration) -> Profile:
    """The profile within the executions of a load whose energy was found.

    Raises SensorError if there are too few executions, or they differ in length or level.
    """
    if found.executions < 4:
        raise SensorError(f"{found.executions} executions after the rise; at least 4 are needed to fold them")
    if not load.alike:
        raise SensorError("the executions differ in length or level: they have no common profile to fold")
    fit, back, duration = found.fit, inversion(calibration), found.duration_s
    bins = len(fit.profile_w)
    true_w, std_w = back.energy(fit.profile_w, np.hypot(fit.profile_std_w, 0.02 * abs(float(fit.profile_w.mean()))), 1.0)
    smeared = fit.profile_resolution > UNSEEN_BINS
    unseen = smeared & (fit.profile_std_w > UNSEEN_SHARE * fit.profile_size_w) & (fit.profile_size_w > fit.noise_w)
    notes = {}
    if np.any(unseen):
        notes["profile"] = (
            f"{np.count_nonzero(unseen)} of {bins} places were not seen by any update: executions of {duration * 1e3:.4g} ms keep the same "
            "phase to the updates; put pauses of changing length between them"
        )
    resolution = fit.profile_resolution * duration / bins
    return Profile(
        place_s=LAUNCH_RISE_S + (np.arange(bins) + 0.5) * duration / bins,
        power_w=np.where(unseen, np.nan, true_w),
        std_w=np.where(unseen, np.nan, std_w),
        resolution_s=np.where(unseen, np.inf, resolution),
        duration_s=duration,
        executions=fit.executions,
        attained_s=float(np.median(resolution[~unseen])) if not np.all(unseen) else math.nan,
        notes=FrozenMapping(notes),
    )
