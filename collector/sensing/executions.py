"""Power of a repeated execution: the response known, the levels unknown.

The power is a sum of signals: rest, the execution's own levels bin by bin, delayed parts and creep, and the deviation in the first
millisecond after a pause and after an end.  Each signal gives its column of readings and its energy.  The model is linear except for
the size of the profile and the noise: evidence decides between sizes, and the error includes the unseen power.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensing.board_power import (
    LAUNCH_LAG_S,
    LAUNCH_RISE_S,
    LoadStamps,
    Signal,
    load_signals,
    run_cells,
    signal_of,
    smoothed,
)
from collector.sensing.response import SensorResponse, seen
from collector.sensing.updates import BoardUpdates, fresh
from estimator.vocabulary.quantities import Array, BoolArray
from estimator.vocabulary.values import frozen

BINS: Final = 32
"""Parts of an execution."""
SIZES: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Tried sizes of the profile within an execution, as shares of the load's power."""
SIZE, SIZE_LN_STD = 0.1, 1.2
"""Prior of these sizes: kernels are flat within some per cent, iterations of a model vary by tens of per cent."""
EDGE_S, EDGE_STD_S = 1e-3, 5e-4
"""Duration of the deviating power at starts after a pause and at ends before one, and the error of its time [s].

Lag 0.2 to 0.45 ms, rise immediate or in a millisecond (published recordings).
"""
LINGER_SHARE: Final = 0.05
"""Share of power that remains in a pause: 5 to 20 % of the step (published recordings)."""
FEW_CYCLES: Final = 3.0
"""A window of at most this many cycles of execution and pause resolves pauses with much of its length, a longer one only with its ends."""
DEFAULT_NOISE_W, LEAST_NOISE_W = 0.5, 1e-3
"""Noise of readings if the calibration states none, and the least fitted one [W]."""
SLOPE_S: Final = 1e-3
"""Step of the derivative by time that turns jitter into power [s]."""
LEAST_STEP_SHARE, LEAST_SHOWN = 0.25, 0.1
"""Least scale of the levels' prior, as a share of the largest reading, and the least share of a step that readings show."""
ROUNDS, MIN_READINGS = 3, 4
"""Rounds of reweighting, and the least readings within a load."""
BEFORE_S, TAIL_S = 1.0, 0.5
"""Readings from this long before a load until this long after its last effect are fitted [s]."""
ENERGIES: Final = 2


@frozen
class ExecutionFit:
    """The fit in the sensor's domain, gain and offset not corrected.

    `energy_j` is that of a mean kept execution, `total_j` that from the first kept start to the last end; `trace_w` the mean power
    between the requested edges.  `predicted_w` and `used` (n,) belong to the readings; `evidence` is the log probability of one.
    """

    energy_j: float
    energy_std_j: float
    total_j: float
    total_std_j: float
    trace_w: Array
    trace_std_w: Array
    predicted_w: Array
    used: BoolArray
    noise_w: float
    evidence: float


def execution_signals(load: LoadStamps, bins: int, from_s: float, until_s: float) -> Iterator[Signal]:
    """The parts of a load's power beside rest, for readings between two times: `bins` of the execution, then six others."""
    fast, *late, creep = load_signals(load, from_s, until_s)

    def runs(start_s: Array, end_s: Array) -> Signal:
        cells = run_cells(start_s, end_s, np.ones(len(start_s)), fast.start_s, len(fast.value))
        return signal_of(fast.start_s, smoothed(cells, LAUNCH_RISE_S))

    after = np.append(True, load.start_s[1:] - load.end_s[:-1] > 1e-3)
    before = np.append(after[1:], True)
    if bins == 1:
        yield fast
    else:
        begin = load.start_s + np.where(after, np.minimum(LAUNCH_LAG_S, 0.5 * load.length_s), 0.0)
        part = (load.end_s - begin) / bins
        yield from (runs(begin + m * part, begin + (m + 1) * part) for m in range(bins))
    yield from (*late, creep)
    start, end = load.start_s[after], load.end_s[before]
    yield runs(start, np.minimum(start + EDGE_S, load.end_s[after]))
    yield runs(end, np.minimum(end + EDGE_S, np.append(start[1:], np.inf)))


@frozen
class _Problem:
    """Design (n, levels), its slopes in time [1/s], the `moved` designs by the errors of width and delay; readings (n,); questions `ask`.

    `flat` and `profile` are the prior precision of the levels for a load's power of 1 W and a profile of size 1.
    """

    design: Array
    slope: Array
    moved: tuple[Array, ...]
    value: Array
    ask: Array
    flat: Array
    profile: Array
    bins: int
    amplitude_w: float
    noise_w: float
    jitter_s: float


@frozen
class _Solution:
    """Posterior for one size of the profile."""

    level: Array
    covariance: Array
    evidence: float
    weight: Array
    size: float


def fit_executions(
    updates: BoardUpdates,
    response: SensorResponse,
    load: LoadStamps,
    *,
    noise_w: float | None = None,
    discard_s: float = 0.0,
    trace_edge_s: Array | None = None,
) -> ExecutionFit:
    """Energy of executions; those that start in the first `discard_s`, and readings there, are left out.

    `noise_w` is the readings' noise, None where unknown.  The fit also gives the mean power between neighbouring times of `trace_edge_s`
    (t + 1,).  Raises SensorError for too few readings.
    """
    time_s, value = updates.time_s, updates.value
    used = _usable(time_s, response, load, discard_s)
    used &= fresh(value)
    count = int(np.count_nonzero(used))
    if count < MIN_READINGS:
        raise SensorError(f"only {count} readings lie within the load; at least {MIN_READINGS} are needed: repeat longer")
    kept = load.start_s >= load.start_s[0] + discard_s
    if not np.any(kept):
        raise SensorError(f"the load ends within {discard_s:.3g} s of its start, before readings have settled: repeat longer")
    edges = np.zeros(0) if trace_edge_s is None else trace_edge_s
    problem = _problem(replace(updates, time_s=time_s[used], value=value[used]), noise_w, response, load, kept, edges)
    best = _likeliest(problem)
    mean = problem.ask @ best.level
    # Error of the parts' form, as a share of the energy: the scatter of simulated runs whose own errors are far smaller.
    std2 = np.einsum("qp,pr,qr->q", problem.ask, best.covariance, problem.ask) + (5e-4 * mean) ** 2
    for design in problem.moved:
        moved = _solved(replace(problem, design=design), best.size, best.weight)
        std2 += (problem.ask @ (moved.level - best.level)) ** 2
    std = np.sqrt(std2)
    start, end = load.start_s[kept], load.end_s[kept]
    paused_j = problem.amplitude_w * max(float(end[-1] - start[0] - (end - start).sum()), 0.0)
    std[0] = np.hypot(std[0], LINGER_SHARE * _unresolved(load, response) * paused_j / len(start))
    # Remaining error of both edges together, times the load's power, from simulated boards of any rise.
    std[0] = np.hypot(std[0], 1.2e-4 * problem.amplitude_w * float(paused_j > 0.0))
    # Error of the parts' description of power in pauses, as a share of the load's power.
    std[1] = np.hypot(std[1], 0.01 * paused_j)
    predicted = np.full(len(time_s), np.nan)
    predicted[used] = problem.design @ best.level
    return ExecutionFit(
        energy_j=float(mean[0]),
        energy_std_j=float(std[0]),
        total_j=float(mean[1]),
        total_std_j=float(std[1]),
        trace_w=mean[ENERGIES:],
        trace_std_w=std[ENERGIES:],
        predicted_w=predicted,
        used=used,
        noise_w=float(1.0 / np.sqrt(np.median(best.weight))),
        evidence=best.evidence / count,
    )


def _usable(time_s: Array, response: SensorResponse, load: LoadStamps, discard_s: float) -> BoolArray:
    """Readings from shortly before the load until it has left the window, without those of the discarded rise."""
    first, last = float(load.start_s[0]), float(load.end_s[-1])
    until = min(last + response.reach_s + TAIL_S, load.known_until_s + response.delay_s)
    inside = (time_s > max(first - BEFORE_S, load.known_from_s + response.reach_s)) & (time_s < until)
    if discard_s > 0.0:
        rising = (time_s > first + response.delay_s) & (time_s - response.reach_s < first + discard_s)
        inside &= ~rising & (time_s < last + response.delay_s)
    return inside


def _problem(
    updates: BoardUpdates, noise_w: float | None, response: SensorResponse, load: LoadStamps, kept: BoolArray, edges: Array
) -> _Problem:
    """The linear problem: columns and questions (energy of an execution, total, power between edges)."""
    time_s, value = updates.time_s, updates.value
    bins = BINS if load.alike else 1
    first = min(float(time_s[0]), float(load.start_s[0]))
    until = max(float(time_s[-1]), float(load.end_s[-1]), float(edges[-1]) if len(edges) else 0.0) + 0.1
    views = [(response, time_s), (response, time_s + SLOPE_S)]
    views += [(response.moved(width_s=response.width_std_s), time_s), (response.moved(delay_s=response.delay_std_s), time_s)]
    start, end = load.start_s[kept], load.end_s[kept]
    moments = np.concatenate([start, end, edges])
    columns, drawn = [[np.ones(len(time_s)) for _ in views]], [moments]
    for signal in execution_signals(load, bins, first, until):
        columns.append([seen(signal, one.kernel, one.width_s, times - one.delay_s) for one, times in views])
        drawn.append(signal.at(moments))
    design, ahead, *moved = (np.column_stack(one) for one in zip(*columns, strict=True))
    starts, ends, between = np.split(np.column_stack(drawn), [len(start), 2 * len(start)])
    ask = [(ends - starts).mean(axis=0)[None], ends[-1:] - starts[:1]]
    if len(edges):
        ask.append(np.diff(between, axis=0) / np.diff(edges)[:, None])
    shown = max(float(np.ptp(design[:, 1 : 1 + bins].sum(axis=1))), LEAST_SHOWN)
    # Prior standard deviations as shares of the load's power, of boost, late pole, late poles, creep (sensor.md 3.2), and both edges.
    stds = np.array([0.15, 0.15, 0.15, 0.1, EDGE_STD_S / EDGE_S, EDGE_STD_S / EDGE_S])
    flat = np.concatenate([np.full(1 + bins, 1e3**-2.0 / bins), stds**-2.0])
    profile = np.zeros((len(flat), len(flat)))
    step = np.diff(np.eye(bins), axis=0)
    profile[1 : 1 + bins, 1 : 1 + bins] = step.T @ step * bins / 6.0  # so that a walk over the bins has the size as standard deviation
    return _Problem(
        design=design,
        slope=(ahead - design) / SLOPE_S,
        moved=tuple(moved),
        value=value,
        ask=np.concatenate(ask),
        flat=flat,
        profile=profile,
        bins=bins,
        amplitude_w=max(float(np.ptp(value)) / shown, LEAST_STEP_SHARE * float(np.abs(value).max()), 1.0),
        noise_w=noise_w or DEFAULT_NOISE_W,
        jitter_s=updates.time_std_s,
    )


def _likeliest(problem: _Problem) -> _Solution:
    """The posterior for the likeliest size of the profile."""
    weight = np.full(len(problem.value), 1.0 / problem.noise_w**2)
    sizes = SIZES if problem.bins > 1 else (SIZE,)
    for _ in range(ROUNDS + 1):
        best = max((_solved(problem, size, weight) for size in sizes), key=lambda solution: solution.evidence)
        weight = _weights(problem, best)
    return best


def _solved(problem: _Problem, size: float, weight: Array) -> _Solution:
    """The posterior for one size of the profile and given precisions of the readings."""
    prior = (np.diag(problem.flat) + problem.profile / size**2) / problem.amplitude_w**2
    weighted = problem.design * weight[:, None]
    posterior = weighted.T @ problem.design + prior
    scale = np.sqrt(np.diag(posterior))
    posterior = posterior / np.outer(scale, scale)
    covariance = np.linalg.inv(posterior) / np.outer(scale, scale)
    level = covariance @ (weighted.T @ problem.value)
    residual = problem.value - problem.design @ level
    misfit = float(weight @ residual**2) + float(level @ prior @ level)
    volume = float(np.linalg.slogdet(posterior)[1] + 2.0 * np.log(scale).sum())
    evidence = 0.5 * float(np.log(weight).sum()) - 0.5 * misfit - 0.5 * volume - (problem.bins - 1) * float(np.log(size))
    evidence -= 0.5 * (min(np.log(size / SIZE), 0.0) / SIZE_LN_STD) ** 2
    return _Solution(level=level, covariance=covariance, evidence=evidence, weight=weight, size=size)


def _weights(problem: _Problem, solution: _Solution) -> Array:
    """Precisions of the readings from a solution's residuals: noise, and jitter where the prediction is steep.

    No reading counts less because it is far off: short parts of an execution are seen by few readings.
    """
    residual = problem.value - problem.design @ solution.level
    of_jitter = (problem.jitter_s * (problem.slope @ solution.level)) ** 2
    taken = float(np.sum((problem.design @ solution.covariance) * (problem.design * solution.weight[:, None])))
    freedom = max(len(residual) - taken, 0.0)
    known2 = noise2 = problem.noise_w**2  # as good as one reading
    for _ in range(ROUNDS):
        own = residual**2 * noise2 / (noise2 + of_jitter)
        noise2 = max((known2 + float(own.sum())) / (1.0 + freedom), LEAST_NOISE_W**2)
    return 1.0 / (noise2 + of_jitter)


def _unresolved(load: LoadStamps, response: SensorResponse) -> float:
    """Degree to which readings cannot separate a pause from its execution, 0 to 1: the share of a window beyond FEW_CYCLES."""
    if len(load.start_s) < 2:
        return 0.0
    return max(0.0, 1.0 - FEW_CYCLES * float(np.median(np.diff(load.start_s))) / response.width_s)
