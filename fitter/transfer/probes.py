"""Choice of probes, the few most informative kernels of many for a fit that starts from another GPU's bundle.

Probes are a greedy I-optimal design (`estimator.engine.design`).  Its columns are the derivatives of the fitted equations
by the coefficients, times the widths of the transferred priors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.engine.design import Design, error_covariance, greedy_choices
from estimator.model.coefficients import Prior, coefficient_vector, column_index, longest_prefix
from estimator.model.lowering import is_matrix
from estimator.model.residuals import shape_points
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, BoolArray, IntArray
from estimator.vocabulary.workload import Operator
from fitter.latency.group_fit import FIXED_WIDTH, chosen_phases, kernel_problem
from fitter.latency.groups import section_key
from fitter.latency.lent_priors import transferred_priors
from fitter.latency.sensitivities import log_measured
from fitter.priors import kernel_priors
from fitter.rows.screening import numbered

MOST_CANDIDATES: Final = 1500
"""Most candidates of a section; of more kernels, a random sample is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Candidate kernels for probes, columns of shape (n,): each at its own clock, `warm` as for `kernel_times`."""

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
    """Indices of `count` candidates, or of all if there are fewer, the most informative first.

    values: known coefficients by group, usually another GPU's.
    """
    everything = np.arange(len(candidates))
    if count >= len(candidates):
        return everything
    rng = np.random.default_rng(seed)
    keys, section_of = numbered(map(section_key, candidates.operators))
    sections: list[tuple[IntArray, Design]] = []
    for number in range(len(keys)):
        index = np.flatnonzero(section_of == number)
        pool = index if len(index) <= MOST_CANDIDATES else np.sort(rng.choice(index, MOST_CANDIDATES, replace=False))
        sections.append((pool, _design(candidates, pool, gpu, values)))
    chosen: dict[Operator, int] = {}
    for section, place in greedy_choices([design for _, design in sections]):
        candidate = int(sections[section][0][place])
        chosen.setdefault(candidates.operators[candidate], candidate)  # a kernel at a second clock follows after all kernels of its kind
        if len(chosen) == count:
            break
    return np.array(list(chosen.values()), dtype=np.int64)


def _design(candidates: Candidates, index: IntArray, gpu: GpuSpec, values: Mapping[str, Mapping[str, float]]) -> Design:
    """The design of the candidates of one section: sensitivities in widths of the priors."""
    operators = [candidates.operators[i] for i in index.tolist()]
    warm, clock_hz = candidates.warm[index], candidates.sm_clock_mhz[index] * HZ_PER_MHZ
    priors = _priors(operators[0], gpu, values, bool(warm.any()))
    names = [name for name, prior in priors.items() if prior.width >= FIXED_WIDTH]
    vector = coefficient_vector({name: prior.centre for name, prior in priors.items()})
    problem = kernel_problem(operators, gpu, sm_clock_hz=clock_hz, warm=warm)
    _, slope = log_measured(chosen_phases(problem, vector), vector, problem.sm_clock_hz, problem.ratio)
    moved = slope[:, column_index(names)] * np.array([priors[name].width for name in names])
    return Design(moved, error_covariance(shape_points(operators)))


def _priors(first: Operator, gpu: GpuSpec, values: Mapping[str, Mapping[str, float]], warm: bool) -> dict[str, Prior]:
    key = section_key(first)
    matrix = bool(is_matrix([first])[0])
    on_cuda = matrix and (first.cuda_cores or first.precision not in gpu.tensor_flop_per_clock)
    priors = kernel_priors(key, gpu, cuda_cores=on_cuda, warm=warm, one_clock=True)
    known = longest_prefix(key, values)
    return priors if known is None else transferred_priors(values[known], priors, 1.0, gpu)
