"""The fit of kernels measured one by one: coefficients by group, tiles, residual tier, intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np

from estimator.engine.design import EQUATION_ERROR
from estimator.model.coefficients import Prior, group_key, longest_prefix
from estimator.model.lowering import KnownTiles, is_matrix
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, IntArray
from estimator.vocabulary.workload import Operator
from fitter.latency.group_fit import GroupFit
from fitter.latency.lent_priors import transferred_priors, with_family_shift
from fitter.latency.refinement import refine_section
from fitter.latency.residual_tier import FEWEST_POINTS
from fitter.latency.section import KernelSection, SectionFit, SectionRows, class_priors
from fitter.priors import GROUP_PRIORS, PERSISTENT_ARCHITECTURES, kernel_priors
from fitter.rows.columns import KernelRows, distinct_clocks
from fitter.rows.rejected import RejectedRow

TileSource = Literal["auto", "free"]
"""Tiles of matrix products: from kernel names where most rows have them, or the fastest candidate."""

SIBLING_NARROWING: Final = 0.5
"""Widths of priors around a sibling's coefficients, in widths of the general priors."""

OUTLIER_FACTOR: Final = 3.0
OUTLIER_RATIO: Final = 10.0
"""A row off by more than this factor, and by this many times the usual error of its section, is a failed measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """Results of the fit of kernels measured one by one.

    groups           coefficients by group
    tile_predictors  tile choices by group, as `estimator.model.tile_choice` reads them
    residuals        residual tiers by group, as `estimator.model.residuals` reads them
    group_std        standard deviation of ln(time) of held-out kernels, by group
    rejected         rows that disagree with all others of their kind
    log_evidence     log probability of the rows under the priors, by section and by family fitted as a whole
    """

    groups: Mapping[str, GroupFit]
    tile_predictors: Mapping[str, FrozenMapping[Any]]
    residuals: Mapping[str, FrozenMapping[Any]]
    group_std: Mapping[str, float]
    rejected: tuple[RejectedRow, ...]
    log_evidence: Mapping[str, float]


def fit_kernel_groups(
    rows: KernelRows,
    gpu: GpuSpec,
    *,
    seed: int,
    tiles: TileSource = "auto",
    sibling: Mapping[str, Mapping[str, float]] | None = None,
    narrowing: Mapping[str, float] | None = None,
    sibling_error: Mapping[str, float] | None = None,
    refine: bool = True,
) -> KernelFit:
    """Fit coefficients, tiles, residual tiers and intervals to kernels of one GPU.

    sibling: coefficients of a similar GPU or precision by group; the priors are narrow around them.
    narrowing: by section, the widths of these priors in widths of the general ones; SIBLING_NARROWING if not given.
    sibling_error: by group, the standard deviation of the sibling's residuals [ln]; the prior of intervals with few shapes.
    refine: whether to add residual tiers and intervals, which double the time.
    """
    operators = rows.row_operators()
    parts = [_Part(key, index, rows, operators, gpu) for key, index in _sections(operators).items()]
    siblings = Siblings(values=sibling or {}, narrowing=narrowing or {}, error=sibling_error or {})
    pooled = _pooled(rows, operators, gpu, seed, siblings)
    families = {family: fit.coefficients for family, fit in pooled.items()}
    values = {**with_family_shift(siblings.values, families), **families}
    siblings = replace(siblings, values=values, common=_common(pooled))
    results = [_fit_part(part, gpu, seed, tiles, siblings, refine) for part in parts]
    groups = {key: fit for result in results for key, fit in result.fit.groups.items()}
    for root, key in _roots(results).items():
        groups.setdefault(root, groups[key])
    return KernelFit(
        groups=groups,
        tile_predictors={result.key: FrozenMapping(result.fit.choice) for result in results if result.fit.choice is not None},
        residuals={key: tier for result in results for key, tier in result.tiers.items()},
        group_std={key: std for result in results for key, std in result.std.items()},
        rejected=tuple(row for part, result in zip(parts, results, strict=True) for row in _rejected(rows, part, result)),
        log_evidence={family: fit.log_evidence for family, fit in pooled.items()}
        | {result.key: result.fit.groups[result.key].log_evidence for result in results},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """Results of similar kernels: coefficients by group, narrowing of the priors around them by section, residual deviation by group.

    common: priors of coefficients of the board and its host.
    """

    values: Mapping[str, Mapping[str, float]]
    narrowing: Mapping[str, float]
    error: Mapping[str, float]
    common: Mapping[str, Prior] = field(default_factory=dict)

    def expected_error(self, key: str) -> float:
        """Expected standard deviation of the residuals of a section's equations [ln]."""
        group = longest_prefix(key, self.error)
        return EQUATION_ERROR if group is None else self.error[group]


class _Part:
    """The rows of one section among all."""

    def __init__(self, key: str, index: IntArray, rows: KernelRows, operators: list[Operator], gpu: GpuSpec) -> None:
        own = rows.select(index)
        self.key = key
        self.index = index
        chosen = tuple(operators[i] for i in index)
        self.rows = SectionRows(
            operators=chosen,
            leaves=tuple(group_key(operator) for operator in chosen),
            sm_clock_hz=own.clock_mhz(gpu) * HZ_PER_MHZ,
            warm=own.l2_warm,
            latency_s=own.latency_s,
            weight=own.weight,
            known=KnownTiles(tile_m=own.tile_m, tile_n=own.tile_n, split=own.split_k),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    key: str
    fit: SectionFit
    rows: int
    tiers: Mapping[str, FrozenMapping[Any]]
    std: Mapping[str, float]
    equations_s: Array
    outliers: IntArray


def section_key(operator: Operator) -> str:
    """Family, operator and precision: kernels of one library function."""
    parts = [operator.family, operator.operator, operator.precision]
    return ".".join([*parts, "cuda"] if operator.cuda_cores else parts)


def _sections(operators: list[Operator]) -> dict[str, IntArray]:
    found: dict[str, list[int]] = {}
    for i, operator in enumerate(operators):
        found.setdefault(section_key(operator), []).append(i)
    return {key: np.array(index, dtype=np.int64) for key, index in found.items()}


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
        part = _Part(family, index, rows, operators, gpu)
        own = replace(siblings, common=_common(found))
        found[family] = _section(part, gpu, seed, "auto", own).fit(np.arange(len(index))).groups[family]
    return found


COMMON: Final = ("floor_s", "l2_knee", "l2_knee_exponent")
"""Coefficients of the host (its launch floor) and of the board (its L2), the same for all kernels.  Families share them because errors
are larger without: in a simulated campaign 5.0 % instead of 3.9 % for copies, 5.3 % instead of 4.7 % for softmax."""


def _common(pooled: Mapping[str, GroupFit]) -> dict[str, Prior]:
    """Priors of the common coefficients, from the first family whose kernels determine them."""
    found: dict[str, Prior] = {}
    for name in COMMON:
        fit = next((fit for fit in pooled.values() if fit.identified.get(name) and name in fit.coefficients), None)
        if fit is not None:
            found[name] = Prior(centre=fit.coefficients[name], width=max(fit.ln_std[name], 0.05))
    return found


def _fit_part(part: _Part, gpu: GpuSpec, seed: int, tiles: TileSource, siblings: Siblings, refine: bool) -> _Result:
    section = _section(part, gpu, seed, tiles, siblings)
    everything = np.arange(len(part.rows))
    fit = section.fit(everything)
    equations = section.predict(fit, everything)
    error = np.log(part.rows.latency_s / equations)
    usual = float(np.median(np.abs(error)))
    outliers = np.flatnonzero(np.abs(error) > max(np.log(OUTLIER_FACTOR), OUTLIER_RATIO * usual))
    trusted = np.setdiff1d(everything, outliers)
    tiers: Mapping[str, FrozenMapping[Any]] = {}
    std = {key: float(np.sqrt(np.mean(error[trusted] ** 2))) for key in fit.groups}
    if refine and len({part.rows.operators[i] for i in trusted}) >= FEWEST_POINTS:
        refined = refine_section(section, fit, trusted, seed, siblings.expected_error(part.key))
        tiers, std = refined.tiers, std | dict(refined.std)
    return _Result(key=part.key, fit=fit, rows=len(error), tiers=tiers, std=std, equations_s=equations, outliers=outliers)


def _section(part: _Part, gpu: GpuSpec, seed: int, tiles: TileSource, siblings: Siblings) -> KernelSection:
    """The section with its priors and the source of its tiles."""
    first = part.rows.operators[0]
    matrix = bool(is_matrix([first])[0])
    on_cuda = matrix and (first.cuda_cores or first.precision not in gpu.tensor_flop_per_clock)
    priors = kernel_priors(
        part.key,
        gpu,
        cuda_cores=on_cuda,
        warm=bool(part.rows.warm.any()),
        one_clock=len(distinct_clocks(part.rows.sm_clock_hz)) < 2,
    )
    known = longest_prefix(part.key, siblings.values)
    if known is not None and known in POOLED_FAMILIES and known != part.key:
        pooled = 1.0 - (1.0 - POOL_NARROWING) * POOL_ROWS / (POOL_ROWS + len(part.rows))
        priors = class_priors(siblings.values[known], priors, pooled)
    elif known is not None:
        priors = transferred_priors(siblings.values[known], priors, siblings.narrowing.get(part.key, SIBLING_NARROWING), gpu)
    priors |= {name: prior for name, prior in siblings.common.items() if name == "floor_s" or name in priors}
    if not matrix:
        return KernelSection(part.key, part.rows, gpu, priors, "none", seed=seed)
    # Kernel names decide where at least half of a section's rows have them.
    if tiles == "auto" and float(np.isfinite(part.rows.known.tile_m).mean()) >= 0.5:
        return KernelSection(part.key, part.rows, gpu, priors, "chosen", seed=seed)
    if gpu.architecture not in PERSISTENT_ARCHITECTURES and not on_cuda:
        # With the architecture's usual limits of split-K products err by 7.3 %, not 6.6 % (A100).
        priors["widest_split"] = Prior(centre=64.0, width=0.0)
    return KernelSection(part.key, part.rows, gpu, priors, "free", seed=seed)


def _roots(results: list[_Result]) -> dict[str, str]:
    """The largest section of every family, which replaces unmeasured operators and precisions."""
    roots: dict[str, _Result] = {}
    for result in results:
        root = longest_prefix(result.key, GROUP_PRIORS)
        if root is not None and (root not in roots or result.rows > roots[root].rows):
            roots[root] = result
    return {root: result.key for root, result in roots.items()}


def _rejected(rows: KernelRows, part: _Part, result: _Result) -> list[RejectedRow]:
    return [
        RejectedRow(
            source=rows.sources[rows.source_index[i]],
            row=int(rows.row[i]),
            reason="OUTLIER",
            detail=f"latency_s = {rows.latency_s[i]:.4g} where kernels of its kind take about {predicted:.4g}",
        )
        for i, predicted in zip(part.index[result.outliers].tolist(), result.equations_s[result.outliers].tolist(), strict=True)
    ]
