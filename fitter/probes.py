"""Which few kernels of many tell most about a GPU: probes for a fit that starts from another GPU's bundle.

What is unknown about ln(time) of two kernels has the covariance

    J diag(σ²) Jᵀ + e² · exp(−d² / 2 r²)

J = ∂ ln t / ∂ ln θ with the widths σ of the priors; e is what fitted equations still get wrong, alike for kernels whose shapes lie d
octaves apart.  Probes are taken one after the other, each time the kernel that most lowers the summed variance over all candidates
(greedy I-optimal design).  A D-optimal design, which narrows θ alone, takes kernels at the edges, where the equations err most: on
published tables it predicted the other kernels worse than random probes do.
Source: A. C. Atkinson, A. N. Donev, R. D. Tobias, Optimum Experimental Designs, with SAS (Oxford, 2007), chapters 10 and 18.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.coefficients import Prior, coefficient_vector, column_index, longest_prefix
from estimator.gpu import GpuSpec
from estimator.kernels.registry import is_matrix
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray, IntArray
from estimator.residuals import shape_points
from estimator.workload import Operator
from fitter.kernel_groups import section_key
from fitter.kernel_latency import FIXED_WIDTH, chosen_phases, kernel_problem
from fitter.priors import kernel_priors
from fitter.sensitivities import log_measured
from fitter.transfer_priors import transferred_priors

EQUATION_ERROR: Final = 0.08
"""How far the equations err from kernel to kernel once they are fitted [ln], as on published tables."""

ERROR_REACH: Final = 2.0
"""Distance at which errors of two kernels are still e^-1/2 alike [octave]."""

MEASURING_ERROR: Final = 0.02
"""Scatter of a repeated measurement [ln]."""

MOST_CANDIDATES: Final = 1500
"""Of more kernels of a section a random choice of this many are candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Kernels among which probes are chosen, columns of shape (n,): each at its own clock, `warm` as for `kernel_times`."""

    operators: tuple[Operator, ...]
    sm_clock_mhz: Array
    warm: BoolArray

    def __len__(self) -> int:
        return len(self.operators)


def choose_probes(
    candidates: Candidates,
    gpu: GpuSpec,
    values: Mapping[str, Mapping[str, float]],
    count: int,
    *,
    seed: int = 0,
) -> IntArray:
    """Indices of `count` candidates, the most telling first; all of them where there are not more.

    values: coefficients by group as far as they are known, usually another GPU's.
    """
    everything = np.arange(len(candidates))
    if count >= len(candidates):
        return everything
    rng = np.random.default_rng(seed)
    sections = []
    for index in _by_section(candidates.operators).values():
        pool = index if len(index) <= MOST_CANDIDATES else np.sort(rng.choice(index, MOST_CANDIDATES, replace=False))
        sections.append(_Section(candidates, pool, gpu, values))
    gains = [section.gains() for section in sections]
    chosen: list[int] = []
    taken: set[Operator] = set()
    while len(chosen) < count:
        best = int(np.argmax([gain.max() for gain in gains]))
        place = int(np.argmax(gains[best]))
        if not np.isfinite(gains[best][place]):
            break
        section = sections[best]
        operator = candidates.operators[section.index[place]]
        section.take(place)
        if operator not in taken:  # the same kernel at another clock is another probe only after all kernels of its kind
            chosen.append(int(section.index[place]))
            taken.add(operator)
        gains[best] = section.gains()
    return np.array(chosen, dtype=np.int64)


def _by_section(operators: Sequence[Operator]) -> dict[str, IntArray]:
    found: dict[str, list[int]] = {}
    for i, operator in enumerate(operators):
        found.setdefault(section_key(operator), []).append(i)
    return {key: np.array(index, dtype=np.int64) for key, index in found.items()}


class _Section:
    """Candidates of one section with what is known about its coefficients so far."""

    def __init__(self, candidates: Candidates, index: IntArray, gpu: GpuSpec, values: Mapping[str, Mapping[str, float]]) -> None:
        self.index = index
        operators = [candidates.operators[i] for i in index.tolist()]
        warm, clock = candidates.warm[index], candidates.sm_clock_mhz[index]
        priors = _priors(operators[0], gpu, values, bool(warm.any()))
        names = [name for name, prior in priors.items() if prior.width >= FIXED_WIDTH]
        vector = coefficient_vector({name: prior.centre for name, prior in priors.items()})
        problem = kernel_problem(operators, gpu, sm_clock_hz=clock * HZ_PER_MHZ, warm=warm)
        _, slope = log_measured(chosen_phases(problem, vector), vector, problem.sm_clock_hz, problem.ratio)
        width = np.array([priors[name].width for name in names])
        moved = slope[:, column_index(names)] * width
        points = shape_points(operators)
        squared = ((points[:, None, :] - points[None, :, :]) ** 2).sum(axis=2)
        self.covariance: Array = moved @ moved.T + EQUATION_ERROR**2 * np.exp(-squared / (2.0 * ERROR_REACH**2))
        self.free = np.ones(len(index), dtype=np.bool_)

    def gains(self) -> Array:
        """By how much each candidate would lower the summed variance of all, shape (n,); −∞ for those taken."""
        gain = (self.covariance**2).sum(axis=0) / (MEASURING_ERROR**2 + np.diag(self.covariance))
        return np.where(self.free, gain, -np.inf)

    def take(self, place: int) -> None:
        """Note that a candidate will be measured."""
        row = self.covariance[place].copy()
        self.covariance -= np.outer(row, row) / (MEASURING_ERROR**2 + row[place])
        self.free[place] = False


def _priors(first: Operator, gpu: GpuSpec, values: Mapping[str, Mapping[str, float]], warm: bool) -> dict[str, Prior]:
    key = section_key(first)
    matrix = bool(is_matrix([first])[0])
    on_cuda = matrix and (first.cuda_cores or first.precision not in gpu.tensor_flop_per_clock)
    priors = kernel_priors(key, gpu, cuda_cores=on_cuda, warm=warm, free_clock=False, one_clock=True)
    known = longest_prefix(key, values)
    return priors if known is None else transferred_priors(values[known], priors, 1.0, gpu)
