"""By how much a record's clock is off that of the readings, from tens of milliseconds to hours, by what both of them show.

A fit looks for delays of some milliseconds.  A meter or a load log whose clock was set otherwise, or began to count at another moment,
explains nothing there and most of the readings elsewhere.  So its power, averaged in a few ways, is laid over the updates at every
distance there is: sums over products are correlations, which Fourier transforms give for all distances at once.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.load import ComplexArray, LoadStamps, load_integral
from estimator.quantities import Array, IntArray

GRID_S: Final = 4e-3
"""Fine enough for updates 15 ms apart; the fit that follows looks at the rest."""
MOST_BINS: Final = 1 << 20
"""Of longer records the 70 minutes are taken that lie nearest to the other one's middle."""
WIDTHS: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
LONG_WIDTH_S: Final = 1.05
"""Averagings that are tried: boxcars of so many update periods, and the mean over a second."""
LEAST_VALUES: Final = 40
LEAST_MISFIT: Final = 1e-3
"""What is left of the variance counts as so much at least: the grid and the averagings are coarse."""
NEAR_S: Final = 0.03
"""Distances that a delay and the grid explain: no shift."""
MISFIT_SHARE: Final = 0.5
"""And leaves no more than this share of what is left without it: half a cycle of a quick load aside may fit the grid better."""
LEAST_LEAD: Final = 25.0
"""Log-likelihood by which a shift leads over none: an hour has a million distances, ln 10⁶ = 14."""
CLEAR_LEAD: Final = 8.0
"""Another distance that comes so near explains about as much: of a load that repeats, one cycle more or less."""
EXPLAINED: Final = 0.6
"""Least share of the variance that a coarse averaging at the right distance explains."""
REST_S: Final = 2.0
"""Rest before and after a load that is taken to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A power, or a load's level, by its integral: `sum` (n,) at times `time_s` (n,), ascending."""

    time_s: Array
    sum: Array


def history_of_meter(time_s: Array, power_w: Array) -> History:
    """A meter's samples (n,), all finite, as lines between them."""
    return History(time_s=time_s, sum=np.concatenate([[0.0], np.cumsum(0.5 * (power_w[1:] + power_w[:-1]) * np.diff(time_s))]))


def history_of_load(load: LoadStamps) -> History:
    """A load's level with some rest before and after it."""
    time_s, sums = load_integral(load)
    until = min(float(time_s[-1]) + REST_S, load.known_until_s)
    if until <= time_s[-1]:
        return History(time_s=np.append(time_s[0] - REST_S, time_s), sum=np.append(0.0, sums))
    return History(time_s=np.concatenate([[time_s[0] - REST_S], time_s, [until]]), sum=np.concatenate([[0.0], sums, sums[-1:]]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordShift:
    """A record's stamps lie `shift_s` behind the others'; there it explains `explained` of their variance, as it stands `unmoved`.

    `rival_s` is another distance that explains about as much, None where there is none.
    """

    shift_s: float
    explained: float
    unmoved: float
    rival_s: float | None

    def remark(self, whose: str, others: str) -> str:
        """The shift in words."""
        again = "" if self.rival_s is None else f" ({-self.rival_s:+.2f} s does about as well)"
        return (
            f"{whose} stamps are not on the time base of the {others}: moved by {-self.shift_s:+.2f} s{again} they explain "
            f"{self.explained:.0%} of the {others}' variance, as they stand {self.unmoved:.0%}"
        )


def record_shift(time_s: Array, value: Array, record: History, period_s: float) -> RecordShift | None:
    """How far a record lies behind updates at `time_s` with `value` (n,), `period_s` apart; None where it lies nowhere else."""
    return _shift(time_s, value, record, (*(share * period_s for share in WIDTHS), LONG_WIDTH_S))


def meter_shift(time_s: Array, power_w: Array, load: History) -> RecordShift | None:
    """How far a load lies behind a meter's samples (n,), all finite; None where it lies nowhere else.

    A meter averages over its samples' distance at most, and its stamps are their middles: a longer mean would come late, and the load of a
    meter too slow to show its runs would be moved by that.  Samples closer than the grid are taken together: more of them tell no more.
    """
    width_s = max(GRID_S, float(np.median(np.diff(time_s))))
    if width_s == GRID_S:
        power, edges = history_of_meter(time_s, power_w), np.arange(float(time_s[0]), float(time_s[-1]), GRID_S)
        time_s, power_w = 0.5 * (edges[1:] + edges[:-1]), np.diff(np.interp(edges, power.time_s, power.sum)) / GRID_S
    return _shift(time_s + 0.5 * width_s, power_w, load, (width_s,)) if len(time_s) else None


def _shift(time_s: Array, value: Array, record: History, widths_s: tuple[float, ...]) -> RecordShift | None:
    """How far a record, averaged over one of the widths before them, lies behind values (n,) at their times; None for nowhere else."""
    begin, end = float(record.time_s[0]), float(record.time_s[-1])
    reach_s = 0.5 * min(MOST_BINS * GRID_S, float(time_s[-1] - time_s[0]))
    near = np.abs(time_s - np.clip(0.5 * (begin + end), time_s[0] + reach_s, time_s[-1] - reach_s)) <= reach_s
    time_s, value = time_s[near], value[near]
    count = min(int((end - begin) / GRID_S), MOST_BINS)
    if len(value) < LEAST_VALUES or count < 2:
        return None
    place = np.rint((time_s - time_s[0]) / GRID_S).astype(np.int64)
    sums = np.interp(begin + GRID_S * np.arange(count + 1), record.time_s, record.sum)
    score, explained = _scores(place, value - value.mean(), sums, widths_s)
    shift_s = begin - float(time_s[0]) + GRID_S * (np.arange(len(score)) - int(place[-1]) + 1)
    best = int(np.argmax(score))
    here = np.abs(shift_s) <= NEAR_S
    unmoved, stands = (float(values[here].max()) if np.any(here) else 0.0 for values in (score, explained))
    left = max(1.0 - float(explained[best]), LEAST_MISFIT)
    if here[best] or explained[best] < EXPLAINED or score[best] < unmoved + LEAST_LEAD or left > MISFIT_SHARE * (1.0 - stands):
        return None
    peak = np.flatnonzero((score[1:-1] >= score[:-2]) & (score[1:-1] > score[2:]) & (score[1:-1] > score[best] - CLEAR_LEAD)) + 1
    peak = peak[np.abs(shift_s[peak] - shift_s[best]) > NEAR_S]
    return RecordShift(
        shift_s=float(shift_s[best]),
        explained=float(explained[best]),
        unmoved=stands,
        rival_s=float(shift_s[peak[np.argmax(score[peak])]]) if len(peak) else None,
    )


def _scores(place: IntArray, value: Array, sums: Array, widths_s: tuple[float, ...]) -> tuple[Array, Array]:
    """Log-likelihood over a constant, and share of the variance explained, at every distance in steps of the grid, the best averaging's.

    `place` are the updates' bins, `sums` (m + 1,) the record's integral at the edges of its own.  Step i lays the record's bin
    i − place[-1] over the first update.
    """
    bins, last = len(sums) - 1, int(place[-1])
    size = 1 << int(np.ceil(np.log2(bins + last + 1)))

    def spectrum(values: Array) -> ComplexArray:
        transformed: ComplexArray = np.fft.rfft(values, size)
        return transformed

    def laid(updates: ComplexArray, record: ComplexArray) -> Array:
        product: Array = np.fft.irfft(np.conj(updates) * record, size)
        return np.concatenate([product[size - last :], product[:bins]]) if last else product[:bins]

    table = np.zeros((3, last + 1))
    for row, of_updates in enumerate((np.ones_like(value), value, value**2)):
        np.add.at(table[row], place, of_updates)
    ones, values, squares = [spectrum(row) for row in table]
    inside = spectrum(np.ones(bins))
    number = np.maximum(laid(ones, inside), 1.0)
    enough = number >= LEAST_VALUES - 0.5
    sum_v, spread_v = laid(values, inside), laid(squares, inside)
    spread_v = spread_v - sum_v**2 / number
    explained = np.zeros(len(number))
    for width in sorted({max(1, round(width_s / GRID_S)) for width_s in widths_s}):
        before = np.concatenate([sums[0] - (sums[1] - sums[0]) * np.arange(width, 0, -1), sums])
        mean = (before[width + 1 :] - before[1:-width]) / (width * GRID_S)
        mean = mean - mean.mean()
        averaged, sum_m = spectrum(mean), laid(ones, spectrum(mean))
        both = laid(values, averaged) - sum_v * sum_m / number
        spread_m = laid(ones, spectrum(mean**2)) - sum_m**2 / number
        least = 1e-6 * float(np.max(spread_m)) * float(np.max(spread_v)) + 1e-30
        share = np.where(both > 0.0, both**2 / np.maximum(spread_m * spread_v, least), 0.0)
        explained = np.maximum(explained, np.where(enough, np.minimum(share, 1.0), 0.0))
    return -0.5 * number * np.log(np.maximum(1.0 - explained, LEAST_MISFIT)), explained
