"""Probes, the few most informative kernels of a bundle for a fit of another GPU that starts from it, and their campaign.

Errors of ln(time) of two kernels of a section, before any is measured, have the covariance

    V = SECTION_ERROR² + EQUATION_ERROR² · exp(−d² / 2 r²)

d: distance of their shapes, r: two octaves.  A measurement of kernel j with error s lowers V by V_j V_jᵀ / (V_jj + s²).  Probes are chosen
one after the other; each one lowers the summed variance of all kernels most (a greedy I-optimal design).
Source: A. C. Atkinson, A. N. Donev, R. D. Tobias, Optimum Experimental Designs, with SAS (Oxford, 2007), chapters 10 and 18;
C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning (2006), equation 2.24.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.spatial.distance import cdist

from estimator.bundle.content import Bundle
from estimator.model.attention import Flash
from estimator.model.coefficients import group_words
from estimator.model.phases import members
from estimator.model.residuals import shape_points
from estimator.questions.estimates import least_clocks
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import FORMATS, Array, IntArray
from estimator.vocabulary.workload import FAMILY_FIELDS, TABLED, Operator, make_operator
from fitter.errors import CalibrationError
from fitter.latency.groups import section_key
from fitter.priors import EQUATION_ERROR

MOST_CANDIDATES: Final = 1500
"""Most candidates of a section; of more kernels, a random sample is used."""

SECTION_ERROR: Final = 0.3
"""Standard deviation of the error that all kernels of a section share [ln] (assumed).  Probes chosen by it predict published tables of
another GPU as well as those chosen by the sensitivities of all coefficients."""

MEASURING_ERROR: Final = 0.02
"""Scatter of a repeated measurement [ln]."""


def choose_probes(candidates: Sequence[Operator], count: int, *, seed: int = 0) -> IntArray:
    """Indices of `count` different candidates, or of all if there are fewer, the most informative first."""
    if count >= len(candidates):
        return np.arange(len(candidates))
    rng = np.random.default_rng(seed)
    pools: list[IntArray] = []
    unknown: list[Array] = []
    for index in members(map(section_key, candidates)).values():
        pool = index if len(index) <= MOST_CANDIDATES else np.sort(rng.choice(index, MOST_CANDIDATES, replace=False))
        pools.append(pool)
        unknown.append(unknown_errors(shape_points([candidates[i] for i in pool.tolist()])))
    gains = [variance_gains(covariance) for covariance in unknown]
    chosen: list[int] = []
    while len(chosen) < min(count, sum(map(len, pools))):
        section = int(np.argmax([own.max() for own in gains]))
        place = int(np.argmax(gains[section]))
        chosen.append(int(pools[section][place]))
        taken = np.isneginf(gains[section])
        taken[place] = True
        unknown[section] = after_measuring(unknown[section], place)
        gains[section] = np.where(taken, -np.inf, variance_gains(unknown[section]))
    return np.array(chosen, dtype=np.int64)


def unknown_errors(points: Array) -> Array:
    """Covariance of the errors of kernels before any is measured [ln²], shape (n, n), for points of shape (n, f) in octaves."""
    result: Array = SECTION_ERROR**2 + EQUATION_ERROR**2 * np.exp(-cdist(points, points, "sqeuclidean") / (2.0 * 2.0**2))
    return result


def variance_gains(covariance: Array) -> Array:
    """Decrease of the summed variance by a measurement of each kernel, shape (n,)."""
    result: Array = (covariance**2).sum(axis=0) / (MEASURING_ERROR**2 + np.diag(covariance))
    return result


def after_measuring(covariance: Array, place: int) -> Array:
    """The covariance of what is still unknown after a measurement of one kernel, shape (n, n)."""
    row = covariance[place]
    result: Array = covariance - np.outer(row, row) / (MEASURING_ERROR**2 + row[place])
    return result


def bundle_kernels(bundle: Bundle) -> tuple[Operator, ...]:
    """The measured kernels that a bundle lists and `collect` can measure, in the order of its groups."""
    found: dict[Operator, None] = {}
    for group, document in bundle.residuals.items():
        family, *names = group_words(group)
        fields = FAMILY_FIELDS.get(family, ())
        formats = {FORMATS[name].rate for name in names[1:] if name in FORMATS}  # those of engines are rates of other formats
        if family in TABLED or len(names) < 2 or formats != {names[1]} or tuple(document["fields"]) != fields:
            continue
        columns = (np.broadcast_to(document["points"][name], len(document["ln_error"])) for name in fields)
        for row in np.stack(list(columns), axis=1).tolist():
            sizes = dict(zip(fields, row, strict=True))
            if sizes.get("head_dim", 0.0) <= Flash.HEAD_SIZES[-1]:  # larger heads have no fused kernel in PyTorch
                found[make_operator(family, names[0], names[1], cuda_cores="cuda" in names[2:], **sizes)] = None
    return tuple(found)


def plan_probes(bundle: Bundle, gpu: GpuSpec, count: int, seed: int) -> tuple[Operator, ...]:
    """The probes among the bundle's kernels that a GPU can run, the most informative first.  Raises CalibrationError if there are none."""
    listed = bundle_kernels(bundle)
    kernels = [listed[i] for i in np.flatnonzero(np.isfinite(least_clocks(listed, gpu)))]
    if not kernels:
        raise CalibrationError(
            f"bundle {bundle.name}: holds no measured kernels that {gpu.name} runs; take one fitted from kernel measurements"
        )
    return tuple(kernels[i] for i in choose_probes(kernels, count, seed=seed).tolist())


def campaign_text(probes: Sequence[Operator], bundle: Bundle, gpu: GpuSpec) -> str:
    """The campaign in the format of `collect --campaign`."""
    lines = [
        f"# Probes of {gpu.name} for a fit that starts from {bundle.name} {bundle.version}, the most telling first.",
        f'description = "{len(probes)} probes of {gpu.name}"',
    ]
    for probe in probes:
        named = {"family": probe.family, "operator": probe.operator, "precision": probe.precision}
        lines += ["", "[[kernels]]", *(f'{name} = "{word}"' for name, word in named.items()), "count = 1"]
        lines += ["cuda_cores = true"] if probe.cuda_cores else []
        lines += ["[kernels.shape]", *(f"{name} = {size:.0f}" for name, size in probe.named_shape().items())]
    return "\n".join([*lines, ""])
