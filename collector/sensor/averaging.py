"""How a sensor averages: boxcar, low-pass or not at all, decided by evidence.

Every update is compared with what each kernel would have made of the load; amplitudes (an offset, power that
follows at once, a slow rise, creep) are solved inside, width and delay are searched.  A kernel is named only
where the record can tell it from the others: otherwise the answer is "undetermined", with the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensor.load import BIN_S, LoadShapes, LoadStamps, load_shapes, pole
from collector.sensor.search import curvature_covariance, zoom_maximum
from collector.sensor.update_clock import Updates
from estimator.quantities import Array

KERNELS: Final = ("boxcar", "low-pass", "none")
TRAILING_MEAN_PERIODS: Final = 2.5
TRAILING_MEAN_S: Final = 0.5
"""A boxcar longer than both is the one-second trailing mean of newer drivers."""

DELAY_LIMIT_S: Final = 0.014
"""Delays searched, either sign: a reader stamps up to some milliseconds early."""
SEARCH_ROUNDS: Final = 7
"""Rounds of the search from a start point; the last grid is 0.4 % of the first."""
STEADY_SHARE: Final = 0.01
MIN_STEADY: Final = 15
"""Updates count as steady where the expectation moves by less than this share; so many are needed."""
STEP_SPAN_S: Final = 4.0
"""Span over which the response to a step is worked out; longer than any averaging seen."""
DELAY_STEP: Final = np.array([5e-4])
LN_WIDTH_STEP: Final = np.array([0.01])
"""Finite differences for standard errors [s], [1]."""
TAIL_DEGREES: Final = 4.0
"""Degrees of freedom of the Student distribution of residuals: single updates may be far off."""
JITTERS_S: Final = (1e-4, 4e-4, 8e-4, 1.6e-3)
"""Update jitter tried; it counts where the predicted reading is steep."""
JITTER_PRIOR_S: Final = 6e-4
JITTER_PRIOR_LN_STD: Final = 1.2
SLOPE_STEP_S: Final = BIN_S
RIDGE: Final = 1e-12
NOISE_FACTORS: Final = (0.4, 0.7, 0.85, 1.0, 1.2)
"""Reading noise tried, in units of the residuals' spread."""
CLAIM_LEAD: Final = 8.0
"""Log-likelihood by which a kernel must lead the next one."""
CLAIM_BLOCKS_Z: Final = {False: 2.0, True: 1.6}
"""Lead over blocks of the record in standard deviations (True: boxcar against low-pass with `none` far behind).
One informative block gives 1, two give 1.41: a lone step can never decide.  Rates of error: 0 of 61 sensors."""
CLAIM_NONE_BEHIND: Final = 20.0
CLAIM_R2: Final = 0.8
CLAIM_EDGES: Final = 8
CLAIM_PHASE_HOLE: Final = 0.15
"""Largest hole in the updates' phases within the load's period; beyond, the load is locked to the clock."""
SHORT_WIDTH_S: Final = 3e-3
"""Below this width a kernel is hard to tell from none; more evidence is asked for."""
BLOCKS: Final = 12
STD_FACTOR: Final = 2.0
STD_FLOOR_S: Final = 3e-4
"""What the formal standard error leaves out (edges, board rise); with both, 15 of 16 simulated sensors are covered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """The best fit of one kernel: `width_s` is a boxcar's W or a low-pass's 2τ, 0 for none.

    `amplitude_w` are offset, fast, slow and creeping power; `score` the penalised log-likelihood, `terms` its
    parts by update, `noise_w` the scatter of readings while the load
    was steady.
    """

    kernel: str
    width_s: float
    width_std_s: float
    delay_s: float
    delay_std_s: float
    amplitude_w: Array
    score: float
    terms: Array
    noise_w: float
    r2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """The decision: `kind` boxcar, low-pass, trailing-mean, none or undetermined; why, where undetermined; all fits, best first."""

    kind: str
    reason: str
    fits: tuple[KernelFit, ...]


def fit_averaging(updates: Updates, load: LoadStamps, period_s: float) -> Averaging:
    """Which kernel explains the updates under a load.

    `updates` on the host's clock, `load` the runs (one kernel, one clock), `period_s` the update period.
    """
    inside = (updates.time_s > load.start_s[0] - 1.0) & (updates.time_s < load.end_s[-1] + 1.0)
    time_s, value = updates.time_s[inside], updates.value[inside]
    shapes = load_shapes(load, float(time_s[-1]))
    fits = tuple(sorted((_fit_kernel(kernel, shapes, time_s, value, period_s) for kernel in KERNELS), key=lambda fit: -fit.score))
    reason = _doubt(fits, time_s, load)
    best = fits[0]
    if reason:
        kind = "undetermined"
    elif best.kernel == "boxcar" and best.width_s > max(TRAILING_MEAN_PERIODS * period_s, TRAILING_MEAN_S):
        kind = "trailing-mean"
    else:
        kind = best.kernel
    return Averaging(kind=kind, reason=reason, fits=fits)


def step_response(fit: KernelFit, creep: bool) -> tuple[Array, Array]:
    """What readings make of a load that begins at 0: times [s] and their rise [W], shape (n,) each.

    Without `creep` the creeping part is left out: what is left has an end.
    """
    time_s = np.arange(0.0, STEP_SPAN_S, 1e-3)
    shapes = load_shapes(LoadStamps(start_s=np.zeros(1), end_s=np.array([STEP_SPAN_S])), STEP_SPAN_S)
    columns = _filters(fit.kernel, shapes)(fit.width_s * (0.5 if fit.kernel == "low-pass" else 1.0), time_s - fit.delay_s)
    used = slice(1, 4 if creep else 3)
    return time_s, columns[:, used] @ fit.amplitude_w[used]


def _fit_kernel(kernel: str, shapes: LoadShapes, time_s: Array, value: Array, period_s: float) -> KernelFit:
    """The best width and delay of one kernel."""
    columns_of = _filters(kernel, shapes)
    delays = np.linspace(-DELAY_LIMIT_S, DELAY_LIMIT_S, 15)

    def scores(points: Array) -> Array:
        """Log-likelihood at points (log width, delay), shape (g, 2) → (g,)."""
        result = np.empty(len(points))
        for width in np.unique(points[:, 0]):
            rows = np.flatnonzero(points[:, 0] == width)
            times = time_s[None, :] - points[rows, 1:2]
            ahead = columns_of(float(np.exp(width)), times + SLOPE_STEP_S)
            result[rows] = _likelihood(columns_of(float(np.exp(width)), times), ahead, value).total
        return np.where(np.abs(points[:, 1]) <= 1.001 * DELAY_LIMIT_S, result, -np.inf)

    widths = np.log(_start_widths(kernel, period_s))
    grid = np.stack(np.meshgrid(widths, delays, indexing="ij"), axis=-1).reshape(-1, 2)
    start_scores = scores(grid)
    step = float(np.median(np.diff(widths))) if len(widths) > 1 else 0.0
    half_width = np.array([step, delays[1] - delays[0]])
    candidates = [zoom_maximum(scores, start, half_width, rounds=SEARCH_ROUNDS) for start in _two_best(grid, start_scores, half_width)]
    point, _ = max(candidates, key=lambda item: item[1])
    times, parameter = time_s[None, :] - point[1], float(np.exp(point[0]))
    design = columns_of(parameter, times)
    found = _likelihood(design, columns_of(parameter, times + SLOPE_STEP_S), value)
    predicted = np.einsum("gnc,gc->gn", design, found.amplitude)[0]
    width = parameter * {"none": 0.0, "low-pass": 2.0, "boxcar": 1.0}[kernel]
    spread = _formal_spread(scores, point, kernel)
    return KernelFit(
        kernel=kernel,
        width_s=width,
        width_std_s=float(np.hypot(STD_FACTOR * spread[0] * width, STD_FLOOR_S)) if kernel != "none" else STD_FLOOR_S,
        delay_s=float(point[1]),
        delay_std_s=float(np.hypot(STD_FACTOR * spread[-1], STD_FLOOR_S)),
        amplitude_w=found.amplitude[0],
        score=float(found.total[0]) - (0.0 if kernel == "none" else 0.5 * np.log(len(value))),
        terms=found.terms[0],
        noise_w=_steady_noise(value - predicted, predicted),
        r2=float(1.0 - np.sum((value - predicted) ** 2) / max(np.sum((value - value.mean()) ** 2), 1e-12)),
    )


def _steady_noise(residual: Array, predicted: Array) -> float:
    """Scatter of readings where neither this update nor the next one sees the load change [W]."""
    steady = np.abs(np.diff(predicted)) < STEADY_SHARE * np.ptp(predicted)
    differences = np.diff(residual)[steady]
    if len(differences) < MIN_STEADY:
        differences = np.diff(residual)
    return float(1.4826 * np.median(np.abs(differences)) / np.sqrt(2.0))


def _start_widths(kernel: str, period_s: float) -> Array:
    """Widths (boxcar) or time constants (low-pass) to start from [s], ascending; dense where a load near lock makes a needle."""
    if kernel == "none":
        return np.array([1.0])
    if kernel == "low-pass":
        return np.geomspace(6e-4, max(min(0.4, 5.0 * period_s), 2e-3), 40)
    dense = [
        np.linspace(1 - span, 1 + span, count) * part * period_s for part, span, count in ((1, 0.06, 25), (0.5, 0.06, 9), (0.25, 0.06, 7))
    ]
    return np.unique(np.concatenate([np.geomspace(8e-4, 12.0 * period_s, 40), *dense]))


def _filters(kernel: str, shapes: LoadShapes) -> Callable[[float, Array], Array]:
    """A function (width [s], times [s], shape (g, n)) → columns (g, n, 4): ones and the filtered shapes."""
    count = shapes.shapes.shape[1]
    centre = shapes.origin_s + BIN_S * (np.arange(count) + 0.5)
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(shapes.shapes, axis=1)], axis=1) * BIN_S
    edge = shapes.origin_s + BIN_S * np.arange(count + 1)
    spectrum = shapes.spectrum() if kernel == "low-pass" else None

    def columns(width: float, time_s: Array) -> Array:
        result = np.ones((*time_s.shape, 4))
        if spectrum is not None:
            filtered = np.fft.irfft(spectrum * pole(count, width), n=count, axis=1)
        for i in range(3):
            if kernel == "boxcar":
                result[..., i + 1] = (np.interp(time_s, edge, sums[i]) - np.interp(time_s - width, edge, sums[i])) / width
            elif spectrum is not None:
                result[..., i + 1] = np.interp(time_s, centre, filtered[i])
            else:
                result[..., i + 1] = np.interp(time_s, centre, shapes.shapes[i])
        return result

    return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Likelihood:
    """Log-likelihood (g,), its parts (g, n), amplitudes (g, 4)."""

    total: Array
    terms: Array
    amplitude: Array


def _likelihood(design: Array, ahead: Array, value: Array) -> _Likelihood:
    """Student likelihood of the readings; amplitudes solved, noise and jitter the best of a grid.

    `design` (g, n, 4) are the columns, `ahead` the same SLOPE_STEP_S later: jitter acts through the slope, and
    without it the ramps would decide alone.
    """
    weight = np.ones(design.shape[:2])
    slope_design = (ahead - design) / SLOPE_STEP_S
    for _ in range(2):
        amplitude = _amplitudes(design, value, weight)
        residual = value - np.einsum("gnc,gc->gn", design, amplitude)
        slope2 = np.einsum("gnc,gc->gn", slope_design, amplitude) ** 2
        scale2 = (1.4826 * np.median(np.abs(residual), axis=1, keepdims=True)) ** 2 + 1e-6
        total, terms, variance = np.full(len(design), -np.inf), np.empty_like(residual), np.empty_like(residual)
        for factor in NOISE_FACTORS:
            for jitter in JITTERS_S:
                tried = factor**2 * scale2 + jitter**2 * slope2
                density = -0.5 * np.log(tried) - 0.5 * (TAIL_DEGREES + 1.0) * np.log1p(residual**2 / tried / TAIL_DEGREES)
                score = density.sum(axis=1) - 0.5 * (np.log(jitter / JITTER_PRIOR_S) / JITTER_PRIOR_LN_STD) ** 2
                better = score > total
                total = np.where(better, score, total)
                terms[better], variance[better] = density[better], tried[better]
        weight = (TAIL_DEGREES + 1.0) / (TAIL_DEGREES + residual**2 / variance) / variance
    return _Likelihood(total=total, terms=terms, amplitude=amplitude)


def _amplitudes(design: Array, value: Array, weight: Array) -> Array:
    """Weighted least squares with slow rise and creep not negative, shape (g, 4): the best of all sets of columns."""
    weighted = design * weight[..., None]
    normal = np.einsum("gnc,gnd->gcd", weighted, design)
    moment = np.einsum("gnc,n->gc", weighted, value)
    best = np.zeros(moment.shape)
    best_loss = np.full(len(design), np.inf)
    for columns in ((0, 1, 2, 3), (0, 1, 2), (0, 1, 3), (0, 1)):
        index = np.ix_(range(len(design)), columns, columns)
        part = normal[index]
        ridge = RIDGE * np.trace(part, axis1=1, axis2=2)[:, None, None] * np.eye(len(columns))
        solved = np.zeros(moment.shape)
        solved[:, columns] = np.linalg.solve(part + ridge, moment[:, columns, None])[..., 0]
        loss = np.einsum("gc,gcd,gd->g", solved, normal, solved) - 2.0 * np.einsum("gc,gc->g", solved, moment)
        better = (solved[:, 2] >= 0.0) & (solved[:, 3] >= 0.0) & (loss < best_loss)
        best[better], best_loss[better] = solved[better], loss[better]
    return best


def _two_best(grid: Array, scores: Array, half_width: Array) -> list[Array]:
    """The best grid point, and the best one that is not its neighbour."""
    first = grid[int(np.argmax(scores))]
    apart = np.any(np.abs(grid - first) > 1.5 * np.maximum(half_width, 1e-12), axis=1)
    if not np.any(apart):
        return [first]
    return [first, grid[int(np.argmax(np.where(apart, scores, -np.inf)))]]


def _formal_spread(scores: Callable[[Array], Array], point: Array, kernel: str) -> tuple[float, float]:
    """Standard errors of (log width, delay) from the curvature at the maximum; wide where there is none."""
    if kernel == "none":
        variance = curvature_covariance(
            lambda delay: scores(np.stack([np.full(len(delay), point[0]), delay[:, 0]], axis=1)), point[1:], np.array([5e-4])
        )
        return 0.0, _root(variance[0, 0], DELAY_LIMIT_S)
    covariance = curvature_covariance(scores, point, np.array([0.01, 5e-4]))
    return _root(covariance[0, 0], 0.5), _root(covariance[1, 1], DELAY_LIMIT_S)


def _root(variance: float, otherwise: float) -> float:
    return float(np.sqrt(variance)) if np.isfinite(variance) else otherwise


def _doubt(fits: tuple[KernelFit, ...], time_s: Array, load: LoadStamps) -> str:
    """Why no kernel can be named, or an empty text."""
    best, runner = fits[0], fits[1]
    lead = best.score - runner.score
    z = _block_z(best.terms - runner.terms)
    averaging_pair = {best.kernel, runner.kernel} == {"boxcar", "low-pass"} and best.score - fits[2].score > CLAIM_NONE_BEHIND
    needed = 3.0 if best.width_s < SHORT_WIDTH_S and best.kernel != "none" else CLAIM_BLOCKS_Z[averaging_pair]
    if load.edges < CLAIM_EDGES:
        return f"the load has {load.edges} edges; at least {CLAIM_EDGES} tell kernels apart"
    if best.r2 < CLAIM_R2:
        return f"the best kernel explains {best.r2:.0%} of the variance; something else moved the power"
    hole = _phase_hole(time_s - best.delay_s, load)
    if hole > CLAIM_PHASE_HOLE:
        return f"the load is locked to the update clock: {hole:.0%} of its period is never seen; change the load's period"
    if abs(best.delay_s) > 0.98 * DELAY_LIMIT_S:
        return f"the delay lies at its bound, {best.delay_s * 1e3:.1f} ms"
    if lead < CLAIM_LEAD or z < needed:
        return f"{best.kernel} and {runner.kernel} explain the readings about equally well (lead {lead:.1f}, {z:.1f} standard deviations)"
    return ""


def _block_z(difference: Array) -> float:
    """Sum of a difference over blocks of the record in units of its own scatter."""
    blocks = max(2, min(BLOCKS, len(difference) // 6))
    sums = np.array([part.sum() for part in np.array_split(difference, blocks)])
    scatter = float(np.sqrt(np.sum(sums**2)))
    return float(sums.sum() / scatter) if scatter > 0 else 0.0


def _phase_hole(time_s: Array, load: LoadStamps) -> float:
    """Largest hole in the updates' places within the load's cycles, as a share of a cycle."""
    cycle = np.searchsorted(load.start_s, time_s, side="right") - 1
    inside = (cycle >= 0) & (cycle < len(load.start_s) - 1)
    if inside.sum() < 2:
        return 1.0
    start, following = load.start_s[cycle[inside]], load.start_s[cycle[inside] + 1]
    place = np.sort((time_s[inside] - start) / (following - start))
    return float(np.max(np.diff(np.append(place, place[0] + 1.0))))
