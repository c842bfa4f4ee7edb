"""Power over time from readings alone: the response is known, the power is a random walk in short steps, with a size set by the evidence.

Where averages tile time the result is well determined; where the sensor does not see the time between updates, the unseen power is as
uncertain as the walk, and the stated errors include this.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded, solveh_banded
from scipy.sparse import csr_array

from collector.errors import SensorError
from collector.sensing.board_power import LAUNCH_LAG_S, LAUNCH_RISE_S
from collector.sensing.response import SensorResponse
from collector.sensing.updates import BoardUpdates, fresh
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

WALKS: Final = (0.006, 0.02, 0.05, 0.11, 0.25, 0.57, 1.3, 3.0)
"""Tried standard deviations of the walk over an update period, as shares of the readings' spread."""
FREE_WALK: Final = 100.0
"""Standard deviation of the walk over a stamp, as a share of the readings' spread: long averages show little of a step."""
LEAST_SPREAD_W, DEFAULT_NOISE_W = 0.1, 0.5
WELL_POSED_SHARE: Final = 0.9
"""Averages tile time where the window is at least this share of the update period."""
UNSEEN_SHARE: Final = 0.05
"""Share of energy that a load repeating near the update period may hide from a sensor with gaps: 5.2 % on the recorded A100."""
CHUNK: Final = 240
"""Updates that are solved together, besides margins; the result does not depend on it."""


@frozen
class Deconvolved:
    """Power in the sensor's domain: means between neighbouring times of `edge_s` (n + 1,), `power_w` ± `std_w` (n,).

    `resolution_s` is the time per independent value, `energy_j` ± `energy_std_j` the integral over the requested
    span.  `evidence` is the log probability of the readings.  `parts_j` ± `parts_std_j` are the
    energies of the requested parts, shape (q,), without the errors of power between averages and in holes.
    """

    edge_s: Array
    power_w: Array
    std_w: Array
    resolution_s: float
    energy_j: float
    energy_std_j: float
    evidence: float
    parts_j: Array
    parts_std_j: Array


Spans = tuple[Array, Array]
"""Starts and ends of spans of time [s], each ascending, shape (n,); they may overlap."""


def deconvolve(
    updates: BoardUpdates,
    response: SensorResponse,
    noise_w: float | None,
    start_s: float,
    end_s: float,
    *,
    stamps_s: Sequence[float] = (),
    parts: Sequence[Spans] = (),
) -> Deconvolved:
    """Power from updates, and its energy from `start_s` to `end_s`, and in `parts` of that time.

    At `stamps_s`, ascending, the power may step: between them the walk is then as small as the readings allow.

    Raises SensorError for too few updates, and for a recording shorter than a third of the sensor's memory.
    """
    new = fresh(updates.value)
    time_s, value, period_s = updates.time_s[new], updates.value[new], updates.period_s
    if len(time_s) < 3:
        raise SensorError(f"only {len(time_s)} updates; at least 3 are needed to take an averaging out")
    if response.reach_s > 3.0 * (end_s - start_s):
        raise SensorError(
            f"the recording lasts {end_s - start_s:.3g} s and the sensor averages over {response.width_s:.3g} s: record for longer"
        )
    steps_s = np.asarray(stamps_s, dtype=np.float64) + LAUNCH_LAG_S + LAUNCH_RISE_S  # a step in place of a rise
    edge = _edges(updates, response, start_s, end_s, steps_s)
    cell_s = np.diff(edge)
    weight = _weights(time_s - response.delay_s, response, edge)
    centre, spread = float(np.mean(value)), max(float(np.std(value)), noise_w or DEFAULT_NOISE_W, LEAST_SPREAD_W)
    noise = max(noise_w or DEFAULT_NOISE_W, 1e-3 * spread)
    data = _banded(weight) / noise**2
    toward = (weight.T @ (value - centre)) / noise**2
    apart = 0.5 * (cell_s[1:] + cell_s[:-1]) / period_s
    apart[np.isin(edge[1:-1], steps_s)] = np.inf
    walks = spread * np.array(WALKS)
    walked = (_walked(data, toward, apart, spread, walk_w) for walk_w in walks.tolist())
    evidence, band, root, level = max(walked, key=lambda one: one[0])
    variance, own = _diagonals(band, data)
    span = np.diff(np.clip(edge, start_s, end_s))
    asked = np.array([covered_s(edge, part) for part in parts]).reshape(len(parts), len(cell_s))
    energy = float(span @ level) + centre * float(span.sum())
    energy_var = float(span @ cho_solve_banded((root, True), span))
    parts_j = asked @ level + centre * asked.sum(axis=1)
    parts_var = np.sum(asked.T * cho_solve_banded((root, True), asked.T), axis=0)
    hidden = UNSEEN_SHARE * unseen_share(response, period_s) * abs(energy)
    unread = unread_std_j(updates, response, start_s, end_s)
    return Deconvolved(
        edge_s=edge,
        power_w=level + centre,
        std_w=np.sqrt(variance),
        resolution_s=float(edge[-1] - edge[0]) / max(own, 1e-9),
        energy_j=energy,
        energy_std_j=math.sqrt(max(energy_var, 0.0) + hidden**2 + unread**2),
        evidence=evidence - 0.5 * float(((value - centre) ** 2).sum()) / noise**2,
        parts_j=parts_j,
        parts_std_j=np.sqrt(np.maximum(parts_var, 0.0)),
    )


def _edges(updates: BoardUpdates, response: SensorResponse, start_s: float, end_s: float, stamps_s: Array) -> Array:
    """Edges of cells from before the first average to the last one [s]: equal ones, cut where a stamp falls into them."""
    time_s = updates.time_s
    first, last = min(start_s, float(time_s[0]) - response.reach_s), max(end_s, float(time_s[-1]) - response.delay_s)
    step = max(min(response.width_s, updates.period_s) / 2.0, 2e-3, (last - first) / 12_000, response.reach_s / 60)
    equal = first + step * np.arange(int(np.ceil((last - first) / step)) + 1, dtype=np.float64)
    return np.union1d(equal, stamps_s[(stamps_s > first) & (stamps_s < equal[-1])])


def unseen_share(response: SensorResponse, period_s: float) -> float:
    """Share of the time between updates that no average contains; 0 if averages tile time."""
    return max(0.0, 1.0 - response.width_s / (WELL_POSED_SHARE * period_s))


def covered_s(edge_s: Array, spans: Spans) -> Array:
    """Time of spans within each cell between ascending edges (n + 1,) [s], shape (n,); overlapping spans count each."""
    total = np.zeros(len(edge_s))
    for times, sign in zip(spans, (1.0, -1.0), strict=True):
        sums = np.concatenate([[0.0], np.cumsum(times - edge_s[0])])
        before = np.searchsorted(times, edge_s, side="right")
        total += sign * (before * (edge_s - edge_s[0]) - sums[before])
    return np.diff(total)


def unread_std_j(updates: BoardUpdates, response: SensorResponse, begin_s: float, end_s: float) -> float:
    """Standard error of an energy from power that no update saw, in holes of the polls [J].

    In a hole the power may be any of the readings' values: taken for one bound while any is as likely, it is off by range / √3.
    """
    until, period_s = updates.time_s - response.delay_s, updates.period_s
    apart = np.diff(until)
    hole = np.where(apart - max(response.width_s, period_s) > 0.5 * period_s, apart - response.width_s, 0.0)
    inside = np.clip(until[:-1] + hole, begin_s, end_s) - np.clip(until[:-1], begin_s, end_s)
    return float(np.linalg.norm(inside) * np.ptp(updates.value)) / math.sqrt(3.0)


def _weights(end_s: Array, response: SensorResponse, edge_s: Array) -> csr_array:
    """Shares of readings, with averaging ends `end_s` (n,), that lie between edges, shape (n, bins); rows add up to 1."""
    count = len(edge_s) - 1
    last = np.clip(np.searchsorted(edge_s, end_s, side="right") - 1, 0, count - 1)
    wide = int(np.max(last - np.searchsorted(edge_s, end_s - (response.reach_s - response.delay_s)), initial=0)) + 1
    edge = last[:, None] + 1 - np.arange(wide + 2)
    age = np.clip(end_s[:, None] - edge_s[np.clip(edge, 0, count)], 0.0, None) / response.width_s
    share = np.diff(-np.expm1(-2.0 * age) if response.kernel == "low-pass" else np.minimum(age, 1.0), axis=1)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
    row = np.repeat(np.arange(len(end_s)), wide + 1)
    return csr_array((share.ravel(), (row, np.clip(edge[:, 1:], 0, count - 1).ravel())), shape=(len(end_s), count))


def _banded(weight: csr_array) -> Array:
    """weightᵀ · weight in lower banded form, shape (band, bins)."""
    square = csr_array(weight.T @ weight)
    row, column = square.nonzero()
    reach = max(int((row - column).max(initial=0)), 1)
    return np.stack([np.pad(square.diagonal(-k), (0, k)) for k in range(reach + 1)])


def _walked(data: Array, toward: Array, apart: Array, spread_w: float, walk_w: float) -> tuple[float, Array, Array, Array]:
    """Solution for one size of the walk over a period: its evidence up to a constant, normal matrix, Cholesky root and levels (n,).

    `apart` (n - 1,): distances of cells' middles in periods, infinite where the walk crosses freely.
    """
    band, linked = data.copy(), np.isfinite(apart)
    link = 1.0 / np.where(linked, walk_w**2 * apart, (FREE_WALK * spread_w) ** 2)
    band[0, :-1] += link
    band[0, 1:] += link
    band[1, :-1] -= link
    band[0] += (1e-3 / spread_w) ** 2 / data.shape[1]  # a weak prior on the level
    root = cholesky_banded(band, lower=True)
    level = cho_solve_banded((root, True), toward)
    evidence = 0.5 * float(toward @ level) - float(np.log(root[0]).sum()) - int(np.count_nonzero(linked)) * math.log(walk_w)
    return evidence, band, root, level


def _diagonals(band: Array, data: Array) -> tuple[Array, float]:
    """Diagonal of the inverse (n,), and the trace of the resolution matrix, from overlapping stretches of the banded matrix."""
    count, reach = band.shape[1], band.shape[0] - 1
    margin = max(60, 2 * reach)
    diagonal, own = np.empty(count), 0.0
    for begin in range(0, count, CHUNK):
        low, high = max(begin - margin, 0), min(begin + CHUNK + margin, count)
        inverse = solveh_banded(band[:, low:high], np.eye(high - low), lower=True)
        column = np.arange(begin, min(begin + CHUNK, count))
        row = np.minimum(column + np.arange(reach + 1)[:, None], high - 1)
        near = inverse[row - low, column - low]
        diagonal[column] = near[0]
        own += float(2.0 * np.sum(near * data[:, column]) - near[0] @ data[0, column])
    return diagonal, own
