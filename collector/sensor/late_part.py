"""Boards of which a part follows the load late, up and down: what that leaves open of a width and a delay told from load stamps.

A fan, a voltage regulator or memory clocks may follow within some ten milliseconds.  Such a part makes an averaging look longer than it
is, and load stamps hardly tell the two apart: a share s that follows through a pole of t, before a low-pass of τ = (1 − s)·t, is exactly a
low-pass of t.  So what is stated is a probability over boards, with and without such a part.
"""

from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist
from typing import Final

import numpy as np

from collector.sensor.kernel_errors import BEYOND_FIRST_ORDER
from collector.sensor.kernel_fit import KernelFit, KernelProblem
from collector.sensor.late_search import (
    DELAY,
    NOISE,
    TIME,
    WIDTH,
    LateBoards,
    LateFit,
    any_launch,
    climbed_late,
    start_of,
    wide_start,
)
from collector.sensor.load import BIN_S, FOURIER_MULTIPLE
from collector.sensor.rival_boards import compared_until_s
from collector.sensor.sources import PowerSource
from estimator.quantities import Array

LATE_PROBABILITY: Final = 3.0 / 7.0
MOST_SHARE: Final = 0.4
"""Prior: of the steps of five published boards two come late in part, so the next one does with 3/7 (rule of succession); 60 to 100 % of
these steps come at once, so up to this much may be late, any share as likely."""
SHARES: Final = (0.03, 0.07, 0.13, 0.2, 0.3, MOST_SHARE)
MOST_SHARES: Final = 30
"""Late shares that are tried at first, and how many at most: between neighbours of which one is much likelier there are others."""
FIRST_LATE_S: Final = (0.008, 0.03)
WIDE_SHARE: Final = 0.2
"""Times of late parts that a search begins with: at the smallest share, and at WIDE_SHARE with all widths and delays about the fit's."""
MOST_DIFFERENCE, NEGLIGIBLE = 1.0, 7.0
LEAST_STEP, SAME_STDS = 5e-4, 0.3
"""Neighbouring shares' log-probabilities differ by no more than MOST_DIFFERENCE, but where they are less than the highest by NEGLIGIBLE,
are as close as LEAST_STEP, or agree in width and delay within this share of the fit's errors."""
APART, APART_LN_WIDTH = 0.15, 0.03
"""Fits whose logarithms of time and width differ by less, or of time by less than a standard error, are one."""
MOST_FITS, FAR_BEHIND = 2, 12.0
"""For one share so many fits are kept, and none that is less likely than the best by this log-probability."""
MOST_UPDATES, AFTER_S = 600, 0.1
"""So many updates are compared at most."""
QUANTILES: Final = 15
ONE_STD: Final = 0.6827
MOST: Final = 0.95
"""Probability within one standard error, and within what is told besides."""

Rows = dict[float, list[LateFit]]
"""The fits for every late share that was tried, the likeliest first."""


def with_late_part(problem: KernelProblem, fit: KernelFit) -> KernelFit:
    """The fit with width and delay as boards with a late part and without make them likely: medians, and errors that hold 68 %.

    Two such errors hold 95 % of boards only where the part is told or ruled out.  Where load stamps tell neither, probability has a far
    tail, and no one number holds 68 % and 95 %: a width's error that held 95 % would be up to four times too wide for boards without a
    late part.  So what holds 95 % is told besides (`width_95_s`).
    A width's error is no less than the fit's own to first order: what scatters beyond that (BEYOND_FIRST_ORDER) in a fit with one form
    of a launch and without a late part, the fits compared here have for parameters.  How soon a board follows is open in all of them.
    """
    count = min(int(np.searchsorted(problem.time_s, compared_until_s(problem.time_s), side="right")), MOST_UPDATES)
    time_s, value = problem.time_s[:count], problem.value[:count]
    source = any_launch(_until(problem.source, float(time_s[-1])))
    fit = replace(fit, delay_std_s=float(np.sqrt(max(fit.delay_std_s**2 - problem.source.time_std_s**2, 0.0))))
    rows = _rows(LateBoards(KernelProblem(problem.kernel, source, time_s, value, problem.jitter_s)), fit)
    of_part = float(np.sqrt(len(problem.value) / count))
    width_std, delay_std = of_part * fit.width_std_s / BEYOND_FIRST_ORDER, of_part * fit.delay_std_s
    probability, points, across = _posterior(rows)
    width = fit.width_s * np.exp(points[:, WIDTH] - start_of(fit)[WIDTH])
    stated_width, stated_width_std, width_95 = _stated(width, width * across[:, WIDTH], width_std, probability)
    stated_delay, stated_delay_std, _ = _stated(points[:, DELAY], across[:, DELAY], delay_std, probability)
    delay_std = float(np.hypot(stated_delay_std, problem.source.time_std_s))  # the stamps' own error, the same in all fits
    return replace(
        fit, width_s=stated_width, width_std_s=stated_width_std, width_95_s=width_95, delay_s=stated_delay, delay_std_s=delay_std
    )


def _until(source: PowerSource, time_s: float) -> PowerSource:
    """A source up to a time: transforms of less are faster."""
    count = int((time_s + AFTER_S - source.origin_s) / BIN_S)
    return replace(source, columns=source.columns[:, : count + -count % FOURIER_MULTIPLE])


def _posterior(rows: Rows) -> tuple[Array, Array, Array]:
    """Probabilities of boards without a late part (the first) and with parts of every share (k,), their log widths and delays (k, 2).

    And by how much these change over the shares that each one stands for, (k, 2).
    """
    alone = rows[0.0][0]
    shares = np.array(sorted(rows))
    cell = np.gradient(shares)
    cell[[0, -1]] *= 0.5
    likeliest = np.array([rows[share][0].point[:NOISE] for share in shares.tolist()])
    change = np.gradient(likeliest, shares, axis=0) * cell[:, None]
    log, points, across = [alone.log_probability + np.log(1.0 - LATE_PROBABILITY)], [alone.point[:NOISE]], [np.zeros(NOISE)]
    for index, share in enumerate(shares.tolist()):
        for fit in rows[share]:
            log.append(fit.log_probability + np.log(LATE_PROBABILITY * cell[index] / MOST_SHARE))
            points.append(fit.point[:NOISE])
            across.append(change[index])
    probability = np.exp(np.array(log) - max(log))
    return probability / probability.sum(), np.array(points), np.array(across)


def _stated(value: Array, across: Array, std: float, probability: Array) -> tuple[float, float, float]:
    """Median of a mixture, the standard error that holds 68 %, and what holds 95 %.

    Its parts are as wide as `across` (k,), evenly, and besides normal with `std`, which is the least that is stated.
    """
    place = (np.arange(QUANTILES) + 0.5) / QUANTILES
    normal = std * np.array([NormalDist().inv_cdf(share) for share in place.tolist()])
    values = np.add.outer(value[:, None] + np.outer(across, place - 0.5), normal).ravel()
    weight = np.repeat(probability / QUANTILES**2, QUANTILES**2)
    middle = _quantile(values, weight, 0.5)
    away = np.abs(values - middle)
    return middle, max(std, _quantile(away, weight, ONE_STD)), _quantile(away, weight, MOST)


def _quantile(value: Array, probability: Array, share: float) -> float:
    order = np.argsort(value)
    below = np.cumsum(probability[order]) - 0.5 * probability[order]
    return float(np.interp(share, below, value[order]))


def _rows(boards: LateBoards, fit: KernelFit) -> Rows:
    """The best fits for late shares, closer where one share is much likelier than its neighbour and says something else."""
    alone = climbed_late(boards, 0.0, start_of(fit))
    starts = [np.append(alone.point[:TIME], np.log(late_s)) for late_s in FIRST_LATE_S]
    rows = {0.0: [alone]}
    for before, share, after in zip((0.0, *SHARES), SHARES, (*SHARES[1:], MOST_SHARE), strict=False):
        if share == WIDE_SHARE:
            starts += [wide_start(boards, fit, share, late_s) for late_s in FIRST_LATE_S]
        rows[share] = _fits(boards, share, starts)
        starts = [_onward(found, rows[before][0], after) for found in rows[share]]
    for share, above in zip(SHARES[-2::-1], SHARES[:0:-1], strict=True):
        if share < WIDE_SHARE:
            new = [found.point for found in rows[above] if not any(_same(found, other) for other in rows[share])]
            rows[share] = _apart([*rows[share], *_fits(boards, share, new)])
    while len(rows) < MOST_SHARES:
        shares = sorted(rows)
        highest = max(found[0].log_probability for found in rows.values())
        rough = [_roughness(rows[one][0], rows[other][0], highest, fit) for one, other in pairwise(shares)]
        pair = int(np.argmax(rough))
        if rough[pair] < MOST_DIFFERENCE:
            break
        middle = 0.5 * (shares[pair] + shares[pair + 1])
        rows[middle] = _fits(boards, middle, _between(rows[shares[pair]], rows[shares[pair + 1]]))
    return rows


def _onward(found: LateFit, before: LateFit, share: float) -> Array:
    """Where to begin for another share: as far from a fit, in proportion, as the likeliest one for the share before it is."""
    if before.share and abs(before.point[TIME] - found.point[TIME]) > APART:
        return found.point
    change = (found.point - before.point) * (share - found.share) / (found.share - before.share)
    change[NOISE:] = 0.0
    return found.point + change


def _roughness(one: LateFit, other: LateFit, highest: float, fit: KernelFit) -> float:
    """Difference of the log-probabilities of neighbouring shares; 0 where neither is likely, or both say the same of the sensor."""
    if max(one.log_probability, other.log_probability) < highest - NEGLIGIBLE or other.share - one.share < LEAST_STEP:
        return 0.0
    width, delay = np.abs(one.point[:NOISE] - other.point[:NOISE])
    same = width * fit.width_s < SAME_STDS * fit.width_std_s and delay < SAME_STDS * fit.delay_std_s
    return 0.0 if same else abs(one.log_probability - other.log_probability)


def _between(before: list[LateFit], after: list[LateFit]) -> list[Array]:
    """Where to search between two shares: halfway between fits that belong together, and at those that are alone."""
    starts, alone = [], list(after)
    for one in before:
        close = [other for other in after if not one.share or abs(one.point[TIME] - other.point[TIME]) < APART]
        starts += [np.append(0.5 * (one.point + other.point)[:TIME], other.point[TIME]) for other in close] or [one.point]
        alone = [other for other in alone if all(other is not near for near in close)]
    return starts + [other.point for other in alone]


def _fits(boards: LateBoards, share: float, starts: list[Array]) -> list[LateFit]:
    """The best fits for a late share that searches from different starts end in."""
    return _apart([climbed_late(boards, share, start) for start in starts])


def _apart(fits: list[LateFit]) -> list[LateFit]:
    """The likeliest of fits, each one once."""
    found: list[LateFit] = []
    for fit in sorted(fits, key=lambda fit: -fit.log_probability):
        if not any(_same(fit, other) for other in found):
            found.append(fit)
    return [fit for fit in found[:MOST_FITS] if fit.log_probability > found[0].log_probability - FAR_BEHIND]


def _same(one: LateFit, other: LateFit) -> bool:
    """Whether two fits are one: of about the same time and width; a share more takes no more than twice that from the width."""
    ln_time, ln_width = np.abs(one.point - other.point)[[TIME, WIDTH]].tolist()
    near, wide = max(APART, one.ln_time_std, other.ln_time_std), APART_LN_WIDTH + 2.0 * abs(one.share - other.share)
    return bool(ln_time < near and ln_width < wide)
