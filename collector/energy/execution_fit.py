"""What a repeated execution draws, from readings and the execution's stamps.

The power is modelled as rest + load (at once, slow rise, creep, drift) + a profile within the execution that
repeats; the readings are what the sensor makes of it.  Everything is linear but the size of the profile and the
noise, over which the answer is averaged by evidence.  So an energy's error also holds what the readings could not
see: where all updates fall on the same places of the execution, the profile elsewhere stays open, and the error says so.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.correction.response import SensorResponse
from collector.correction.updates import repeated_values
from collector.energy.execution_model import (
    EDGE_S,
    EDGES,
    ENERGIES,
    PAUSES,
    LoadBasis,
    load_basis,
    model_columns,
    question_rows,
    trace_rows,
)
from collector.errors import SensorError
from collector.sensor.load import LatePart, LoadStamps
from estimator.quantities import Array, BoolArray

PROFILE_SIZES: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Standard deviations of the profile that are tried, as shares of the load's power."""
PROFILE_SIZE: Final = 0.1
PROFILE_LN_STD: Final = 1.2
"""Prior of that size: kernels are flat within some per cent, iterations of a model vary by tens of per cent."""
SLOW_STD_SHARE: Final = 0.3
CREEP_STD_SHARE: Final = 0.1
DRIFT_STD_SHARE: Final = 0.05
"""Prior standard deviations of the slow rise, the creep and the drift through a run, as shares of the load's power:
60 to 100 % of the boards' step comes at once, 2 to 8 % creeps (published recordings)."""
FLAT_STD_FACTOR: Final = 1e3
"""Rest and load power are not known before: their prior is this many times the spread of the readings."""
TAIL_DEGREES: Final = 4.0
"""Degrees of freedom of the Student distribution of residuals: single updates may be far off."""
NOISE_DEGREES: Final = 4.0
"""Readings that the calibration's noise counts for."""
DEFAULT_NOISE_W: Final = 0.5
LEAST_NOISE_W: Final = 1e-3
STAMP_JITTER_S: Final = 3e-4
"""Jitter of an update's time where the calibration has none (0.3 to 0.5 ms in published recordings)."""
SLOPE_STEP_S: Final = 1e-3
LEAST_STEP_SHARE: Final = 0.25
"""The load's power over rest is taken for at least this share of the power."""
ROUNDS: Final = 3
BLOCKS: Final = 12
MIN_BLOCK_READINGS: Final = 3
MIN_READINGS: Final = 4
LEAST_DEGREES: Final = 3.0
TAIL_S: Final = 0.5
"""Readings are used until so long after the last execution has left the sensor's window."""
BEFORE_S: Final = 1.0
SHAPE_STD_SHARE: Final = 5e-4
"""What the columns leave out (executions that differ, the form of the rise), as a share of the energy; the scatter of
simulated runs whose own errors are far smaller."""
EDGE_STD_S: Final = 5e-4
"""How well stamps tell when the power of an execution begins after a pause, and ends before one: launch lag 0.2 to 0.45 ms
(published recordings) and blocks that fill up within a millisecond or at once.  Readings that see edges tell it better."""
LINGER_STD_SHARE: Final = 0.05
"""How well it is known what lingers in pauses, as a share of the load's power: 5 to 20 % does on published boards, by half of that
range less or more than the middle of it."""
FEW_CYCLES: Final = 3.0
"""A window of no more cycles of execution and pause sees pauses with a good part of itself, one of many with its ends alone."""
PAUSE_STD_SHARE: Final = 0.01
"""How well the columns describe the power in pauses, as a share of the load's power: 5 to 20 % of a step lingers, in a form
of its own (published recordings)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """`bins` parts of an execution; readings in the first `discard_s` of the load are left out, and so are its
    executions from the energy; `noise_w` and `jitter_s` as the calibration has them, None where it does not say; `late` is what
    of the board follows the load late; with `wide_profile` a profile of any size above PROFILE_SIZE is as likely as of that.
    """

    bins: int
    discard_s: float = 0.0
    noise_w: float | None = None
    jitter_s: float | None = None
    late: LatePart | None = None
    wide_profile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFit:
    """The fit, in the sensor's domain (gain and offset not taken out).

    `energy_j` ± `energy_std_j` is the mean energy of a kept execution, start to end, `total_j` ± `total_std_j` that
    from the first kept start to the last end.  `profile_w` ± `profile_std_w`, shape (bins,), is the power by place in
    the execution, `profile_resolution` the width that each place's value is smeared over, in bins (inf where the
    readings do not see it), `profile_size_w` the standard deviation of the profile.  `trace_w` ± `trace_std_w` is the
    power over time where it was asked for.  `predicted_w` and `used` (n,) belong to the readings given; `noise_w` is
    their scatter, `evidence` the log probability of a reading, on average.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """Design (n, p), readings (n,), prior standard deviations of the first columns, and what is asked of the solution."""

    design: Array
    ahead: Array
    value: Array
    prior_std: Array
    profile_columns: int
    ask: Array
    jitter_s: float
    noise_w: float
    noise_known: bool
    amplitude_w: float
    wide_profile: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """Posterior for one size of the profile: mean and covariance of the parameters, evidence, noise, precisions."""

    mean: Array
    covariance: Array
    evidence: float
    noise_w: float
    precision: Array
    size: float


def fit_executions(
    time_s: Array, value: Array, response: SensorResponse, load: LoadStamps, settings: FitSettings, trace_edge_s: Array | None = None
) -> ExecutionFit:
    """Energy and profile of executions from updates.

    `time_s` (n,) ascending are the updates' host times [s], `value` (n,) their readings [W]; `load` the executions.
    Between neighbouring times of `trace_edge_s` (t + 1,), where it is given, the mean power is worked out.

    Raises SensorError where too few readings lie in the load.
    """
    used = _usable(time_s, response, load, settings)
    used &= ~repeated_values(value, used)
    if np.count_nonzero(used) < MIN_READINGS:
        raise SensorError(f"only {np.count_nonzero(used)} readings lie within the load; at least {MIN_READINGS} are needed: repeat longer")
    kept = load.start_s >= load.start_s[0] + settings.discard_s
    if not np.any(kept):
        raise SensorError(f"the load ends within {settings.discard_s:.3g} s of its start, before readings have settled: repeat longer")
    basis = load_basis(load, settings.bins, float(time_s[used][-1]), settings.late)
    problem = _problem(time_s[used], value[used], response, basis, kept, settings)
    if trace_edge_s is not None:
        problem = replace(problem, ask=np.concatenate([problem.ask, trace_rows(trace_edge_s, basis, settings.late)]))
    solutions = _solutions(problem)
    evidence = np.array([solution.evidence for solution in solutions])
    probability = np.exp(evidence - evidence.max())
    probability /= probability.sum()
    means = np.array([problem.ask @ solution.mean for solution in solutions])
    mean = probability @ means
    variance = probability @ (np.array([_asked_variance(problem, solution) for solution in solutions]) + (means - mean) ** 2)
    best = solutions[int(np.argmax(probability))]
    moved = _moved_answers(problem, [_design(time_s[used], other, basis) for other in _moved(response)], best)
    std = np.sqrt(variance * _student_factor(problem) + moved**2 + (SHAPE_STD_SHARE * mean) ** 2)
    paused_j = problem.amplitude_w * _paused_s(load, kept)
    std[0] = np.hypot(std[0], LINGER_STD_SHARE * _unresolved(load, response) * paused_j / np.count_nonzero(kept))
    std[1] = np.hypot(std[1], PAUSE_STD_SHARE * paused_j)
    places = slice(ENERGIES, ENERGIES + settings.bins)
    sizes = np.array([solution.size for solution in solutions]) * problem.amplitude_w
    predicted = np.full(len(time_s), np.nan)
    predicted[used] = problem.design @ best.mean
    return ExecutionFit(
        energy_j=float(mean[0]),
        energy_std_j=float(std[0]),
        total_j=float(mean[1]),
        total_std_j=float(std[1]),
        executions=int(np.count_nonzero(kept)),
        profile_w=mean[places],
        profile_std_w=std[places],
        trace_w=mean[places.stop :],
        trace_std_w=std[places.stop :],
        profile_resolution=_resolution(problem, best, settings.bins),
        profile_size_w=float(probability @ sizes) if problem.profile_columns else 0.0,
        predicted_w=predicted,
        used=used,
        noise_w=best.noise_w,
        evidence=best.evidence / float(np.count_nonzero(used)),
    )


def expected_energy_std(time_s: Array, response: SensorResponse, load: LoadStamps, settings: FitSettings, amplitude_w: float) -> float:
    """Standard error that `fit_executions` would state for the energy of an execution [J], before anything is run.

    Updates are expected at `time_s`; `amplitude_w` is the load's power over rest, the profile of the size of
    PROFILE_SIZE.  inf where too few readings would lie in the load.
    """
    used = _usable(time_s, response, load, settings)
    kept = load.start_s >= load.start_s[0] + settings.discard_s
    if np.count_nonzero(used) < MIN_READINGS or not np.any(kept):
        return float("inf")
    basis = load_basis(load, settings.bins, float(time_s[used][-1]), settings.late)
    problem = _problem(time_s[used], np.zeros(np.count_nonzero(used)), response, basis, kept, settings, amplitude_w)
    solution = _solve(problem, PROFILE_SIZE, np.full(len(problem.value), 1.0 / problem.noise_w**2))
    return float(np.sqrt(problem.ask[0] @ solution.covariance @ problem.ask[0]))


def _usable(time_s: Array, response: SensorResponse, load: LoadStamps, settings: FitSettings) -> BoolArray:
    """Readings from a little before the load until it has left the window, those of the discarded rise left out."""
    first, last = float(load.start_s[0]), float(load.end_s[-1])
    until = min(last + response.reach_s + TAIL_S, load.known_until_s + response.delay_s)
    inside = (time_s > max(first - BEFORE_S, load.known_from_s + response.reach_s)) & (time_s < until)
    if settings.discard_s > 0.0:
        rising = (time_s > first + response.delay_s) & (time_s - response.reach_s < first + settings.discard_s)
        inside &= ~rising & (time_s < last + response.delay_s)
    return inside


def _design(time_s: Array, response: SensorResponse, basis: LoadBasis) -> Array:
    """Columns of readings through a response, shape (n, 8 + modes)."""
    return model_columns(time_s, response, basis.active, basis.shapes, basis.modes)


def _problem(
    time_s: Array,
    value: Array,
    response: SensorResponse,
    basis: LoadBasis,
    kept: BoolArray,
    settings: FitSettings,
    amplitude_w: float | None = None,
) -> _Problem:
    """The linear problem: columns, priors and questions; without `amplitude_w` the readings tell the load's power."""
    amplitude = amplitude_w or max(float(np.ptp(value)), LEAST_STEP_SHARE * float(np.abs(value).max()), 1.0)
    flat = FLAT_STD_FACTOR * amplitude
    edge = EDGE_STD_S / EDGE_S * amplitude
    shares = amplitude * np.array([SLOW_STD_SHARE, CREEP_STD_SHARE, DRIFT_STD_SHARE])
    levels = np.concatenate([[flat, flat], shares, np.full(EDGES, edge), np.full(PAUSES, LINGER_STD_SHARE * amplitude)])
    return _Problem(
        design=_design(time_s, response, basis),
        ahead=_design(time_s + SLOPE_STEP_S, response, basis),
        value=value,
        prior_std=levels,
        profile_columns=basis.modes.shape[1],
        ask=question_rows(basis.load, basis.active, kept, basis.shapes, basis.modes),
        jitter_s=settings.jitter_s if settings.jitter_s is not None else STAMP_JITTER_S,
        noise_w=settings.noise_w or DEFAULT_NOISE_W,
        noise_known=bool(settings.noise_w),
        amplitude_w=amplitude,
        wide_profile=settings.wide_profile,
    )


def _solutions(problem: _Problem) -> list[_Solution]:
    """Posteriors for every size of the profile, with common weights of the readings."""
    precision = np.full(len(problem.value), 1.0 / problem.noise_w**2)
    sizes = PROFILE_SIZES if problem.profile_columns else (PROFILE_SIZE,)
    solutions = []
    for _ in range(ROUNDS):
        solutions = [_solve(problem, size, precision) for size in sizes]
        best = max(solutions, key=lambda solution: solution.evidence)
        precision = _precision(problem, best)
    return [_solve(problem, size, precision) for size in sizes]


def _solve(problem: _Problem, size: float, precision: Array) -> _Solution:
    """The posterior for one size of the profile (a share of the load's power) and given precisions of the readings."""
    prior_std = np.concatenate([problem.prior_std, np.full(problem.profile_columns, size * problem.amplitude_w)])
    scaled = problem.design * prior_std
    weighted = scaled * precision[:, None]
    posterior = weighted.T @ scaled + np.eye(len(prior_std))
    covariance = np.linalg.inv(posterior)
    solution = covariance @ (weighted.T @ problem.value)
    residual = problem.value - scaled @ solution
    misfit = float(precision @ residual**2) + float(solution @ solution)
    evidence = 0.5 * float(np.log(precision).sum()) - 0.5 * misfit - 0.5 * float(np.linalg.slogdet(posterior)[1])
    if size < PROFILE_SIZE or not problem.wide_profile:
        evidence -= 0.5 * (np.log(size / PROFILE_SIZE) / PROFILE_LN_STD) ** 2
    return _Solution(
        mean=prior_std * solution,
        covariance=covariance * np.outer(prior_std, prior_std),
        evidence=evidence,
        noise_w=float(1.0 / np.sqrt(np.median(precision))),
        precision=precision,
        size=size,
    )


def _precision(problem: _Problem, solution: _Solution) -> Array:
    """Precisions of the readings from a solution's residuals: noise, jitter where the prediction is steep, tails."""
    residual = problem.value - problem.design @ solution.mean
    slope = (problem.ahead - problem.design) @ solution.mean / SLOPE_STEP_S
    of_jitter = (problem.jitter_s * slope) ** 2
    weighted = problem.design * solution.precision[:, None]
    used = float(np.trace(solution.covariance @ (weighted.T @ problem.design)))
    degrees = max(len(residual) - used, 0.0)
    known = NOISE_DEGREES if problem.noise_known else 1.0
    noise2 = problem.noise_w**2
    for _ in range(ROUNDS):
        weight = (TAIL_DEGREES + 1.0) / (TAIL_DEGREES + residual**2 / (noise2 + of_jitter))
        own = weight * residual**2 * noise2 / (noise2 + of_jitter)  # the part that is not jitter
        noise2 = (known * problem.noise_w**2 + float(own.sum())) / (known + degrees)
        noise2 = max(noise2, LEAST_NOISE_W**2)
    precision: Array = weight / (noise2 + of_jitter)
    return precision


def _asked_variance(problem: _Problem, solution: _Solution) -> Array:
    """Variance of every question, shape (q,): the posterior's, or that of the blocks' scores where it is larger.

    Neighbouring readings may share what no column describes; sums over blocks of them keep that.
    """
    posterior: Array = np.einsum("qp,pr,qr->q", problem.ask, solution.covariance, problem.ask)
    blocks = min(BLOCKS, len(problem.value) // MIN_BLOCK_READINGS)
    if blocks < BLOCKS // 2:
        return posterior
    residual = problem.value - problem.design @ solution.mean
    scores = problem.design * (solution.precision * residual)[:, None]
    sums = np.array([part.sum(axis=0) for part in np.array_split(scores, blocks)])
    spread = (sums @ solution.covariance) @ problem.ask[:ENERGIES].T
    scattered = (spread**2).sum(axis=0) * blocks / (blocks - 1.0)
    posterior[:ENERGIES] = np.maximum(posterior[:ENERGIES], scattered)
    return posterior


def _moved(response: SensorResponse) -> tuple[SensorResponse, SensorResponse]:
    """The response with its width, and with its delay, off by their standard errors."""
    return response.moved(width_s=response.width_std_s), response.moved(delay_s=response.delay_std_s)


def _moved_answers(problem: _Problem, designs: list[Array], best: _Solution) -> Array:
    """Standard deviation of every answer that the response's own errors cause, shape (q,)."""
    prior = np.concatenate([problem.prior_std, np.full(problem.profile_columns, best.size * problem.amplitude_w)])
    answers = []
    for design in (problem.design, *designs):
        scaled = design * prior
        weighted = scaled * best.precision[:, None]
        answers.append(problem.ask @ (prior * np.linalg.solve(weighted.T @ scaled + np.eye(len(prior)), weighted.T @ problem.value)))
    result: Array = np.sqrt(sum((answer - answers[0]) ** 2 for answer in answers[1:]))
    return result


def _paused_s(load: LoadStamps, kept: BoolArray) -> float:
    """Time between the kept executions [s]."""
    start, end = load.start_s[kept], load.end_s[kept]
    return max(float(end[-1] - start[0] - (end - start).sum()), 0.0)


def _unresolved(load: LoadStamps, response: SensorResponse) -> float:
    """How little readings tell a pause from its execution, 0 to 1: the share of a window beyond FEW_CYCLES.

    What the ends of a long window tell hangs on its width to a part of a cycle, and on the weights of a one-second mean being even.
    """
    if len(load.start_s) < 2:
        return 0.0
    return max(0.0, 1.0 - FEW_CYCLES * float(np.median(np.diff(load.start_s))) / response.width_s)


def _student_factor(problem: _Problem) -> float:
    """Variance of Student's distribution for the readings that are left to tell the noise."""
    degrees = len(problem.value) - len(problem.prior_std) + (NOISE_DEGREES if problem.noise_known else 0.0)
    return degrees / (degrees - 2.0) if degrees > LEAST_DEGREES else LEAST_DEGREES / (LEAST_DEGREES - 2.0)


def _resolution(problem: _Problem, solution: _Solution, bins: int) -> Array:
    """Bins that each place's value is smeared over: 1 / the diagonal of the resolution matrix, inf where that is 0."""
    first = len(problem.prior_std)
    modes = problem.ask[ENERGIES : ENERGIES + bins, first:]
    if modes.shape[1] == 0:
        return np.ones(bins)
    weighted = problem.design * solution.precision[:, None]
    gathered = modes @ solution.covariance[first:, :] @ weighted.T @ problem.design[:, first:]
    own = np.einsum("mp,pm->m", gathered, np.linalg.pinv(modes)) + 1.0 / bins
    with np.errstate(divide="ignore"):
        resolution: Array = np.where(own > 0.0, 1.0 / np.maximum(own, 1e-300), np.inf)
    return np.maximum(resolution, 1.0)
