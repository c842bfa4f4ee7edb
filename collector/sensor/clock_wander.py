"""What slow wander of a clock adds to the error of its period.

Clocks of sensors wander by some milliseconds within a minute (published recordings), so a recording's mean period is not the card's.  How
much is not the same for every card; a recording that is shorter than the wander shows it as a bend of the phase.  The slope
that belongs to such a bend is worked out over all wanders that may be.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import Changes, log_likelihoods
from collector.sensor.clock_tracking import Drift
from estimator.quantities import Array, IntArray

AMPLITUDES_S: Final = (1e-4, 5e-3)
"""Amplitudes that may be: 0.6 ms rms on a board of the RTX 3090's class, 3.4 ms on one of the A100's (published recordings)."""
CYCLES_S: Final = (30.0, 120.0)
"""And times from one swing to the next: some tens of seconds to 100 s."""
ONE_STD: Final = 0.6827
"""What one standard error holds: possible slopes have a long tail, whose root mean square would hold nine in ten."""
GRID: Final = 9
PHASES: Final = 24
PLACES: Final = 65
BENDS: Final = 61
BEND_CURVE: Final = 5.0
LEAST_REACH: Final = 0.02
"""Bends that are compared, closer together near none; up to what the largest swing makes."""
LEAST_JITTER_S: Final = 3e-5
TINY: Final = 1e-300


def wander_std_s(bend_likelihood: Callable[[float], float], slots: int, period_s: float) -> float:
    """Standard error of a recording's mean period as the card's own [s].

    `bend_likelihood` is the log-likelihood of a bend: the second Legendre coefficient of the phase over the recording [s], which is
    `slots` updates long.
    """
    slope_of, bend_of = _projections(slots * period_s)
    amplitude = np.geomspace(*AMPLITUDES_S, GRID)[:, None, None]
    reach = AMPLITUDES_S[1] * max(float(np.abs(bend_of).max()), LEAST_REACH)
    bends = reach * np.sinh(np.linspace(-BEND_CURVE, BEND_CURVE, BENDS)) / np.sinh(BEND_CURVE)
    likelihood = np.array([bend_likelihood(float(bend)) for bend in bends])
    weight = np.exp(np.interp(amplitude * bend_of, bends, likelihood) - likelihood.max())
    slope = np.abs(amplitude * slope_of).ravel()
    order = np.argsort(slope)
    reached = np.cumsum(weight.ravel()[order]) / max(float(np.sum(weight)), TINY)
    return 2.0 * float(np.interp(ONE_STD, reached, slope[order])) / max(slots, 1)


def bend_of_grid(changes: Changes, drift: Drift, tick_s: float) -> Callable[[float], float]:
    """The log-likelihood of a bend of a rigid grid with a tick at `tick_s`: changes and silences decide, as they do of the period."""
    part, _ = changes.spread()
    shape = _second(_places(part.middle_s))
    point = np.array([[drift.period_s, 0.0, np.log(max(drift.jitter_s, LEAST_JITTER_S))]])

    def likelihood(bend_s: float) -> float:
        moved = Changes(after_s=part.after_s - bend_s * shape, until_s=part.until_s - bend_s * shape, value=part.value)
        return float(log_likelihoods(moved, point, tick_s)[0])

    return likelihood


def bend_of_track(changes: Changes, number: IntArray, drift: Drift) -> Callable[[float], float]:
    """The same for a clock that is tracked: the middles of the changes decide."""
    away = changes.middle_s - changes.middle_s[0] - drift.period_s * number
    place = _places(changes.middle_s)
    variance = changes.width_s**2 / 12.0 + drift.jitter_s**2
    design = np.stack([np.ones_like(place), place, _second(place)], axis=1)
    weighted = design / variance[:, None]
    covariance = np.linalg.pinv(design.T @ weighted)
    solution = covariance @ (weighted.T @ away)
    excess = max(1.0, float(np.median((away - design @ solution) ** 2 / variance)))
    bend, bend_variance = float(solution[2]), max(excess * float(covariance[2, 2]), TINY)
    return lambda bend_s: -0.5 * (bend_s - bend) ** 2 / bend_variance


def _places(time_s: Array) -> Array:
    """Times as places in the recording, −1 to 1."""
    places: Array = 2.0 * (time_s - time_s[0]) / max(float(time_s[-1] - time_s[0]), TINY) - 1.0
    return places


def _projections(span_s: float) -> tuple[Array, Array]:
    """First and second Legendre coefficient of swings of amplitude 1 over a recording, for all cycles and phases."""
    place = np.linspace(-1.0, 1.0, PLACES)
    cycle = np.geomspace(*CYCLES_S, GRID)[:, None, None]
    phase = 2.0 * np.pi * np.arange(PHASES)[:, None] / PHASES
    swing = np.cos(np.pi * span_s / cycle * place + phase)
    weight = np.full(PLACES, 2.0 / (PLACES - 1))
    weight[[0, -1]] *= 0.5
    return 1.5 * (swing * place) @ weight, 2.5 * (swing * _second(place)) @ weight


def _second(place: Array) -> Array:
    """The second Legendre polynomial."""
    result: Array = 1.5 * place**2 - 0.5
    return result
