"""The fit of kernels measured one by one: coefficients by group, tiles, residual tier, intervals."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from estimator.model.coefficients import BY, FRAMEWORK, Prior, longest_prefix, section_words
from estimator.model.lowering import is_matrix
from estimator.model.phases import members
from estimator.vocabulary.frozen import EMPTY, FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from fitter.latency.group_fit import GroupFit
from fitter.latency.lent_priors import transferred_priors
from fitter.latency.refinement import refine_section, refitted
from fitter.latency.residual_tier import FEWEST_POINTS, Documents
from fitter.latency.section import KernelSection, Tiles, class_priors
from fitter.priors import EQUATION_ERROR, GROUP_PRIORS, PERSISTENT_ARCHITECTURES, Coefficients, Priors, Scales, kernel_priors
from fitter.rows.columns import KernelRows, distinct_clocks
from fitter.rows.rejected import RejectedRow

SIBLING_NARROWING: Final = 0.5
"""Widths of priors around a sibling's coefficients, in widths of the general priors."""

OUTLIER_FACTOR: Final = 3.0
OUTLIER_RATIO: Final = 10.0
"""A row off by more than this factor, and by this many times the usual error of its section, is a failed measurement."""


@frozen
class KernelFit:
    """Results of the fit of kernels measured one by one.

    groups           coefficients by group
    tile_predictors  tile choices by group, as `estimator.model.tile_choice` reads them
    residuals        residual tiers by group, as `estimator.model.residuals` reads them
    group_std        standard deviation of ln(time) of held-out kernels, by group
    rejected         rows that disagree with all others of their kind
    scales           ln(scale) of each collection and its standard deviation (`fitter.latency.collections`)
    """

    groups: Mapping[str, GroupFit]
    tile_predictors: Mapping[str, FrozenMapping[Any]]
    residuals: Mapping[str, FrozenMapping[Any]]
    group_std: Mapping[str, float]
    rejected: tuple[RejectedRow, ...]
    scales: Scales = EMPTY


@frozen
class Siblings:
    """Results of similar kernels, of another GPU or precision, as priors.

    values     coefficients by group; the priors are narrow around them
    error      by group, the standard deviation of the siblings' residuals [ln]: the prior of intervals with few shapes
    common     priors of coefficients of the board and its host
    """

    values: Coefficients = EMPTY
    error: Mapping[str, float] = EMPTY
    common: Mapping[str, Prior] = EMPTY


NO_SIBLINGS: Final = Siblings()


def expected_error(group: str, known: Mapping[str, float], usual: float = EQUATION_ERROR) -> float:
    """Expected error of a group [ln]: the known one of its longest prefix, else the usual one."""
    return known.get(longest_prefix(group, known) or "", usual)


def fit_kernel_groups(
    rows: KernelRows,
    gpu: GpuSpec,
    *,
    seed: int,
    siblings: Siblings = NO_SIBLINGS,
    refine: bool = True,
    whole: KernelFit | None = None,
) -> KernelFit:
    """Fit coefficients, tiles, residual tiers and intervals to kernels of one GPU.

    refine: whether to add residual tiers and intervals, which double the time.  whole: a fit of these rows and others.
    """
    operators = rows.row_operators()
    pooled = _pooled(rows, operators, gpu, seed, siblings)
    values = {**siblings.values, **{family: fit.coefficients for family, fit in pooled.items()}}
    siblings = replace(siblings, values=values, common=_common(pooled))
    groups: dict[str, GroupFit] = {}
    choices: Documents = {}
    tiers: Documents = {}
    group_std: dict[str, float] = {}
    rejected: list[RejectedRow] = []
    sections = members(_section_keys(operators))
    for key, index in sections.items():
        section = _section(key, rows.select(index), gpu, seed, siblings)
        known = None if whole is None else section.known(whole.groups)
        fit = known or section.fit(np.arange(len(index)))
        error = section.errors(fit)
        failed = np.abs(error) > max(np.log(OUTLIER_FACTOR), OUTLIER_RATIO * float(np.median(np.abs(error))))
        rejected += _rejected(section.rows.select(failed), section.times(fit).equations_s[failed])
        groups |= fit.groups
        group_std |= dict.fromkeys(fit.groups, float(np.sqrt(np.mean(error[~failed] ** 2))))
        if fit.choice is not None:
            choices[key] = FrozenMapping(fit.choice)
        trusted = np.flatnonzero(~failed)
        if whole is not None and known is not None and (again := refitted(section, fit, trusted, whole.residuals)):
            tiers |= again
        elif refine and len({section.operators[i] for i in trusted}) >= FEWEST_POINTS:
            found, std = refine_section(section, fit, trusted, seed, expected_error(key, siblings.error))
            tiers |= found
            group_std |= std
    for root, key in _roots({key: len(index) for key, index in sections.items()}).items():
        groups.setdefault(root, groups[key])
    return KernelFit(
        groups=groups,
        tile_predictors=choices,
        residuals=tiers,
        group_std=group_std,
        rejected=tuple(rejected),
    )


def section_key(operator: Operator) -> str:
    """The section of a kernel of any library."""
    return ".".join(section_words(operator))


def _section_keys(operators: Sequence[Operator]) -> list[str]:
    """The section of each row, with the name of its library unless that has most rows of the operator and precision."""
    kinds = [(section_key(operator), operator.library) for operator in operators]
    main: dict[str, str] = {}
    for (key, library), _ in Counter(kinds).most_common():
        main.setdefault(key, library)
    return [key if library == main[key] else f"{key}{BY}{library or FRAMEWORK}" for key, library in kinds]


POOLED_FAMILIES: Final = ("elementwise", "copy", "softmax", "norm", "reduction")
"""Families whose kernels share all coefficients except element weights; each section starts from the fit of its family."""

POOL_NARROWING: Final = 0.4
"""Widths of a section's priors around its family's coefficients, in widths of the general priors, if it has few kernels."""

POOL_ROWS: Final = 100.0
"""Kernels at which a section's own data begin to outweigh its family."""


def _pooled(rows: KernelRows, operators: list[Operator], gpu: GpuSpec, seed: int, siblings: Siblings) -> dict[str, GroupFit]:
    """Fits of whole families, which give the priors of their sections; sections with few kernels need them."""
    found: dict[str, GroupFit] = {}
    for family in POOLED_FAMILIES:
        index = np.flatnonzero([operator.family == family for operator in operators])
        if len({section_key(operators[i]) for i in index}) < 2:
            continue
        own = replace(siblings, common=_common(found))
        found[family] = _section(family, rows.select(index), gpu, seed, own).fit(np.arange(len(index))).groups[family]
    return found


COMMON: Final = ("floor_s", "l2_knee", "l2_knee_exponent")
"""Coefficients of the host (its launch floor) and of the board (its L2), the same for all kernels.  Families share them because errors
are larger without: in a simulated campaign 5.1 % instead of 3.9 % for copies, 5.3 % instead of 4.6 % for softmax."""


def _common(pooled: Mapping[str, GroupFit]) -> Priors:
    """Priors of the common coefficients, from the first family whose kernels determine them."""
    found: Priors = {}
    for name in COMMON:
        fit = next((fit for fit in pooled.values() if fit.identified.get(name) and name in fit.coefficients), None)
        if fit is not None:
            found[name] = Prior(centre=fit.coefficients[name], width=max(fit.ln_std[name], 0.05))
    return found


def _section(key: str, rows: KernelRows, gpu: GpuSpec, seed: int, siblings: Siblings) -> KernelSection:
    """The section of these rows with its priors and the source of its tiles."""
    first = rows.operators[rows.operator_index[0]]
    matrix = bool(is_matrix([first])[0])
    on_cuda = matrix and (first.cuda_cores or not gpu.on_tensor_cores(first.precision))
    priors = kernel_priors(
        key,
        gpu,
        cuda_cores=on_cuda,
        warm=bool(rows.l2_warm.any()),
        one_clock=len(distinct_clocks(rows.clock_mhz(gpu) * HZ_PER_MHZ)) < 2,
    )
    known = longest_prefix(key, siblings.values)
    if known is not None and known in POOLED_FAMILIES and known != key:
        pooled = 1.0 - (1.0 - POOL_NARROWING) * POOL_ROWS / (POOL_ROWS + len(rows))
        priors = class_priors(siblings.values[known], priors, pooled)
    elif known is not None:
        priors = transferred_priors(siblings.values[known], priors, SIBLING_NARROWING, gpu)
    priors |= {name: prior for name, prior in siblings.common.items() if name == "floor_s" or name in priors}
    tiles: Tiles = "none"
    if matrix:
        # Kernel names decide where at least half of a section's rows have them.
        tiles = "chosen" if float(np.isfinite(rows.tile_m).mean()) >= 0.5 else "free"
        if tiles == "free" and gpu.architecture not in PERSISTENT_ARCHITECTURES and not on_cuda:
            # With the architecture's usual limits of split-K products err by 7.3 %, not 6.6 % (A100).
            priors.setdefault("widest_split", Prior(centre=64.0, width=0.0))
    return KernelSection(key, rows, gpu, priors, tiles, seed=seed)


def _roots(sizes: Mapping[str, int]) -> dict[str, str]:
    """The largest section of every family, which replaces unmeasured operators and precisions; sizes: rows of each section.

    No format of convolutions replaces another: cuDNN has other kernels for each, by warp groups, Winograd's, or neither.
    """
    roots: dict[str, str] = {}
    for key, size in sizes.items():
        root = longest_prefix(key, GROUP_PRIORS)
        if root is not None and root != "conv" and (root not in roots or size > sizes[roots[root]]):
            roots[root] = key
    return roots


def _rejected(rows: KernelRows, usual_s: Array) -> list[RejectedRow]:
    """Failed measurements as rejected rows; usual_s: times by the equations [s]."""
    return [
        RejectedRow(
            source=rows.sources[source],
            row=row,
            reason="OUTLIER",
            detail=f"latency_s = {latency_s:.4g} where kernels of its kind take about {predicted:.4g}",
        )
        for source, row, latency_s, predicted in zip(rows.source_index.tolist(), rows.row.tolist(), rows.latency_s, usual_s, strict=True)
    ]
