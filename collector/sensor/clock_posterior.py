"""A rigid clock's period, phase, bend and jitter with their errors, from the polls between which every update was seen.

Update k comes at t_k = φ + kT + b·P₂(x_k) + ε_k, with the bend b of a slow wander (P₂ the second Legendre polynomial of the place x
in the recording, −1 to 1) and jitter ε normal with standard deviation s.  It was seen between polls a_k and b_k, which has the
probability Φ((b_k − t_k)/s) − Φ((a_k − t_k)/s), whatever happened to the others: once updates are numbered, the product of these is
the whole likelihood.  Silences add nothing to it; they are the other sides of the same polls, and a likelihood that counts both, as
the search for a clock does, makes errors smaller by √2.  Nor does curvature at the best point tell an error: where jitter is far
below the distance of polls the likelihood is a box, flat and then nothing.  So the posterior is sampled; priors are even but for
the jitter's.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.clock_likelihood import CHANGE_FLOOR, CHUNK, Changes, normal_share
from collector.sensor.clock_tracking import Drift
from estimator.quantities import Array, IntArray

JITTER_LIMITS_S: Final = (5e-5, 2e-3)
"""Jitter that is looked at: below any poll, and above what a grid can have."""
JITTER_S, JITTER_LN_STD = 5e-4, 0.7
"""Prior of the jitter: 0.3 to 0.5 ms were seen on two boards, and hosts stamp polls up to a millisecond early (published recordings).
Slow polls tell little of it themselves, and a jitter that is taken for too small makes the likelihood a box that is too tight."""
DRAWS: Final = 1000
LEAST_DRAWS: Final = 300
MOST_TERMS: Final = 4_000_000
"""Points at which the posterior is sampled in a round; of long records, where it is close to normal, fewer."""
ROUNDS: Final = 16
LEAST_EFFECTIVE: Final = 0.2
"""Each round's proposal goes from the last one towards the posterior, as far as so large a share of the draws still counts."""
TAIL_DEGREES: Final = 6.0
"""Draws have the tails of a Student distribution, which reach beyond the posterior's."""
WIDER: Final = 1.2
BISECTIONS: Final = 20
SEED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bend:
    """The second Legendre coefficient of the phase over a recording, and its standard error [s]."""

    bend_s: float
    bend_std_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPosterior:
    """Mean (4,) and covariance (4, 4) of phase at the middle, phase gained from there to the end, bend [s], and log jitter.

    The phase is that against a grid of `period_s` with a tick of number `middle` at `origin_s`; the record reaches `half` updates
    to both sides.
    """

    mean: Array
    covariance: Array
    period_s: float
    origin_s: float
    middle: float
    half: float

    @property
    def bend(self) -> Bend:
        """The bend that the recording itself shows."""
        return Bend(bend_s=float(self.mean[2]), bend_std_s=float(np.sqrt(self.covariance[2, 2])))

    def drift(self, bend: Bend) -> Drift:
        """Mean period over the recording, its standard error and the jitter, where `bend` says all that is known of that."""
        slope = self.covariance[:, 2] / self.covariance[2, 2]
        mean = self._mean(bend)
        variance = self.covariance[1, 1] + slope[1] ** 2 * (bend.bend_std_s**2 - self.covariance[2, 2])
        return Drift(
            period_s=self.period_s + float(mean[1]) / self.half,
            period_std_s=float(np.sqrt(variance)) / self.half,
            jitter_s=float(np.exp(mean[3])),
            step_s=0.0,
        )

    def tick_s(self, number: IntArray, bend: Bend) -> Array:
        """Times of updates by number, shape (n,) [s]."""
        phase = _shapes(number, self.middle, self.half) @ self._mean(bend)[:3]
        ticks: Array = self.origin_s + self.period_s * (number - self.middle) + phase
        return ticks

    def shared_s(self, number: IntArray, bend: Bend) -> Array:
        """What those times may be off by together: independent changes of one standard deviation each, shape (3, n) [s]."""
        covariance = self.covariance[:3, :3]
        slope = covariance[:, 2] / covariance[2, 2]
        covariance = covariance + np.outer(slope, slope) * (bend.bend_std_s**2 - covariance[2, 2])
        shared: Array = root_of(covariance).T @ _shapes(number, self.middle, self.half).T
        return shared

    def _mean(self, bend: Bend) -> Array:
        """The mean, moved along with the bend."""
        moved: Array = self.mean + self.covariance[:, 2] / self.covariance[2, 2] * (bend.bend_s - self.mean[2])
        return moved


def root_of(covariance: Array) -> Array:
    """A matrix R with R Rᵀ = covariance, which may be singular; shape (m, m)."""
    value, vector = np.linalg.eigh(covariance)
    root: Array = vector * np.sqrt(np.maximum(value, 0.0))
    return root


def grid_posterior(changes: Changes, number: IntArray, period_s: float, jitter_s: float) -> GridPosterior:
    """The posterior of a grid of about `period_s` on which every change has its `number` (n,), ascending."""
    middle, half = 0.5 * float(number[0] + number[-1]), max(0.5 * float(number[-1] - number[0]), 1.0)
    index = changes.stretches()
    part = changes.taken(index)
    away = period_s * (number[index] - middle)
    origin = float(np.median(part.middle_s - away))
    shapes = _shapes(number[index], middle, half)
    ends = np.stack([part.after_s, part.until_s]) - origin - away

    solution = np.linalg.lstsq(shapes, ends.mean(axis=0), rcond=None)[0]
    spread2 = float(np.median(part.width_s)) ** 2 / 12.0 + jitter_s**2
    mean = np.append(solution, np.log(np.clip(jitter_s, *JITTER_LIMITS_S)))
    covariance = np.zeros((4, 4))
    covariance[:3, :3] = spread2 * np.linalg.inv(shapes.T @ shapes + 1e-3 * np.eye(3))
    covariance[3, 3] = JITTER_LN_STD**2
    random = np.random.default_rng(SEED)
    count = int(np.clip(MOST_TERMS / ends.size, LEAST_DRAWS, DRAWS))
    for _ in range(ROUNDS):
        factor = WIDER * np.linalg.cholesky(covariance + np.diag(1e-12 * np.diag(covariance)))
        tail = np.sqrt(TAIL_DEGREES / random.chisquare(TAIL_DEGREES, count))
        unit = random.standard_normal((count, 4)) * tail[:, None]
        draws = mean + unit @ factor.T
        proposed = -0.5 * (TAIL_DEGREES + 4.0) * np.log1p(np.sum(unit**2, axis=1) / TAIL_DEGREES)
        power, weight = _tempered(_log_likelihoods(draws, ends, shapes), proposed)
        mean = weight @ draws
        covariance = (draws - mean).T @ ((draws - mean) * weight[:, None])
        if power >= 1.0:
            break
    return GridPosterior(mean=mean, covariance=covariance, period_s=period_s, origin_s=origin, middle=middle, half=half)


def _log_likelihoods(draws: Array, ends: Array, shapes: Array) -> Array:
    """Log-likelihood of draws (g, 4) and log prior, −inf where the jitter lies outside its limits; shape (g,)."""
    size = max(1, CHUNK // ends.size)
    parts = []
    for first in range(0, len(draws), size):
        some = draws[first : first + size]
        tick, jitter = some[:, :3] @ shapes.T, np.exp(np.clip(some[:, 3], *np.log(JITTER_LIMITS_S)))[:, None]
        seen = normal_share((ends[1] - tick) / jitter) - normal_share((ends[0] - tick) / jitter)
        parts.append(np.log(CHANGE_FLOOR + (1.0 - CHANGE_FLOOR) * seen).sum(axis=1))
    inside = (draws[:, 3] > np.log(JITTER_LIMITS_S[0])) & (draws[:, 3] < np.log(JITTER_LIMITS_S[1]))
    prior = -0.5 * ((draws[:, 3] - np.log(JITTER_S)) / JITTER_LN_STD) ** 2
    return np.where(inside, np.concatenate(parts) + prior, -np.inf)


def _tempered(likelihood: Array, proposed: Array) -> tuple[float, Array]:
    """How much of the way from the proposal to the posterior leaves enough draws that count, and their weights then, shape (g,)."""
    finite = np.isfinite(likelihood)
    over = np.where(finite, np.where(finite, likelihood, 0.0) - proposed, -np.inf)

    def weights(power: float) -> Array:
        score = np.where(finite, power * np.where(finite, over, 0.0), -np.inf)
        weight = np.exp(score - score.max())
        result: Array = weight / weight.sum()
        return result

    least = LEAST_EFFECTIVE * len(likelihood)
    low, high = 0.0, 1.0
    if 1.0 / np.sum(weights(high) ** 2) >= least:
        return high, weights(high)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if 1.0 / np.sum(weights(middle) ** 2) >= least else (low, middle)
    return low, weights(low)


def _shapes(number: IntArray, middle: float, half: float) -> Array:
    """What phase, slope and bend add to the times of updates: 1, x and P₂(x), shape (n, 3)."""
    place = (number - middle) / half
    return np.stack([np.ones(len(place)), place, 1.5 * place**2 - 0.5], axis=1)
