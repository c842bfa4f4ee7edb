"""Everything that kernels measured one by one teach: coefficients by group, tiles, residual tier, intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from estimator.coefficients import Prior, group_key, longest_prefix
from estimator.design import EQUATION_ERROR
from estimator.frozen import FrozenMapping
from estimator.gpu import GpuSpec
from estimator.kernels.registry import KnownTiles, is_matrix
from estimator.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array, IntArray
from estimator.workload import FAMILY_FIELDS, Operator
from fitter.latency.group_fit import GroupFit
from fitter.latency.lent_priors import transferred_priors, with_family_shift
from fitter.latency.refinement import refine_section
from fitter.latency.residual_tier import FEWEST_POINTS
from fitter.latency.section import KernelSection, SectionFit, SectionRows, class_priors, with_widest_split
from fitter.latency.section_choice import best_section
from fitter.priors import FLOOR_WIDTH, GROUP_PRIORS, PERSISTENT_ARCHITECTURES, kernel_priors
from fitter.rows.columns import KernelRows, distinct_clocks
from fitter.rows.rejected import RejectedRow

TileSource = Literal["auto", "named", "free"]
"""Tiles of matrix products: from kernel names, the fastest candidate, or whichever predicts better."""

NAMED_SHARE: Final = 0.5
"""Kernel names decide where at least this share of a section's rows has them."""

SIBLING_NARROWING: Final = 0.5
"""Widths of priors around a sibling's coefficients, in widths of the general priors."""

OUTLIER_FACTOR: Final = 3.0
OUTLIER_RATIO: Final = 10.0
"""A row off by more than this factor, and by this many times the usual error of its section, is a failed measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFit:
    """What kernels measured one by one taught.

    groups           coefficients by group
    tile_predictors  decision trees by group, as `estimator.tiles.predictor` reads them
    residuals        residual tiers by group, as `estimator.residuals` reads them
    group_std        standard deviation of ln(time) of kernels left out of the fit, by group
    domain           range of every shape field, by group
    rejected         rows that disagree with all others of their kind
    equations_s      times of all rows by the equations as fitted to them [s], shape (n,)
    left_out_s       times of all rows as predicted when they were left out of the fit [s], shape (n,); the equations' where not refined
    log_evidence     how probable the rows were under the priors, by section and by family that was fitted as a whole
    """

    groups: Mapping[str, GroupFit]
    tile_predictors: Mapping[str, FrozenMapping[Any]]
    residuals: Mapping[str, FrozenMapping[Any]]
    group_std: Mapping[str, float]
    domain: Mapping[str, Mapping[str, tuple[float, float]]]
    rejected: tuple[RejectedRow, ...]
    equations_s: Array
    left_out_s: Array
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
    """Coefficients, tiles, residual tiers and intervals from kernels of one GPU.

    sibling: coefficients of a similar GPU or precision by group, around which the priors are then narrow.
    narrowing: by section, the widths of these priors in widths of the general ones; SIBLING_NARROWING where not given.
    sibling_error: by group, the standard deviation of what its own equations leave over [ln]; intervals of few shapes start from it.
    refine: whether to add residual tiers and intervals (they cost about as much again).
    """
    operators = rows.row_operators()
    parts = [_Part(key, index, rows, operators, gpu) for key, index in _sections(operators).items()]
    floor_s = common_floor_s(parts)
    siblings = Siblings(values=sibling or {}, narrowing=narrowing or {}, error=sibling_error or {})
    pooled = _pooled(rows, operators, gpu, seed, floor_s, siblings)
    families = {family: fit.coefficients for family, fit in pooled.items()}
    known = {**with_family_shift(siblings.values, families), **families}
    if POOL_LEADER in known:
        known = dict.fromkeys(LED_SECTIONS, known[POOL_LEADER]) | known
    common = _host_prior(floor_s) | _knee_priors(pooled)
    siblings = replace(siblings, values=known)
    results = _fit_parts(parts, gpu, seed, tiles, siblings, refine, common)
    equations, left_out = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    rejected: list[RejectedRow] = []
    for part, result in zip(parts, results, strict=True):
        equations[part.index], left_out[part.index] = result.equations_s, result.left_out_s
        rejected.extend(_rejected(rows, part.index[result.outliers], result.equations_s[result.outliers]))
    groups = {key: fit for result in results for key, fit in result.fit.groups.items()}
    trees = {result.key: FrozenMapping(result.fit.tree) for result in results if result.fit.tree is not None}
    for root, key in _roots(results).items():
        groups.setdefault(root, groups[key])
    return KernelFit(
        groups=groups,
        tile_predictors=trees,
        residuals={key: tier for result in results for key, tier in result.tiers.items()},
        group_std={key: std for result in results for key, std in result.std.items()},
        domain=seen_ranges(operators, groups),
        rejected=tuple(rejected),
        equations_s=equations,
        left_out_s=left_out,
        log_evidence={family: fit.log_evidence for family, fit in pooled.items()}
        | {result.key: result.fit.groups[result.key].log_evidence for result in results},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """What similar kernels taught: coefficients by group, by section how narrow priors around them are, by group what they leave over."""

    values: Mapping[str, Mapping[str, float]]
    narrowing: Mapping[str, float]
    error: Mapping[str, float]

    def expected_error(self, key: str) -> float:
        """Standard deviation of what the equations of a section are expected to leave over [ln]."""
        group = longest_prefix(key, self.error)
        return EQUATION_ERROR if group is None else self.error[group]


class _Part:
    """The rows of one section among all."""

    def __init__(self, key: str, index: IntArray, rows: KernelRows, operators: list[Operator], gpu: GpuSpec) -> None:
        own = rows.select(index)
        self.key = key
        self.index = index
        self.free_clock = bool(np.any(~np.isfinite(own.sm_clock_mhz) & ~np.isfinite(own.sm_clock_asked_mhz)))
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

    def shapes(self) -> int:
        """How many different kernels were measured, at whatever clocks and however often."""
        return len(set(self.rows.operators))

    def cuda_cores(self) -> bool:
        return self.rows.operators[0].cuda_cores

    def element_bytes(self) -> float:
        return BYTES_PER_ELEMENT[self.rows.operators[0].precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    key: str
    fit: SectionFit
    rows: int
    tiers: Mapping[str, FrozenMapping[Any]]
    std: Mapping[str, float]
    equations_s: Array
    left_out_s: Array
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


def common_floor_s(parts: list[_Part]) -> float | None:
    """The launch floor that one host showed in several sections [s], None where they share no shortest time.

    Sections with few kernels cannot show it themselves.
    """
    shortest = min(float(part.rows.latency_s.min()) for part in parts)
    near = [int((part.rows.latency_s < COMMON_FLOOR_BAND * shortest).sum()) for part in parts]
    shown = sum(near) >= COMMON_FLOOR_ROWS and sum(count > 0 for count in near) >= COMMON_FLOOR_SECTIONS
    return shortest if shown else None


COMMON_FLOOR_BAND: Final = 1.02
COMMON_FLOOR_ROWS: Final = 9
COMMON_FLOOR_SECTIONS: Final = 3
"""So many rows, from so many sections, within this factor of the shortest time of all are a floor, and no coincidence."""

POOLED_FAMILIES: Final = ("elementwise", "copy", "softmax", "norm", "reduction")
"""Families whose kernels obey one set of coefficients but for their element weights: each section starts from all of them."""

POOL_LEADER: Final = "elementwise"
LED_SECTIONS: Final = ("norm.batchnorm",)
"""Sections that belong to another family by name, and to this one by their kernels: inference only scales and shifts."""

POOL_NARROWING: Final = 0.4
"""Widths of a section's priors around its family's coefficients, in widths of the general priors, where it has few kernels."""

POOL_ROWS: Final = 100.0
"""With many more kernels than this a section goes its own way."""


KNEE_FAMILIES: Final = ("elementwise", "copy", "norm", "softmax")
"""Families that show the L2's knee, clearest first: their time is that of DRAM."""

KNEE_NARROWEST: Final = 0.05
"""A knee is not known better than this [ln]."""


def _host_prior(floor_s: float | None) -> dict[str, Prior]:
    return {} if floor_s is None else {"floor_s": Prior(centre=floor_s, width=FLOOR_WIDTH / 2.0)}


def _knee_priors(pooled: Mapping[str, GroupFit]) -> dict[str, Prior]:
    """Priors of the L2's knee, which belongs to the board: as the family says that shows it clearest, where one does."""
    for family in KNEE_FAMILIES:
        fit = pooled.get(family)
        if fit is not None and fit.identified.get("l2_knee"):
            names = ("l2_knee", "l2_knee_exponent")
            return {name: Prior(centre=fit.coefficients[name], width=max(fit.ln_std[name], KNEE_NARROWEST)) for name in names}
    return {}


def _pooled(
    rows: KernelRows, operators: list[Operator], gpu: GpuSpec, seed: int, floor_s: float | None, siblings: Siblings
) -> dict[str, GroupFit]:
    """Fits of whole families, around which their sections are then fitted; sections with few kernels need them."""
    found: dict[str, GroupFit] = {}
    for family in POOLED_FAMILIES:
        own = [operator.family == family and not section_key(operator).startswith(LED_SECTIONS) for operator in operators]
        index = np.flatnonzero(own)
        if len({section_key(operators[i]) for i in index}) < 2:
            continue
        part = _Part(family, index, rows, operators, gpu)
        fit = _section(part, gpu, seed, "auto", siblings, _host_prior(floor_s)).fit(np.arange(len(index)))
        found[family] = fit.groups[family]
    return found


def _fit_parts(
    parts: list[_Part], gpu: GpuSpec, seed: int, tiles: TileSource, siblings: Siblings, refine: bool, common: Mapping[str, Prior]
) -> list[_Result]:
    """Every section's fit, those with few shapes around the section that is most like them and has more.

    However often one shape was measured, it cannot tell what grows with size from what does not.
    """
    many = {part.key: _fit_part(part, gpu, seed, tiles, siblings, refine, common) for part in parts if part.shapes() >= FEWEST_OWN_SHAPES}
    results = dict(many)
    for part in parts:
        if part.key in many:
            continue
        own = siblings
        leader = None if longest_prefix(part.key, siblings.values) else _leader(part, [other for other in parts if other.key in many])
        if leader is not None:
            values = many[leader].fit.groups[leader].coefficients
            narrow = {**siblings.narrowing, part.key: FEW_SHAPES_NARROWING}
            own = replace(siblings, values={**siblings.values, part.key: values}, narrowing=narrow)
        results[part.key] = _fit_part(part, gpu, seed, tiles, own, refine, common)
    return [results[part.key] for part in parts]


def _leader(part: _Part, others: list[_Part]) -> str | None:
    """The section of the same kind of kernel that is most like another: of elements as wide if there is one, with the most shapes."""
    root = longest_prefix(part.key, GROUP_PRIORS)
    like = [other for other in others if longest_prefix(other.key, GROUP_PRIORS) == root and other.cuda_cores() == part.cuda_cores()]
    if root is None or not like:
        return None
    return max(like, key=lambda other: (other.element_bytes() == part.element_bytes(), other.shapes())).key


FEWEST_OWN_SHAPES: Final = 6
"""A section with fewer shapes starts from a section like it (assumed)."""

FEW_SHAPES_NARROWING: Final = 0.1
"""Widths of its priors around that section's coefficients, in widths of the general priors (assumed)."""


def _fit_part(
    part: _Part,
    gpu: GpuSpec,
    seed: int,
    tiles: TileSource,
    siblings: Siblings,
    refine: bool,
    common: Mapping[str, Prior],
) -> _Result:
    section = _section(part, gpu, seed, tiles, siblings, common)
    everything = np.arange(len(part.rows))
    fit = section.fit(everything)
    equations = section.predict(fit, everything)
    error = np.log(part.rows.latency_s / equations)
    usual = float(np.median(np.abs(error)))
    outliers = np.flatnonzero(np.abs(error) > max(np.log(OUTLIER_FACTOR), OUTLIER_RATIO * usual))
    trusted = np.setdiff1d(everything, outliers)
    tiers: Mapping[str, FrozenMapping[Any]] = {}
    std = {key: float(np.sqrt(np.mean(error[trusted] ** 2))) for key in fit.groups}
    left_out = equations
    if refine and len({part.rows.operators[i] for i in trusted}) >= FEWEST_POINTS:
        refined = refine_section(section, fit, trusted, seed, siblings.expected_error(part.key))
        tiers, std = refined.tiers, std | dict(refined.std)
        left_out = np.where(np.isfinite(refined.left_out), part.rows.latency_s * np.exp(-refined.left_out), equations)
    return _Result(
        key=part.key, fit=fit, rows=len(error), tiers=tiers, std=std, equations_s=equations, left_out_s=left_out, outliers=outliers
    )


def _section(part: _Part, gpu: GpuSpec, seed: int, tiles: TileSource, siblings: Siblings, common: Mapping[str, Prior]) -> KernelSection:
    """The section with its priors and the better of the two ways to tell a tile; `common` are priors of board and host."""
    first = part.rows.operators[0]
    matrix = bool(is_matrix([first])[0])
    on_cuda = matrix and (first.cuda_cores or first.precision not in gpu.tensor_flop_per_clock)
    priors = kernel_priors(
        part.key,
        gpu,
        cuda_cores=on_cuda,
        warm=bool(part.rows.warm.any()),
        free_clock=part.free_clock,
        one_clock=len(distinct_clocks(part.rows.sm_clock_hz)) < 2,
    )
    known = longest_prefix(part.key, siblings.values)
    if known is not None:
        pooled = 1.0 - (1.0 - POOL_NARROWING) * POOL_ROWS / (POOL_ROWS + len(part.rows))
        if known in (*POOLED_FAMILIES, *LED_SECTIONS) and known != part.key:
            priors = class_priors(siblings.values[known], priors, pooled)
        else:
            narrowing = siblings.narrowing.get(part.key, SIBLING_NARROWING)
            priors = transferred_priors(siblings.values[known], priors, narrowing, gpu)
    priors |= {name: prior for name, prior in common.items() if name == "floor_s" or name in priors}
    if not matrix:
        return KernelSection(part.key, part.rows, gpu, priors, "none", seed=seed)
    named = float(np.isfinite(part.rows.known.tile_m).mean()) >= NAMED_SHARE
    if named and tiles != "free":
        section = KernelSection(part.key, part.rows, gpu, priors, "named", seed=seed)
        if tiles == "named":
            return section
        others = [KernelSection(part.key, part.rows, gpu, priors, way, seed=seed) for way in UNNAMED_WAYS]
        if not on_cuda and gpu.architecture not in PERSISTENT_ARCHITECTURES:
            wide = {**priors, "widest_split": Prior(centre=MATCHED_SPLIT, width=0.0)}
            others.append(KernelSection(part.key, part.rows, gpu, wide, "matched", seed=seed))
        return best_section([section, *others], seed)
    if gpu.architecture not in PERSISTENT_ARCHITECTURES and not on_cuda:
        priors = with_widest_split(part.key, part.rows, gpu, priors, seed=seed)
    return KernelSection(part.key, part.rows, gpu, priors, "free", seed=seed)


UNNAMED_WAYS: Final[tuple[Literal["chosen", "free", "matched"], ...]] = ("chosen", "free", "matched")
"""Ways to tell the tile of a kernel without a name, beside the tree that learns from names."""

MATCHED_SPLIT: Final = 16.0
"""Split-K limit to try where coefficients come from named tiles and predictions take the fastest."""


def _roots(results: list[_Result]) -> dict[str, str]:
    """For every family-level group the section that stands in for operators and precisions that were not measured: the largest."""
    roots: dict[str, _Result] = {}
    for result in results:
        root = longest_prefix(result.key, GROUP_PRIORS)
        if root is not None and (root not in roots or result.rows > roots[root].rows):
            roots[root] = result
    return {root: result.key for root, result in roots.items()}


def _rejected(rows: KernelRows, index: IntArray, predicted_s: Array) -> list[RejectedRow]:
    return [
        RejectedRow(
            source=rows.sources[rows.source_index[i]],
            row=int(rows.row[i]),
            reason="OUTLIER",
            detail=f"latency_s = {rows.latency_s[i]:.4g} where kernels of its kind take about {predicted:.4g}",
        )
        for i, predicted in zip(index.tolist(), predicted_s.tolist(), strict=True)
    ]


def seen_ranges(operators: Sequence[Operator], groups: Mapping[str, object]) -> dict[str, dict[str, tuple[float, float]]]:
    """Range of every shape field that each group has seen."""
    shapes: dict[str, list[tuple[float, ...]]] = {}
    family: dict[str, str] = {}
    for operator in operators:
        group = longest_prefix(group_key(operator), groups.keys())
        if group is not None:
            shapes.setdefault(group, []).append(operator.shape)
            family[group] = operator.family
    ranges = {}
    for group, found in shapes.items():
        table = np.array(found)
        fields = FAMILY_FIELDS[family[group]]
        ranges[group] = {name: (float(table[:, i].min()), float(table[:, i].max())) for i, name in enumerate(fields)}
    return ranges
