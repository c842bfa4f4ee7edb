"""Kernels measured one by one → latency coefficients of all their groups.

Groups form a tree (gemm → gemm.linear → gemm.linear.bf16): a group is fitted from all rows below it, around the
coefficients of the group above it, so that a group of few rows differs from its parent only as far as they show.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from estimator.coefficients import group_key, longest_prefix
from estimator.gpu import GpuSpec
from estimator.kernels.registry import KnownTiles, phase_kind
from estimator.quantities import HZ_PER_MHZ, Array
from fitter.kernel_latency import GroupFit, fit_group, kernel_problem
from fitter.priors import GROUP_PRIORS, around, kernel_priors
from fitter.rows import KernelRows

FEWEST_ROWS: Final = 12
"""Kernels without which a group is not fitted apart from its parent."""

FEWEST_CLASS_ROWS: Final = 40
"""The same for the classes of attention (head size, window, length)."""

PLAIN_LEVELS: Final = 3
"""Family, operator, precision: deeper levels are classes of one kernel."""

NARROWING: Final = 0.7
"""Widths of a group's priors, relative to its parent's, once the parent was fitted."""

MOST_ROWS: Final = 6000
"""Rows on which a group is fitted; more of a kind say the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """Fitted groups by key, parents before their children, and what a bundle stores beside them, as plain data."""

    groups: Mapping[str, GroupFit]
    tile_predictors: Mapping[str, Any] = field(default_factory=dict)
    residuals: Mapping[str, Any] = field(default_factory=dict)


def fit_kernels(rows: KernelRows, gpu: GpuSpec, *, seed: int = 0) -> KernelFit:
    """Latency coefficients of all groups that rows of one GPU determine."""
    operators = rows.row_operators()
    keys = np.array([group_key(operator) for operator in operators])
    simt = np.array([_on_cuda_cores(operator.precision, operator.cuda_cores, gpu) for operator in operators])
    matrix = np.array([phase_kind(operator) == "matrix" for operator in operators])
    rng = np.random.default_rng(seed)
    fitted: dict[str, GroupFit] = {}
    sizes: dict[str, int] = {}
    kinds = np.array([longest_prefix(str(key), GROUP_PRIORS) or "" for key in keys])
    for key in _groups_with_rows(keys):
        kind = longest_prefix(key, GROUP_PRIORS)
        members = np.flatnonzero((kinds == kind) & np.array([own == key or own.startswith(f"{key}.") for own in keys]))
        on_cuda = simt[members] & matrix[members]
        if on_cuda.any() and not on_cuda.all():
            members = members[~on_cuda]  # matrix units and CUDA cores have nothing in common: the group above serves the former
        parent = _parent(key, fitted)
        sizes[key] = len(members)
        if not len(members) or (parent is not None and sizes[parent] == len(members)):
            continue  # only relatives with equations of their own, or the parent's rows once more
        if len(members) > MOST_ROWS:
            members = np.sort(rng.choice(members, MOST_ROWS, replace=False))
        above = fitted[parent] if parent is not None else None
        fitted[key] = _fit(rows.select(members), key, gpu, above, cuda_cores=bool(on_cuda.all() and on_cuda.any()))
    return KernelFit(groups=fitted)


def _on_cuda_cores(precision: str, cuda_cores: bool, gpu: GpuSpec) -> bool:
    return cuda_cores or precision not in gpu.tensor_flop_per_clock


def _groups_with_rows(keys: Array) -> Iterator[str]:
    """Groups that have enough rows to be fitted, parents first; those with priors of their own need but one."""
    counts: dict[str, int] = {}
    for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
        parts = str(key).split(".")
        for depth in range(1, len(parts) + 1):
            prefix = ".".join(parts[:depth])
            counts[prefix] = counts.get(prefix, 0) + int(count)
    for prefix in sorted(counts, key=lambda name: (name.count("."), name)):
        depth = prefix.count(".") + 1
        if counts[prefix] >= (1 if prefix in GROUP_PRIORS else FEWEST_ROWS if depth <= PLAIN_LEVELS else FEWEST_CLASS_ROWS):
            yield prefix


def _parent(key: str, fitted: Mapping[str, GroupFit]) -> str | None:
    """The nearest fitted group above that has the same equations."""
    name = longest_prefix(key.rpartition(".")[0], fitted)
    same = name is not None and longest_prefix(name, GROUP_PRIORS) == longest_prefix(key, GROUP_PRIORS)
    return name if same else None


def _fit(rows: KernelRows, key: str, gpu: GpuSpec, parent: GroupFit | None, *, cuda_cores: bool) -> GroupFit:
    free = ~(np.isfinite(rows.sm_clock_mhz) | np.isfinite(rows.sm_clock_asked_mhz))
    warm = rows.l2_warm
    priors = kernel_priors(key, gpu, cuda_cores=cuda_cores, warm=bool(warm.any()), free_clock=bool(free.any()))
    if parent is not None:
        priors = around(parent.coefficients, priors, NARROWING)
    known = KnownTiles(tile_m=rows.tile_m, tile_n=rows.tile_n, split=rows.split_k)
    problem = kernel_problem(
        rows.row_operators(),
        gpu,
        sm_clock_hz=rows.clock_mhz(gpu) * HZ_PER_MHZ,
        warm=warm,
        latency_s=rows.latency_s,
        weight=rows.weight,
        known=known,
    )
    return fit_group(problem, priors)
