"""How likely the changes and the silences of a polled value are under a clock."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from estimator.quantities import Array, IntArray

CHANGE_FLOOR: Final = 2e-3
"""Probability of a change that no update explains; keeps one odd reading from deciding."""
MISSED_SHARES: Final = (0.005, 0.05, 0.3, 0.8)
"""Shares of updates that may show no change (skipped, or the same value again)."""
SILENCE_FLOOR: Final = -60.0
"""Least log-probability of one silence."""
PERIOD_LIMITS_S: Final = (2e-3, 2.0)
"""Periods between which sensors of NVIDIA boards lie, with room (15 to 101 ms seen)."""
LOG_JITTER_LEAST: Final = float(np.log(2e-5))
MAX_JITTER_SHARE: Final = 0.25
"""A phase that scatters by more than this share of the period is none."""
SHARP: Final = 6.0
"""Standard deviations beyond which an update surely lies on one side."""
TANH_FACTOR, TANH_CUBIC = 0.7978845608028654, 0.044715
"""The normal distribution as a hyperbolic tangent, error below 4e-4."""
CHUNK: Final = 1_000_000
"""Terms that are evaluated at once; bounds memory."""
MOST_EVALUATED: Final = 20_000
STRETCH: Final = 1000
"""Of more changes than this the likelihood looks at stretches spread over the record: its ends tell the period, its time is bounded."""


HOLE_POLLS: Final = 3.0
"""Polls further apart than so many usual distances leave a hole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holes:
    """Times without polls in the silences of a record: each from one poll to the next, behind change number `behind`.  Shape (h,).

    What came in a hole and was gone again nobody saw: only the last update of each can have shown no change.
    """

    behind: IntArray
    from_s: Array
    until_s: Array

    def of(self, index: IntArray) -> "Holes":
        """Those behind the changes `index`, ascending, under their new numbers."""
        place = np.searchsorted(index, self.behind)
        kept = (place < len(index) - 1) & (index[np.minimum(place, len(index) - 1)] == self.behind)
        kept[kept] = index[place[kept] + 1] == self.behind[kept] + 1
        return Holes(behind=place[kept], from_s=self.from_s[kept], until_s=self.until_s[kept])


NO_HOLES: Final = Holes(behind=np.zeros(0, dtype=np.int64), from_s=np.zeros(0), until_s=np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a polled value: update i came after `after_s` and not later than `until_s`, and left `value`.  Shape (n,).

    `holes` are times without polls between them.
    """

    after_s: Array
    until_s: Array
    value: Array
    holes: Holes = field(default=NO_HOLES)

    def __len__(self) -> int:
        """How many."""
        return len(self.value)

    @property
    def middle_s(self) -> Array:
        """Middles of the brackets [s]."""
        return 0.5 * (self.after_s + self.until_s)

    @property
    def width_s(self) -> Array:
        """Widths of the brackets [s]."""
        return self.until_s - self.after_s

    def part(self, first: int, last: int) -> "Changes":
        """Changes first to last − 1."""
        return self.taken(np.arange(len(self), dtype=np.int64)[first:last])

    def taken(self, index: IntArray) -> "Changes":
        """The changes `index`, ascending."""
        holes = self.holes.of(index) if len(index) and len(self.holes.behind) else NO_HOLES
        return Changes(after_s=self.after_s[index], until_s=self.until_s[index], value=self.value[index], holes=holes)

    def latest(self, period_s: float) -> "Changes":
        """The same with brackets of a period at most: a value that is there after a hole was left by the last update in it."""
        return replace(self, after_s=np.maximum(self.after_s, self.until_s - period_s))

    def spread(self) -> tuple["Changes", int]:
        """Stretches of STRETCH changes from the first to the last, MOST_EVALUATED together, and how many joints lie between them."""
        if len(self) <= MOST_EVALUATED:
            return self, 0
        return self.taken(self.stretches()), MOST_EVALUATED // STRETCH - 1

    def stretches(self) -> IntArray:
        """Places of the changes of those stretches, of all changes where there are few."""
        if len(self) <= MOST_EVALUATED:
            return np.arange(len(self), dtype=np.int64)
        firsts = np.linspace(0, len(self) - STRETCH, MOST_EVALUATED // STRETCH).astype(np.int64)
        index: IntArray = (firsts[:, None] + np.arange(STRETCH)).ravel()
        return index


def find_changes(time_s: Array, value: Array) -> Changes:
    """The changes in polls at `time_s` (ascending), both of shape (n,); polls that are not finite are left out."""
    finite = np.isfinite(value)
    time_s, value = time_s[finite], value[finite]
    changed = value[1:] != value[:-1]
    index = np.flatnonzero(changed) + 1
    gaps = np.diff(time_s)
    hole = np.flatnonzero((gaps > HOLE_POLLS * float(np.median(gaps))) & ~changed) if len(gaps) else np.zeros(0, dtype=np.int64)
    behind = np.searchsorted(index, hole, side="right") - 1
    inner = (behind >= 0) & (behind < len(index) - 1)
    holes = Holes(behind=behind[inner], from_s=time_s[hole[inner]], until_s=time_s[hole[inner] + 1])
    return Changes(after_s=time_s[index - 1], until_s=time_s[index], value=value[index], holes=holes)


def expected_updates(x: Array, period: Array, phase: Array, jitter: Array) -> Array:
    """Expected number of updates before times x, up to a constant: N(x) = k + Φ((x − φ − kT)/s)."""
    position = (x - phase) / period
    whole = np.rint(position)
    return whole + normal_share((position - whole) * (period / jitter))


def normal_share(z: Array) -> Array:
    """Share of a normal distribution below z standard deviations, error below 4e-4."""
    z = np.clip(z, -SHARP, SHARP)
    share: Array = 0.5 * (1.0 + np.tanh(TANH_FACTOR * z * (1.0 + TANH_CUBIC * z * z)))
    return share


def log_likelihoods(changes: Changes, points: Array, origin_s: float) -> Array:
    """Log-likelihood of clocks (period, phase after `origin_s`, log jitter), points of shape (g, 3) → (g,).

    Changes want an update in their brackets, the time between two brackets wants none: that rejects fractions of the
    period and aliases of the poll.
    """
    size = max(1, CHUNK // (2 * len(changes)))
    values = np.concatenate([_block(changes, points[i : i + size], origin_s) for i in range(0, len(points), size)])
    period, log_jitter = points[:, 0], points[:, 2]
    good = (period >= PERIOD_LIMITS_S[0]) & (period <= PERIOD_LIMITS_S[1]) & (log_jitter >= LOG_JITTER_LEAST)
    good &= log_jitter <= np.log(MAX_JITTER_SHARE * np.maximum(period, PERIOD_LIMITS_S[0]))
    return np.where(good, values, -np.inf)


def _block(changes: Changes, points: Array, origin_s: float) -> Array:
    count = len(changes)
    edges = np.concatenate([changes.after_s, changes.until_s]) - origin_s
    number = expected_updates(edges, points[:, :1], points[:, 1:2], np.exp(points[:, 2:3]))
    seen = np.minimum(number[:, count:] - number[:, :count], 1.0)
    silent = np.maximum(number[:, 1:count] - number[:, count:-1], 0.0)
    if len(changes.holes.behind):
        silent = np.maximum(silent - _hidden(changes, points, origin_s), 0.0)
    whole = np.floor(silent)
    part = silent - whole
    best = np.full(len(points), -np.inf)
    for share in MISSED_SHARES:
        total = np.log(CHANGE_FLOOR + ((1.0 - CHANGE_FLOOR) * (1.0 - share)) * seen).sum(axis=1)
        total += np.maximum(whole * np.log(share) + np.log1p(-(1.0 - share) * part), SILENCE_FLOOR).sum(axis=1)
        best = np.maximum(best, total)
    return best


def _hidden(changes: Changes, points: Array, origin_s: float) -> Array:
    """Updates of each silence that came in holes and could not be seen, shape (g, n − 1)."""
    holes = changes.holes
    edges = np.concatenate([holes.from_s, holes.until_s]) - origin_s
    number = expected_updates(edges, points[:, :1], points[:, 1:2], np.exp(points[:, 2:3]))
    count = len(holes.behind)
    unseen = np.maximum(number[:, count:] - number[:, :count] - 1.0, 0.0)
    hidden = np.zeros((len(points), len(changes) - 1))
    np.add.at(hidden.T, holes.behind, unseen.T)
    return hidden


def likelihood_of(changes: Changes, origin_s: float) -> Callable[[Array], float]:
    """The log-likelihood as a function of one clock, shape (3,)."""

    def function(point: Array) -> float:
        return float(log_likelihoods(changes, point[None, :], origin_s)[0])

    return function
