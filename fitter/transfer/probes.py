"""Choice of probes, the few most informative kernels of many for a fit that starts from another GPU's bundle.

Probes are a greedy I-optimal design (`estimator.engine.design`).  Its columns are the derivatives of the fitted equations
by the coefficients, times the widths of the transferred priors.
"""

from collections.abc import Mapping, Sequence
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
    sections = []
    for index in _by_section(candidates.operators).values():
        pool = index if len(index) <= MOST_CANDIDATES else np.sort(rng.choice(index, MOST_CANDIDATES, replace=False))
        sections.append(_Section(candidates, pool, gpu, values))
    chosen: list[int] = []
    taken: set[Operator] = set()
    for section, place in greedy_choices([one.design for one in sections]):
        number = int(sections[section].index[place])
        operator = candidates.operators[number]
        if operator not in taken:  # a kernel at a second clock follows after all kernels of its kind
            chosen.append(number)
            taken.add(operator)
        if len(chosen) == count:
            break
    return np.array(chosen, dtype=np.int64)


def _by_section(operators: Sequence[Operator]) -> dict[str, IntArray]:
    found: dict[str, list[int]] = {}
    for i, operator in enumerate(operators):
        found.setdefault(section_key(operator), []).append(i)
    return {key: np.array(index, dtype=np.int64) for key, index in found.items()}


class _Section:
    """Candidates of one section with the current information on its coefficients."""

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
        self.design = Design(moved, error_covariance(shape_points(operators)))


def _priors(first: Operator, gpu: GpuSpec, values: Mapping[str, Mapping[str, float]], warm: bool) -> dict[str, Prior]:
    key = section_key(first)
    matrix = bool(is_matrix([first])[0])
    on_cuda = matrix and (first.cuda_cores or first.precision not in gpu.tensor_flop_per_clock)
    priors = kernel_priors(key, gpu, cuda_cores=on_cuda, warm=warm, one_clock=True)
    known = longest_prefix(key, values)
    return priors if known is None else transferred_priors(values[known], priors, 1.0, gpu)
