"""Power of a repeated execution: the response known, the levels unknown.

The power is a sum of parts: rest, the execution's own levels bin by bin, delayed parts and creep, a drift through the run, the
deviation in the first millisecond after a pause and after an end, and power that remains in pauses.  Each part gives its column
of readings and its energy, so that the readings' columns and the energies' rows come from one list.  The model is linear except for
the size of the profile and the noise: the result is averaged over sizes by evidence, and its error includes the unseen power.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensing.board_power import GRID_S, LAUNCH_LAG_S, LAUNCH_RISE_S, LoadStamps, Signal, load_signals, signal_of
from collector.sensing.regression import block_covariance
from collector.sensing.response import SensorResponse, drawn_in_bins, run_shares, seen
from estimator.vocabulary.quantities import Array, BoolArray

SIZES: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Tried sizes of the profile within an execution, as shares of the load's power."""
SIZE, SIZE_LN_STD = 0.1, 1.2
"""Prior of these sizes: kernels are flat within some per cent, iterations of a model vary by tens of per cent."""
DRIFT_SHARE: Final = 0.05
"""Prior of the drift of power over a load, as a share of its power."""
EDGE_S, EDGE_STD_S = 1e-3, 5e-4
"""Duration of the deviating power at starts after a pause and at ends before one, and the error of its time [s].

Lag 0.2 to 0.45 ms, rise immediate or in a millisecond (published recordings).
"""
LINGER_S, LINGER_SHARE = 0.5, 0.05
"""Duration and share of power that remains in a pause: 5 to 20 % of the step (published recordings)."""
FEW_CYCLES: Final = 3.0
"""A window of at most this many cycles of execution and pause resolves pauses with much of its length, a longer one only with its ends."""
FREEDOM, NOISE_FREEDOM = 4.0, 4.0
"""Degrees of freedom of the residuals' t distribution, and of a noise that the calibration states."""
DEFAULT_NOISE_W, LEAST_NOISE_W = 0.5, 1e-3
"""Noise of readings if the calibration states none, and the least fitted one [W]."""
DEFAULT_JITTER_S: Final = 3e-4
"""Jitter of an averaging's end if the calibration states none [s]; 0.3 to 0.5 ms on published boards."""
SLOPE_S: Final = 1e-3
"""Step of the derivative by time that turns jitter into power [s]."""
LEAST_STEP_SHARE, LEAST_SHOWN = 0.25, 0.1
"""Least scale of the levels' prior, as a share of the largest reading, and the least share of a step that readings show."""
ROUNDS, BLOCKS, MIN_READINGS = 3, 12, 4
"""Rounds of reweighting, blocks of the robust covariance, and the least readings within a load."""
LEAST_FREEDOM: Final = 3.0
"""Least degrees of freedom in the factor from a t to a normal distribution."""
BEFORE_S, TAIL_S = 1.0, 0.5
"""Readings from this long before a load until this long after its last effect are fitted [s]."""
ENERGIES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """`bins` of an execution (1: no profile); executions and readings in the first `discard_s` are left out.

    `noise_w` from the calibration, None where unknown.
    """

    bins: int
    discard_s: float = 0.0
    noise_w: float | None = None
    jitter_s: float = DEFAULT_JITTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFit:
    """The fit in the sensor's domain, gain and offset not corrected.

    `energy_j` is that of a mean kept execution, `total_j` that from the first kept start to the last end.  `profile_w` (bins,) is the
    power by place, smeared over `profile_resolution` bins (inf where unseen), of size `profile_size_w`; `trace_w` the mean power
    between the requested edges.  `predicted_w` and `used` (n,) belong to the readings; `evidence` is the log probability of one.
    """

    energy_j: float
    energy_std_j: float
    total_j: float
    total_std_j: float
    executions: int
    profile_w: Array
    profile_std_w: Array
    profile_resolution: Array
    profile_size_w: float
    trace_w: Array
    trace_std_w: Array
    predicted_w: Array
    used: BoolArray
    noise_w: float
    evidence: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the power with k levels, per watt of each: `shown` in readings at times (n,), and `drawn` before times [s]; (n, k)."""

    shown: Callable[[SensorResponse, Array], Array]
    drawn: Callable[[Array], Array]


def _rest() -> Part:
    """Power that is always present."""
    return Part(lambda _, time_s: np.ones((len(time_s), 1)), lambda time_s: time_s[:, None])


def _runs(start_s: Array, end_s: Array, bins: int = 1) -> Part:
    """Power in `bins` equal parts of runs."""
    return Part(
        lambda response, time_s: run_shares(response, start_s, end_s, bins, time_s),
        lambda time_s: drawn_in_bins(start_s, end_s, bins, time_s),
    )


def _shape(signal: Signal) -> Part:
    """Power in the form of a signal."""
    return Part(
        lambda response, time_s: seen(signal, response.kernel, response.width_s, time_s - response.delay_s)[:, None],
        lambda time_s: signal.at(time_s)[:, None],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The parts, the prior precision of their levels for a load's power of 1 W and a profile of size 1, and the profile's place."""

    parts: tuple[Part, ...]
    flat: Array
    profile: Array
    bins: slice

    def columns(self, response: SensorResponse, time_s: Array) -> Array:
        """Design matrix of readings, shape (n, levels)."""
        return np.concatenate([part.shown(response, time_s) for part in self.parts], axis=1)

    def drawn(self, from_s: Array, to_s: Array) -> Array:
        """Integrals between times (m,) [s], shape (m, levels)."""
        return np.concatenate([part.drawn(to_s) - part.drawn(from_s) for part in self.parts], axis=1)

    def precision(self, amplitude_w: float, size: float) -> Array:
        """Prior precision of the levels [1/W²], shape (levels, levels)."""
        return np.asarray((np.diag(self.flat) + self.profile / size**2) / amplitude_w**2)


def execution_model(load: LoadStamps, bins: int, from_s: float, until_s: float) -> Model:
    """The model of a load's executions for readings between two times."""
    after = np.append(True, load.start_s[1:] - load.end_s[:-1] > 1e-3)
    before = np.append(after[1:], True)
    lag = np.where(after, np.minimum(LAUNCH_LAG_S, 0.5 * load.length_s), 0.0)
    fast, *late, creep = load_signals(load, from_s, until_s)
    span = max(float(load.end_s[-1] - load.start_s[0]), GRID_S)
    place = (fast.start_s + GRID_S * (np.arange(len(fast.value)) + 0.5) - load.start_s[0]) / span - 0.5
    drift = signal_of(fast.start_s, fast.value * np.clip(place, -1.0, 1.0))
    start, end = load.start_s[after], load.end_s[before]
    following = np.append(start[1:], np.inf)
    parts: list[Part] = [_rest(), _runs(load.start_s + lag, load.end_s, bins) if bins > 1 else _shape(fast)]
    parts += [_shape(one) for one in (*late, creep, drift)]
    parts += [_runs(start, np.minimum(start + EDGE_S, load.end_s[after])), _runs(end, np.minimum(end + EDGE_S, following))]
    paused = len(start) > 1
    parts.append(_runs(end[:-1], np.minimum(end[:-1] + LINGER_S, start[1:])) if paused else _runs(end[-1:], end[-1:]))
    # Prior standard deviations as shares of the load's power; the first four are those of boost, late pole, late poles and creep (sensor.md
    # 3.2).
    stds = np.array([0.15, 0.15, 0.15, 0.1, DRIFT_SHARE, EDGE_STD_S / EDGE_S, EDGE_STD_S / EDGE_S, LINGER_SHARE])
    flat = np.concatenate([np.full(1 + bins, 1e3**-2.0 / bins), stds**-2.0])
    profile = np.zeros((len(flat), len(flat)))
    step = np.diff(np.eye(bins), axis=0)
    profile[1 : 1 + bins, 1 : 1 + bins] = step.T @ step * bins / 6.0  # so that a walk over the bins has the size as standard deviation
    return Model(parts=tuple(parts), flat=flat, profile=profile, bins=slice(1, 1 + bins))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """Design (n, levels) now and SLOPE_S later, readings (n,), questions (q, levels), and knowledge of noise and load."""

    model: Model
    design: Array
    ahead: Array
    value: Array
    ask: Array
    amplitude_w: float
    settings: FitSettings

    @property
    def noise_w(self) -> float:
        """Noise of a reading."""
        return self.settings.noise_w or DEFAULT_NOISE_W

    @property
    def known(self) -> float:
        """Degrees of freedom that the stated noise is worth."""
        return NOISE_FREEDOM if self.settings.noise_w else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """Posterior for one size of the profile."""

    level: Array
    covariance: Array
    evidence: float
    weight: Array
    size: float


def fit_executions(
    time_s: Array, value: Array, response: SensorResponse, load: LoadStamps, settings: FitSettings, trace_edge_s: Array | None = None
) -> ExecutionFit:
    """Energy and profile of executions from updates at `time_s` (n,), ascending, with readings `value` (n,).

    The fit also gives the mean power between neighbouring times of `trace_edge_s` (t + 1,).  Raises SensorError for too few readings.
    """
    used = _usable(time_s, response, load, settings)
    repeats = used & np.append(False, value[1:] == value[:-1])
    if np.count_nonzero(repeats) <= 0.1 * np.count_nonzero(used):
        used &= ~repeats
    if np.count_nonzero(used) < MIN_READINGS:
        raise SensorError(f"only {np.count_nonzero(used)} readings lie within the load; at least {MIN_READINGS} are needed: repeat longer")
    kept = load.start_s >= load.start_s[0] + settings.discard_s
    if not np.any(kept):
        raise SensorError(f"the load ends within {settings.discard_s:.3g} s of its start, before readings have settled: repeat longer")
    edges = np.zeros(0) if trace_edge_s is None else trace_edge_s
    problem = _problem(time_s[used], value[used], response, load, kept, settings, edges)
    solutions = _solutions(problem)
    evidence = np.array([solution.evidence for solution in solutions])
    share = np.exp(evidence - evidence.max())
    share /= share.sum()
    answers = np.array([problem.ask @ solution.level for solution in solutions])
    mean = share @ answers
    variance = share @ (np.array([_variance(problem, solution) for solution in solutions]) + (answers - mean) ** 2)
    best = solutions[int(np.argmax(share))]
    # Error of the parts' form, as a share of the energy: the scatter of simulated runs whose own errors are far smaller.
    std2 = variance * _student(problem) + (5e-4 * mean) ** 2
    for other in (response.moved(width_s=response.width_std_s), response.moved(delay_s=response.delay_std_s)):
        moved = _solved(replace(problem, design=problem.model.columns(other, time_s[used])), best.size, best.weight)
        std2 += (problem.ask @ (moved.level - best.level)) ** 2
    std = np.sqrt(std2)
    start, end = load.start_s[kept], load.end_s[kept]
    paused_j = problem.amplitude_w * max(float(end[-1] - start[0] - (end - start).sum()), 0.0)
    std[0] = np.hypot(std[0], LINGER_SHARE * _unresolved(load, response) * paused_j / len(start))
    # Remaining error of both edges together, times the load's power, from simulated boards of any rise.
    std[0] = np.hypot(std[0], 1.2e-4 * problem.amplitude_w * float(paused_j > 0.0))
    # Error of the parts' description of power in pauses, as a share of the load's power.
    std[1] = np.hypot(std[1], 0.01 * paused_j)
    places = slice(ENERGIES, ENERGIES + settings.bins)
    predicted = np.full(len(time_s), np.nan)
    predicted[used] = problem.design @ best.level
    sizes = np.array([solution.size for solution in solutions]) * problem.amplitude_w
    return ExecutionFit(
        energy_j=float(mean[0]),
        energy_std_j=float(std[0]),
        total_j=float(mean[1]),
        total_std_j=float(std[1]),
        executions=len(start),
        profile_w=mean[places],
        profile_std_w=std[places],
        profile_resolution=_resolution(problem, best),
        profile_size_w=float(share @ sizes) if settings.bins > 1 else 0.0,
        trace_w=mean[places.stop :],
        trace_std_w=std[places.stop :],
        predicted_w=predicted,
        used=used,
        noise_w=float(1.0 / np.sqrt(np.median(best.weight))),
        evidence=best.evidence / float(np.count_nonzero(used)),
    )


def expected_energy_std(time_s: Array, response: SensorResponse, load: LoadStamps, settings: FitSettings, amplitude_w: float) -> float:
    """Standard error that `fit_executions` would state for an execution's energy [J], before any run.

    Updates are expected at `time_s`, the load's power over rest is `amplitude_w`; inf if too few readings would lie in the load.
    """
    used = _usable(time_s, response, load, settings)
    kept = load.start_s >= load.start_s[0] + settings.discard_s
    if np.count_nonzero(used) < MIN_READINGS or not np.any(kept):
        return float("inf")
    value = np.zeros(np.count_nonzero(used))
    problem = replace(_problem(time_s[used], value, response, load, kept, settings, np.zeros(0)), amplitude_w=amplitude_w)
    solution = _solved(problem, SIZE, np.full(len(value), 1.0 / problem.noise_w**2))
    return float(np.sqrt(problem.ask[0] @ solution.covariance @ problem.ask[0]))


def _usable(time_s: Array, response: SensorResponse, load: LoadStamps, settings: FitSettings) -> BoolArray:
    """Readings from shortly before the load until it has left the window, without those of the discarded rise."""
    first, last = float(load.start_s[0]), float(load.end_s[-1])
    until = min(last + response.reach_s + TAIL_S, load.known_until_s + response.delay_s)
    inside = (time_s > max(first - BEFORE_S, load.known_from_s + response.reach_s)) & (time_s < until)
    if settings.discard_s > 0.0:
        rising = (time_s > first + response.delay_s) & (time_s - response.reach_s < first + settings.discard_s)
        inside &= ~rising & (time_s < last + response.delay_s)
    return np.asarray(inside)


def _problem(
    time_s: Array, value: Array, response: SensorResponse, load: LoadStamps, kept: BoolArray, settings: FitSettings, edges: Array
) -> _Problem:
    """The linear problem: columns and questions (energy of an execution, total, power by place, power between edges)."""
    until = max(float(time_s[-1]), float(load.end_s[-1]), float(edges[-1]) if len(edges) else 0.0) + 0.1
    model = execution_model(load, settings.bins, min(float(time_s[0]), float(load.start_s[0])), until)
    start, end = load.start_s[kept], load.end_s[kept]
    ask = [model.drawn(start, end).mean(axis=0), model.drawn(start[:1], end[-1:])[0]]
    begin, part = start + LAUNCH_RISE_S, (end - start) / settings.bins
    ask += [model.drawn(begin + m * part, begin + (m + 1) * part).mean(axis=0) / float(np.mean(part)) for m in range(settings.bins)]
    if len(edges):
        ask += list(model.drawn(edges[:-1], edges[1:]) / np.diff(edges)[:, None])
    design = model.columns(response, time_s)
    shown = max(float(np.ptp(design[:, model.bins].sum(axis=1))), LEAST_SHOWN)
    amplitude = max(float(np.ptp(value)) / shown, LEAST_STEP_SHARE * float(np.abs(value).max()), 1.0)
    return _Problem(
        model=model,
        design=design,
        ahead=model.columns(response, time_s + SLOPE_S),
        value=value,
        ask=np.array(ask),
        amplitude_w=amplitude,
        settings=settings,
    )


def _solutions(problem: _Problem) -> list[_Solution]:
    """Posteriors for every size of the profile, with common weights of the readings."""
    weight = np.full(len(problem.value), 1.0 / problem.noise_w**2)
    sizes = SIZES if problem.model.bins.stop - problem.model.bins.start > 1 else (SIZE,)
    for _ in range(ROUNDS):
        best = max((_solved(problem, size, weight) for size in sizes), key=lambda solution: solution.evidence)
        weight = _weights(problem, best)
    return [_solved(problem, size, weight) for size in sizes]


def _solved(problem: _Problem, size: float, weight: Array) -> _Solution:
    """The posterior for one size of the profile and given precisions of the readings."""
    prior = problem.model.precision(problem.amplitude_w, size)
    weighted = problem.design * weight[:, None]
    posterior = weighted.T @ problem.design + prior
    scale = np.sqrt(np.diag(posterior))
    posterior = posterior / np.outer(scale, scale)
    covariance = np.linalg.inv(posterior) / np.outer(scale, scale)
    level = covariance @ (weighted.T @ problem.value)
    residual = problem.value - problem.design @ level
    misfit = float(weight @ residual**2) + float(level @ prior @ level)
    volume = float(np.linalg.slogdet(posterior)[1] + 2.0 * np.log(scale).sum())
    steps = problem.model.bins.stop - problem.model.bins.start - 1
    evidence = 0.5 * float(np.log(weight).sum()) - 0.5 * misfit - 0.5 * volume - steps * float(np.log(size))
    evidence -= 0.5 * (min(np.log(size / SIZE), 0.0) / SIZE_LN_STD) ** 2
    return _Solution(level=level, covariance=covariance, evidence=evidence, weight=weight, size=size)


def _weights(problem: _Problem, solution: _Solution) -> Array:
    """Precisions of the readings from a solution's residuals: noise, jitter where the prediction is steep, tails."""
    residual = problem.value - problem.design @ solution.level
    of_jitter = (problem.settings.jitter_s * ((problem.ahead - problem.design) @ solution.level) / SLOPE_S) ** 2
    taken = float(np.sum((problem.design @ solution.covariance) * (problem.design * solution.weight[:, None])))
    freedom = max(len(residual) - taken, 0.0)
    known = problem.known or 1.0
    noise2 = problem.noise_w**2
    for _ in range(ROUNDS):
        tail = (FREEDOM + 1.0) / (FREEDOM + residual**2 / (noise2 + of_jitter))
        own = tail * residual**2 * noise2 / (noise2 + of_jitter)
        noise2 = max((known * problem.noise_w**2 + float(own.sum())) / (known + freedom), LEAST_NOISE_W**2)
    return np.asarray(tail / (noise2 + of_jitter))


def _variance(problem: _Problem, solution: _Solution) -> Array:
    """Variance of every question (q,): the posterior's; for energies the variance from the blocks' scores if it is larger."""
    variance = np.einsum("qp,pr,qr->q", problem.ask, solution.covariance, problem.ask)
    if len(problem.value) < 6 * BLOCKS // 2:
        return np.asarray(variance)
    residual = problem.value - problem.design @ solution.level
    scores = problem.design * (solution.weight * residual)[:, None]
    scattered = block_covariance(solution.covariance, scores, BLOCKS)
    energies = problem.ask[:ENERGIES]
    variance[:ENERGIES] = np.maximum(variance[:ENERGIES], np.einsum("qp,pr,qr->q", energies, scattered, energies))
    return np.asarray(variance)


def _unresolved(load: LoadStamps, response: SensorResponse) -> float:
    """Degree to which readings cannot separate a pause from its execution, 0 to 1: the share of a window beyond FEW_CYCLES."""
    if len(load.start_s) < 2:
        return 0.0
    return max(0.0, 1.0 - FEW_CYCLES * float(np.median(np.diff(load.start_s))) / response.width_s)


def _student(problem: _Problem) -> float:
    """Variance of Student's distribution for the readings that remain to determine the noise."""
    few = problem.design.shape[1] - (problem.model.bins.stop - problem.model.bins.start)
    freedom = len(problem.value) - few + problem.known
    return freedom / (freedom - 2.0) if freedom > LEAST_FREEDOM else LEAST_FREEDOM / (LEAST_FREEDOM - 2.0)


def _resolution(problem: _Problem, solution: _Solution) -> Array:
    """Number of bins over which each place's value is smeared: 1 / the diagonal of the resolution matrix, inf where that is 0."""
    own = np.diag(solution.covariance @ (problem.design * solution.weight[:, None]).T @ problem.design)[problem.model.bins]
    with np.errstate(divide="ignore"):
        return np.maximum(np.where(own > 0.0, 1.0 / np.maximum(own, 1e-300), np.inf), 1.0)
