"""Power over time from readings alone: the sensor's averaging taken out as far as the readings allow.

The power is a random walk in short steps, the readings are its averages; the walk's size is chosen by evidence.
Where the averages tile time (a boxcar as long as the update period, or a slow low-pass) the answer is well determined; where the
sensor looks away between updates, what it missed is as uncertain as the walk, and the stated errors say so.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.correction.block_tridiagonal import Factored, factored, inverse_diagonal, solved
from collector.correction.response import SensorResponse
from collector.errors import SensorError
from estimator.quantities import Array, IntArray

STEPS_PER_WINDOW: Final = 2.0
"""Steps of the walk to a window or an update period, whichever is shorter."""
LEAST_STEP_S: Final = 2e-3
MOST_STEPS: Final = 12_000
MOST_STEPS_A_READING: Final = 80
"""A longer recording, or averaging, gets coarser steps; bounds memory (about 200 MB) and time."""
MOST_WEIGHTS: Final = 1_000_000
"""Updates far shorter than the averaging are taken together, so that readings times steps stay below this."""
LEAST_BLOCK: Final = 48
WALK_SIZES: Final = tuple(float(size) for size in np.geomspace(0.02, 3.0, 7))
"""Standard deviations of the walk over an update period that are tried, as shares of the readings' spread."""
LEAST_SPREAD_W: Final = 0.1
ANCHOR_FACTOR: Final = 1e3
"""The walk's start is not known: its prior is this many times the readings' spread around their mean."""
DEFAULT_NOISE_W: Final = 0.5
WELL_POSED_SHARE: Final = 0.9
"""Averages tile time where the window is at least this share of the update period."""
UNSEEN_STD_SHARE: Final = 0.05
"""What a load that repeats near the update period may hide from a sensor that looks away, as a share of the energy: 5.2 %
in the recorded A100 square wave (104 ms against 101 ms)."""
MOST_REACH_SPANS: Final = 3.0
"""An averaging that reaches back for more than so many recordings is not taken out."""
MIN_READINGS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Deconvolved:
    """Power over time, in the sensor's domain: means between neighbouring times of `edge_s` (n + 1,), `power_w` ± `std_w` (n,).

    `resolution_s` is the time for which there is one independent value on average, `energy_j` ± `energy_std_j` the
    integral over the span that was asked for, `well_posed` whether the sensor's averages tile time.
    """

    edge_s: Array
    power_w: Array
    std_w: Array
    resolution_s: float
    energy_j: float
    energy_std_j: float
    well_posed: bool
    evidence: float


def is_well_posed(response: SensorResponse, period_s: float) -> bool:
    """Whether averages of this width, one each period, leave no time unseen."""
    return response.width_s >= WELL_POSED_SHARE * period_s


def deconvolve(
    time_s: Array, value: Array, response: SensorResponse, period_s: float, noise_w: float | None, start_s: float, end_s: float
) -> Deconvolved:
    """Power from updates at `time_s` (n,), ascending, with readings `value` (n,), and its energy from `start_s` to `end_s`.

    Raises SensorError for too few updates.
    """
    if len(time_s) < MIN_READINGS:
        raise SensorError(f"only {len(time_s)} updates; at least {MIN_READINGS} are needed to take an averaging out")
    if response.reach_s > MOST_REACH_SPANS * (end_s - start_s):
        raise SensorError(
            f"the recording lasts {end_s - start_s:.3g} s and the sensor averages over {response.width_s:.3g} s: record for longer"
        )
    edges = _edges(time_s, response, period_s, start_s, end_s)
    gathered = -(-len(time_s) * math.ceil(response.reach_s / float(edges[1] - edges[0])) // MOST_WEIGHTS)
    if gathered > 1:
        time_s, value = _means(time_s, gathered), _means(value, gathered)
    step = float(edges[1] - edges[0])
    first, weight = _weights(time_s, response, edges)
    size = max(weight.shape[1], LEAST_BLOCK)
    blocks = -(-(len(edges) - 1) // size)
    centre = float(np.mean(value))
    spread = max(float(np.std(value)), noise_w or DEFAULT_NOISE_W, LEAST_SPREAD_W)
    noise = max(noise_w or DEFAULT_NOISE_W, 1e-3 * spread) / math.sqrt(max(gathered, 1))
    data = _data_blocks(first, weight, value - centre, noise, blocks, size)
    misfit = float(((value - centre) ** 2).sum()) / noise**2
    best: tuple[float, Factored, Array, float] | None = None
    for share in WALK_SIZES:
        walk = share * spread * math.sqrt(step / period_s)
        diagonal, beside = _with_walk(data.diagonal, data.beside, walk, ANCHOR_FACTOR * spread, blocks * size)
        matrix = factored(diagonal, beside)
        mean = solved(matrix, data.right)
        evidence = -0.5 * (misfit - float((data.right * mean).sum())) - 0.5 * matrix.log_determinant - blocks * size * np.log(walk)
        if best is None or evidence > best[0]:
            best = (evidence, matrix, mean, walk)
    assert best is not None  # there are sizes to try
    evidence, matrix, mean, walk = best
    count = len(edges) - 1
    inverse = inverse_diagonal(matrix)
    variance = np.einsum("bii->bi", inverse).ravel()[:count]
    span = np.clip(edges[1:], start_s, end_s) - np.clip(edges[:-1], start_s, end_s)
    asked = np.zeros(blocks * size)
    asked[:count] = span
    energy = float(asked @ mean.ravel()) + centre * float(span.sum())
    energy_variance = float(asked @ solved(matrix, asked.reshape(blocks, size)).ravel())
    unseen = UNSEEN_STD_SHARE * max(0.0, 1.0 - response.width_s / (WELL_POSED_SHARE * period_s)) * abs(energy)
    return Deconvolved(
        edge_s=edges,
        power_w=mean.ravel()[:count] + centre,
        std_w=np.sqrt(variance),
        resolution_s=_resolution_s(inverse, data.diagonal, step, count),
        energy_j=energy,
        energy_std_j=math.sqrt(max(energy_variance, 0.0) + unseen**2),
        well_posed=is_well_posed(response, period_s),
        evidence=evidence / len(value),
    )


def _means(values: Array, count: int) -> Array:
    """Means of `count` neighbours each; the last ones that make no full group are one of their own."""
    starts = np.arange(0, len(values), count)
    result: Array = np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
    return result


def _edges(time_s: Array, response: SensorResponse, period_s: float, start_s: float, end_s: float) -> Array:
    """Times between which power is taken for constant, covering all readings' windows and the span asked for."""
    begin = min(start_s, float(time_s[0]) - response.reach_s)
    end = max(end_s, float(time_s[-1]) - response.delay_s)
    fine = min(response.width_s, period_s) / STEPS_PER_WINDOW
    step = max(fine, LEAST_STEP_S, (end - begin) / MOST_STEPS, response.reach_s / MOST_STEPS_A_READING)
    number: Array = np.arange(int(np.ceil((end - begin) / step)) + 1, dtype=np.float64)
    return begin + step * number


def _weights(time_s: Array, response: SensorResponse, edges: Array) -> tuple[IntArray, Array]:
    """First step that each reading sees (n,), and its share of that step and the following ones, shape (n, width)."""
    step = float(edges[1] - edges[0])
    count = len(edges) - 1
    until = time_s - response.delay_s
    width = int(np.ceil((response.reach_s - response.delay_s) / step)) + 2
    width = min(width, count)
    last = np.clip(np.floor((until - edges[0]) / step).astype(np.int64), 0, count - 1)
    first = np.clip(last - width + 1, 0, count - width)
    place = first[:, None] + np.arange(width + 1)
    reached = np.minimum(edges[0] + step * place, until[:, None])
    if response.kernel == "boxcar":
        share = np.diff(np.maximum(reached, (until - response.width_s)[:, None]), axis=1)
    else:
        share = np.diff(np.exp((reached - until[:, None]) / (0.5 * response.width_s)), axis=1)
    total = share.sum(axis=1, keepdims=True)
    return first, share / np.where(total > 0.0, total, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """Normal equations of the readings: blocks on the diagonal (b, s, s), beside it (b − 1, s, s), right side (b, s)."""

    diagonal: Array
    beside: Array
    right: Array


def _data_blocks(first: IntArray, weight: Array, value: Array, noise_w: float, blocks: int, size: int) -> _Data:
    """Normal equations; a reading sees at most two neighbouring blocks."""
    diagonal, beside, right = np.zeros((blocks, size, size)), np.zeros((max(blocks - 1, 0), size, size)), np.zeros((blocks, size))
    scaled, target = weight / noise_w, value / noise_w
    for block in np.unique(first // size).tolist():
        rows = np.flatnonzero(first // size == block)
        wide = np.zeros((len(rows), 2 * size))
        wide[np.arange(len(rows))[:, None], (first[rows] - block * size)[:, None] + np.arange(weight.shape[1])] = scaled[rows]
        normal, moment = wide.T @ wide, wide.T @ target[rows]
        diagonal[block] += normal[:size, :size]
        right[block] += moment[:size]
        if block + 1 < blocks:
            beside[block] += normal[:size, size:]
            diagonal[block + 1] += normal[size:, size:]
            right[block + 1] += moment[size:]
    return _Data(diagonal=diagonal, beside=beside, right=right)


def _with_walk(diagonal: Array, beside: Array, walk_w: float, anchor_w: float, count: int) -> tuple[Array, Array]:
    """The normal equations with the precision of a random walk of steps `walk_w`, its start within `anchor_w`."""
    size = diagonal.shape[1]
    inner = np.full(count, 2.0 / walk_w**2)
    inner[0] = 1.0 / walk_w**2 + 1.0 / anchor_w**2
    inner[-1] -= 1.0 / walk_w**2
    result, right = diagonal.copy(), beside.copy()
    index = np.arange(size)
    result[:, index, index] += inner.reshape(-1, size)
    result[:, index[:-1], index[1:]] -= 1.0 / walk_w**2
    result[:, index[1:], index[:-1]] -= 1.0 / walk_w**2
    right[:, -1, 0] -= 1.0 / walk_w**2
    return result, right


def _resolution_s(inverse: Array, normal: Array, step_s: float, count: int) -> float:
    """Time span over the trace of the resolution matrix: the time for which there is one independent value."""
    within = np.einsum("bij,bji->bi", inverse, normal).ravel()[:count]
    values = float(np.clip(within, 0.0, 1.0).sum())
    return float(step_s * count / max(values, 1.0))
