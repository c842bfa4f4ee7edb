"""What slow wander of a clock adds to the error of its period.

Clocks of sensors wander by some milliseconds within a minute (published recordings), so a recording's mean period is not the card's.
How much is not the same for every card; a recording that is shorter than the wander shows it as a bend of the phase.  The slope
that belongs to such a bend is worked out over all wanders that may be.

Where the card's own period lies is no normal distribution, and no single deviation holds 68 % of it once and 95 % twice: a bend of
A θ²/3 cos ψ goes with a slope of A θ sin ψ (θ the recording's share of half a cycle, ψ its place in it), so the slope is the bend times
tan ψ, with the tails of a tangent, cut at the largest amplitude; in 10 s even with amplitudes and cycles known exactly.  So the mean
period over the recording has a standard error, and the card's own two half widths, of 68 and of 95 %.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import Changes, normal_share
from collector.sensor.clock_posterior import Bend, root_of
from collector.sensor.clock_tracking import Drift
from estimator.quantities import Array, IntArray

AMPLITUDES_S: Final = (1e-4, 5e-3)
"""Amplitudes that may be: 0.6 ms rms on a board of the RTX 3090's class, 3.4 ms on one of the A100's (published recordings)."""
CYCLES_S: Final = (30.0, 120.0)
"""And times from one swing to the next: some tens of seconds to 100 s."""
ONE_STD, TWO_STD = 0.6827, 0.9545
"""What one and two standard deviations of a normal distribution hold."""
GRID: Final = 9
PHASES: Final = 24
PLACES: Final = 65
BISECTIONS: Final = 40
TINY: Final = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanders:
    """Wanders that may be: slope (first Legendre coefficient) and bend of each over a recording [s], and its probability; shape (w,)."""

    slope_s: Array
    bend_s: Array
    probability: Array

    @property
    def bend(self) -> Bend:
        """The bend that a recording has after all: what it shows itself, and what may be."""
        mean = float(self.probability @ self.bend_s)
        return Bend(bend_s=mean, bend_std_s=float(np.sqrt(self.probability @ (self.bend_s - mean) ** 2)))


STEADY: Final = Wanders(slope_s=np.zeros(1), bend_s=np.zeros(1), probability=np.ones(1))
"""No wander."""


def wanders_of(seen: Bend, span_s: float) -> Wanders:
    """All wanders over `span_s`, each as probable as the bend that the recording shows makes it."""
    slope_of, bend_of = _projections(span_s)
    amplitude = np.geomspace(*AMPLITUDES_S, GRID)[:, None, None]
    slope, bend = (np.ravel(amplitude * part) for part in (slope_of, bend_of))
    distance = 0.5 * ((bend - seen.bend_s) / max(seen.bend_std_s, TINY)) ** 2
    weight = np.exp(distance.min() - distance)
    return Wanders(slope_s=slope, bend_s=bend, probability=weight / weight.sum())


def card_bounds_s(wanders: Wanders, slots: int, period_std_s: float) -> tuple[float, float]:
    """Half widths that hold 68 and 95 % of the distance from a recording's mean period to the card's own [s].

    The recording is `slots` updates long; the error of its own mean, normal, comes on top of the slopes.
    """
    away = 2.0 * np.abs(wanders.slope_s) / max(slots, 1)
    std = max(period_std_s, TINY)
    bounds = []
    for share in (ONE_STD, TWO_STD):
        low, high = 0.0, float(away.max()) + 10.0 * std
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            held = float(wanders.probability @ (normal_share((middle - away) / std) - normal_share((-middle - away) / std)))
            low, high = (low, middle) if held >= share else (middle, high)
        bounds.append(high)
    return bounds[0], bounds[1]


def bend_of_track(changes: Changes, number: IntArray, drift: Drift) -> Bend:
    """The bend of a clock that is tracked, from the middles of its changes."""
    away = changes.middle_s - changes.middle_s[0] - drift.period_s * number
    design, variance, covariance = _held(changes, drift)
    solution = covariance @ ((design / variance[:, None]).T @ away)
    excess = max(1.0, float(np.median((away - design @ solution) ** 2 / variance)))
    return Bend(bend_s=float(solution[2]), bend_std_s=float(np.sqrt(max(excess * float(covariance[2, 2]), TINY))))


def shared_of_track(changes: Changes, drift: Drift) -> Array:
    """What the times of a tracked clock may be off by together: independent changes of one standard deviation each, shape (3, n) [s].

    Its ticks follow the middles of brackets, and an update may have come at any time in its own.
    """
    design, _, covariance = _held(changes, drift)
    shared: Array = root_of(covariance).T @ design.T
    return shared


def _held(changes: Changes, drift: Drift) -> tuple[Array, Array, Array]:
    """Shapes of phase, slope and bend (n, 3), the variance of a middle (n,), and the covariance of those three (3, 3) [s²]."""
    place = _places(changes.middle_s)
    variance = changes.width_s**2 / 12.0 + drift.jitter_s**2
    design = np.stack([np.ones_like(place), place, _second(place)], axis=1)
    covariance = np.asarray(np.linalg.pinv(design.T @ (design / variance[:, None])), dtype=np.float64)
    return design, variance, covariance


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
