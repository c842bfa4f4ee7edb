"""Choice of probes, the few most informative kernels of many for a fit that starts from another GPU's bundle.

Probes are a greedy I-optimal design (`estimator.engine.design`): kernels of a section share an unknown error, and kernels of similar shape
err alike.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.engine.design import Design, error_covariance, greedy_choices
from estimator.model.residuals import shape_points
from estimator.vocabulary.quantities import IntArray
from estimator.vocabulary.workload import Operator
from fitter.latency.groups import section_key
from fitter.latency.section import members

MOST_CANDIDATES: Final = 1500
"""Most candidates of a section; of more kernels, a random sample is used."""

SECTION_ERROR: Final = 0.3
"""Standard deviation of the error that all kernels of a section share before any is measured [ln] (assumed).  Probes chosen by it predict
published tables of another GPU as well as those chosen by the sensitivities of all coefficients."""


def choose_probes(candidates: Sequence[Operator], count: int, *, seed: int = 0) -> IntArray:
    """Indices of `count` candidates, or of all if there are fewer, the most informative first."""
    if count >= len(candidates):
        return np.arange(len(candidates))
    rng = np.random.default_rng(seed)
    sections: list[tuple[IntArray, Design]] = []
    for index in members(map(section_key, candidates)).values():
        pool = index if len(index) <= MOST_CANDIDATES else np.sort(rng.choice(index, MOST_CANDIDATES, replace=False))
        errors = error_covariance(shape_points([candidates[i] for i in pool.tolist()]))
        sections.append((pool, Design(np.full((len(pool), 1), SECTION_ERROR), errors)))
    chosen: dict[Operator, int] = {}
    for section, place in greedy_choices([design for _, design in sections]):
        candidate = int(sections[section][0][place])
        chosen.setdefault(candidates[candidate], candidate)  # a kernel at a second clock follows after all kernels of its kind
        if len(chosen) == count:
            break
    return np.array(list(chosen.values()), dtype=np.int64)
