"""Scales of collections (laboratories) on the times of all kernels of a board, as random effects.

    ln t = ln t̂(kernel) + s_collection + error,      s ~ N(0, ELSEWHERE_STD² / 2)

Two collections then differ by ELSEWHERE_STD.  A section's coefficients take up the mean of its rows, so only sections with rows of several
collections determine scales.  With b_k what section k took up, its mean residuals m_kc are s_c − b_k.
Source: N. M. Laird, J. H. Ware, Random-effects models for longitudinal data, Biometrics 38 (1982) 963.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.engine.kernel_table import kernel_times
from estimator.uncertainty.laboratory import ELSEWHERE_STD
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.group_fit import ERROR_SCALE
from fitter.latency.groups import KernelFit, Siblings, fit_kernel_groups, section_key
from fitter.rows.columns import KernelRows

OWN_STD: Final = ELSEWHERE_STD["latency"] / np.sqrt(2.0)
"""Standard deviation of ln(scale) of one collection."""


def fit_collections(rows: KernelRows, gpu: GpuSpec, *, seed: int, siblings: Siblings, whole: KernelFit | None = None) -> KernelFit:
    """`fit_kernel_groups` with the collections' scales removed from the times."""
    operators, own = rows.row_operators(), np.unique(rows.collection_index)
    shift, std = np.zeros(len(rows.collections)), np.full(len(rows.collections), OWN_STD if len(own) > 1 else 0.0)
    section = np.unique([section_key(operator) for operator in operators], return_inverse=True)[1]
    if len(set(zip(section.tolist(), rows.collection_index.tolist(), strict=True))) > section.max() + 1:  # a section of several
        first = fit_kernel_groups(rows, gpu, seed=seed, siblings=siblings, refine=False)
        groups, clock = {key: one.coefficients for key, one in first.groups.items()}, rows.clock_mhz(gpu)
        times = kernel_times(operators, gpu, groups, sm_clock_mhz=clock, warm=rows.l2_warm, tile_predictors=first.tile_predictors)
        shift, std = _effects(np.log(rows.latency_s / times.equations_s), rows.collection_index, section)
    factor = np.exp(shift[rows.collection_index])
    fit = fit_kernel_groups(replace(rows, latency_s=rows.latency_s / factor), gpu, seed=seed, siblings=siblings, whole=whole)
    return replace(fit, scales={rows.collections[c]: (float(shift[c]), float(std[c])) for c in own.tolist()})


def _effects(error: Array, collection: IntArray, section: IntArray) -> tuple[Array, Array]:
    """Scales and their standard deviations from residuals ln(measured / equations), shape (n,), by least squares."""
    count = int(collection.max()) + 1
    design = np.column_stack([np.eye(count)[collection], np.eye(int(section.max()) + 1)[section]])
    scatter = max(float(np.median(np.abs(error))), ERROR_SCALE)
    precision = design.T @ design / scatter**2
    precision[np.diag_indices(count)] += OWN_STD**-2.0
    covariance = np.linalg.pinv(precision)
    value = covariance @ design.T @ np.clip(error, -3.0 * scatter, 3.0 * scatter) / scatter**2
    return value[:count], np.sqrt(np.diag(covariance))[:count]
