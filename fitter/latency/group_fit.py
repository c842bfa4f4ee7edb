"""Latency coefficients of one group from kernels measured one by one.

The tile of a matrix product is known from its kernel's name, or it is the candidate of least predicted time, as a library chooses.
Tiles and coefficients depend on each other, so the fit alternates between them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from estimator.model.coefficients import Prior, coefficient_vector, column_index
from estimator.model.phases import Phases
from estimator.model.timeline import kernel_seconds, measured_seconds
from estimator.vocabulary.quantities import Array, BoolArray
from estimator.vocabulary.values import frozen
from fitter.latency.objective import Solution, solve
from fitter.latency.sensitivities import log_measured
from fitter.priors import FLOOR_WIDTH, IDENTIFIED_SHRINKAGE, LIMITS, WIDEST_SHIFT, Priors

ERROR_SCALE: Final = 0.05
"""Ordinary relative error of a kernel; errors well beyond it count linearly."""

DURATION_WEIGHT: Final = 0.2
"""Exponent of a row's time in its weight: long kernels dominate the time of a workload, but short ones outnumber them.  Products larger
than all fitted ones have an error of 4.1 % with it and 4.9 % without (linear layers, A100)."""

INFORMATIVE_ROWS: Final = 600.0
"""Upper limit of the effective number of rows: kernels of a kind have similar errors."""

TILE_ROUNDS: Final = 5
"""Alternations of tile choice and coefficients; the choice usually settles after about four."""

SETTLED: Final = 0.995
MORE_ROUNDS: Final = 13
"""Further rounds run, up to this many, while each lowers the objective to below this share.  If starting coefficients choose other tiles
than the library, each round corrects only some.  400 fp32 batched products on A100 without names: error 6 % with, 15 % without."""

FIXED_WIDTH: Final = 1e-3
"""A coefficient with a narrower prior is a constant."""

FLOOR_QUANTILE: Final = 0.02
"""The shortest times of a group are this quantile of all."""

FLOOR_SHARE: Final = 0.02
"""A smaller share of the rows near the shortest time is no floor, as are few rows."""

HOST_FLOOR_S: Final = 20e-6
"""A longer floor is a host's launch time; a kernel's own fixed cost is shorter [s]."""

SHORTEST_EPSILON: Final = 0.3
LARGEST_EPSILON: Final = 0.8
"""The fixed cost of a kernel starts between these shares of its prior and of the shortest time."""

EPSILON_WIDTH: Final = 0.7
"""Least width of the prior of the fixed cost of a kernel [ln]."""


@frozen
class KernelProblem:
    """Kernels of one group, columns of shape (n,): `candidates` (n, c, ·) holds the possible tiles of each kernel.

    settled marks rows with a known tile, which is their first candidate.  choice_hz is the clock for which libraries choose tiles;
    it does not depend on the running clock.
    """

    candidates: Phases
    settled: BoolArray
    choice_hz: float
    sm_clock_hz: Array
    ratio: Array
    latency_s: Array
    weight: Array

    def __len__(self) -> int:
        return len(self.latency_s)


@frozen
class GroupFit:
    """Coefficients of one group, their covariance, and how they were determined.

    coefficients   every coefficient of the group, fitted or constant
    names, covariance   fitted ones and the covariance of their logarithms
    identified     whether the data determine it, not the prior, by name
    rows           number of fitted kernels
    """

    coefficients: Mapping[str, float]
    names: tuple[str, ...]
    covariance: Array
    identified: Mapping[str, bool]
    rows: int

    @property
    def ln_std(self) -> dict[str, float]:
        """Standard deviation of the logarithm of each fitted coefficient."""
        return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))


def chosen_phases(problem: KernelProblem, coefficients: Array) -> Phases:
    """Phases of each kernel with its known tile, else with the tile that is fastest at the libraries' clock."""
    count, width = problem.candidates.tile_area.shape
    if width == 1 or problem.settled.all():
        return problem.candidates.take(np.zeros(count, dtype=np.int64))
    seconds = kernel_seconds(problem.candidates, coefficients, problem.choice_hz)
    return problem.candidates.take(np.where(problem.settled, 0, seconds.argmin(axis=1)))


def predicted_seconds(problem: KernelProblem, coefficients: Mapping[str, float]) -> Array:
    """Predicted time that the measuring host reads for each kernel [s], shape (n,)."""
    vector = coefficient_vector(coefficients)
    gpu_s = kernel_seconds(chosen_phases(problem, vector), vector, problem.sm_clock_hz, problem.ratio)
    return measured_seconds(gpu_s, vector)


def fit_group(
    problem: KernelProblem, priors: Mapping[str, Prior], *, start: Mapping[str, float] | None = None, rounds: int = TILE_ROUNDS
) -> GroupFit:
    """Fit the coefficients of one group.  A few rows suffice: coefficients that they do not determine stay at the priors.

    start: starting coefficients from a similar fit; by default the priors' centres.
    """
    host_known = "floor_s" in priors
    priors = _with_host(problem, dict(priors))
    names = tuple(name for name, prior in priors.items() if prior.width >= FIXED_WIDTH)
    centre = coefficient_vector({name: prior.centre for name, prior in priors.items()})
    first = np.zeros(len(names))
    if start is not None:
        whole = dict(start) if "offset_s" in priors else {**start, "epsilon_s": start["epsilon_s"] + start.get("offset_s", 0.0)}
        first = np.array([np.log(max(whole.get(name, priors[name].centre), 1e-300) / priors[name].centre) for name in names])
    fit = _Fit(problem, names, priors, centre)
    solution = fit.run(rounds, first)
    values = fit.vector(solution.log_shift)[column_index(priors)]
    coefficients = dict(zip(priors, values.tolist(), strict=True))
    spread = np.sqrt(np.diag(solution.covariance))
    identified = {name: bool(s < IDENTIFIED_SHRINKAGE * priors[name].width) for name, s in zip(names, spread, strict=True)}
    return GroupFit(
        coefficients=_split_host(problem, coefficients, host_known=host_known),
        names=names,
        covariance=solution.covariance,
        identified=identified,
        rows=len(problem),
    )


class _Fit:
    """The alternation of tile choice and least squares; holds its fixed inputs."""

    def __init__(self, problem: KernelProblem, names: tuple[str, ...], priors: Mapping[str, Prior], centre: Array) -> None:
        self.problem = problem
        self.columns = column_index(names)
        self.centre = centre
        self.width = np.array([priors[name].width for name in names])
        self.limits = _log_limits(names, priors)

    def run(self, rounds: int, start: Array) -> Solution:
        """Alternate between choosing tiles and solving until the choice settles; known tiles are not chosen."""
        shift = np.clip(start, *self.limits)
        known = self.problem.settled.all() or self.problem.candidates.tile_area.shape[1] == 1
        for _ in range(0 if known else rounds - 1):
            shift = self.solve(shift, 12).log_shift
        cost = np.inf
        for _ in range(1 if known else MORE_ROUNDS):
            solution = self.solve(shift, 30)
            if solution.cost > SETTLED * cost:
                break
            shift, cost = solution.log_shift, solution.cost
        return solution

    def vector(self, shift: Array) -> Array:
        """All coefficients at a shift of the fitted ones."""
        vector = self.centre.copy()
        vector[self.columns] *= np.exp(shift)
        return vector

    def solve(self, start: Array, evaluations: int) -> Solution:
        """Least squares with the tiles of the start held."""
        part, phases = self.problem, chosen_phases(self.problem, self.vector(start))

        def model(shift: Array) -> tuple[Array, Array]:
            log_s, slopes = log_measured(phases, self.vector(shift), part.sm_clock_hz, part.ratio)
            return log_s, slopes[:, self.columns]

        return solve(
            model,
            np.log(part.latency_s),
            self.width,
            scale=ERROR_SCALE,
            weight=row_weights(part.latency_s, part.weight),
            start=start,
            evaluations=evaluations,
            limits=self.limits,
        )


def row_weights(latency_s: Array, weight: Array) -> Array:
    """Weights of rows relative to each other and, as a sum, relative to the priors; shape (n,)."""
    relative = weight * (latency_s / np.median(latency_s)) ** DURATION_WEIGHT
    result: Array = relative / relative.mean() * INFORMATIVE_ROWS / (INFORMATIVE_ROWS + len(weight))
    return result


def _log_limits(names: Sequence[str], priors: Mapping[str, Prior]) -> tuple[Array, Array]:
    """Bounds of ln θ − ln θ₀."""
    centre = np.array([priors[name].centre for name in names])
    reach = WIDEST_SHIFT * np.array([priors[name].width for name in names])
    limits = np.array([LIMITS.get(name, (priors[name].lowest, np.inf)) for name in names]).reshape(-1, 2)
    with np.errstate(divide="ignore"):
        low, high = np.log(limits / centre[:, None]).T
    return np.minimum(np.maximum(low, -reach), -1e-9), np.maximum(np.minimum(high, reach), 1e-9)


def _with_host(problem: KernelProblem, priors: Priors) -> Priors:
    """Add priors of the fixed cost and, if many kernels take the same shortest time, of the host's floor."""
    if "offset_s" in priors:  # known from the fit of the whole section
        return priors
    shortest = float(np.quantile(problem.latency_s, FLOOR_QUANTILE))
    # Rows near the shortest times show a host's launch floor, if they are many.
    near = int((problem.latency_s < 1.15 * shortest).sum())
    if "floor_s" not in priors and near >= max(10, FLOOR_SHARE * len(problem)):
        priors["floor_s"] = Prior(centre=shortest, width=FLOOR_WIDTH)
    epsilon = priors["epsilon_s"]
    if "floor_s" in priors and shortest > HOST_FLOOR_S:
        # This share of a host's floor usually passes before the kernel starts.
        start = 0.6 * shortest
    else:
        without = coefficient_vector({name: prior.centre for name, prior in priors.items()} | {"epsilon_s": 0.0, "floor_s": 0.0})
        rest = problem.latency_s - kernel_seconds(chosen_phases(problem, without), without, problem.sm_clock_hz, problem.ratio)
        low, high = SHORTEST_EPSILON * epsilon.centre, max(LARGEST_EPSILON * shortest, SHORTEST_EPSILON * epsilon.centre)
        start = float(np.clip(np.quantile(rest, 2.0 * FLOOR_QUANTILE), low, high))
    priors["epsilon_s"] = Prior(centre=start, width=max(epsilon.width, EPSILON_WIDTH))
    return priors


def _split_host(problem: KernelProblem, coefficients: dict[str, float], *, host_known: bool) -> dict[str, float]:
    """Drop a floor that no kernel reaches; below a host's floor assign most of the fixed cost to the host, unless its part is known."""
    floor, epsilon = coefficients.get("floor_s", 0.0), coefficients["epsilon_s"]
    if not floor or coefficients.get("offset_s"):
        return coefficients
    if not host_known and (predicted_seconds(problem, coefficients) <= floor).mean() < FLOOR_SHARE:
        return {name: value for name, value in coefficients.items() if name != "floor_s"}
    if floor > HOST_FLOOR_S and epsilon > KERNEL_EPSILON_S:
        return coefficients | {"epsilon_s": KERNEL_EPSILON_S, "offset_s": epsilon - KERNEL_EPSILON_S}
    return coefficients


KERNEL_EPSILON_S: Final = 3.0e-6
"""Fixed cost of a kernel on the GPU, if a measurement cannot separate it from the host's share [s]."""
