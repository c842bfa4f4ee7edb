"""One section of kernels – an operator in one precision – as a chain that is fitted to some rows and predicts others.

Library kernels of a section come in classes (attention by head size, mask and length; normalisations by row length).
The section is fitted as a whole first, then each class with priors around the whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from estimator.model.coefficients import Prior, coefficient_vector
from estimator.model.kriging import SHARES, PhaseFeatures
from estimator.model.lowering import KnownTiles
from estimator.model.tile_choice import group_tiles
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.workload import Operator
from fitter.latency.group_fit import (
    EPSILON_WIDTH,
    TILE_ROUNDS,
    GroupFit,
    KernelProblem,
    fit_group,
    kernel_problem,
    predicted_features,
    predicted_seconds,
)
from fitter.latency.tile_choice import fit_choice
from fitter.priors import FLOOR_WIDTH, around
from fitter.rows.screening import taken

Tiles = Literal["none", "free", "chosen"]
"""Source of a kernel's tile: no tile, the fastest candidate, or a model of the library's choice fitted to kernel names
(`estimator.model.tile_choice`)."""

FEWEST_CLASS_ROWS: Final = 12
FEWEST_CLASS_SHAPES: Final = 8
"""Classes with fewer rows, or with fewer shapes (each measured at several clocks), keep the section's coefficients."""

MOST_FREE_ROWS: Final = 4000
"""With free tiles a random choice of this many rows sets the coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRows:
    """Rows of one section, columns of shape (n,)."""

    operators: tuple[Operator, ...]
    leaves: tuple[str, ...]
    sm_clock_hz: Array
    warm: BoolArray
    latency_s: Array
    weight: Array
    known: KnownTiles

    def __len__(self) -> int:
        return len(self.latency_s)

    def select(self, index: IntArray) -> "SectionRows":
        """The rows `index`."""
        return replace(taken(self, index, ("known",)), known=taken(self.known, index))


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionFit:
    """Fit of a section: coefficients of the section and of its classes, and the library's tile choice, if known."""

    groups: Mapping[str, GroupFit]
    choice: Mapping[str, object] | None

    def coefficients(self) -> dict[str, Mapping[str, float]]:
        """Coefficients by group."""
        return {key: fit.coefficients for key, fit in self.groups.items()}


class KernelSection:
    """The rows of a section with their phases, for any number of fits."""

    def __init__(self, key: str, rows: SectionRows, gpu: GpuSpec, priors: Mapping[str, Prior], tiles: Tiles, *, seed: int) -> None:
        self.key = key
        self.rows = rows
        self.gpu = gpu
        self.tiles = tiles
        self.seed = seed
        self.priors = dict(priors)
        self.problem = _problem(rows, gpu, rows.known if tiles == "chosen" else None, priors)

    def fit(self, train: IntArray, start: SectionFit | None = None) -> SectionFit:
        """Coefficients and tiles from the rows `train`, starting from those of a similar fit."""
        rows = self.rows.select(train)
        sample = self._sample(train)
        leaves = _shown([self.rows.operators[i] for i in sample], [self.rows.leaves[i] for i in sample], self.key)
        groups = fit_classes(self.problem.select(sample), leaves, self.key, self.priors, start)
        if self.tiles != "chosen":
            return SectionFit(groups=groups, choice=None)
        return SectionFit(groups=groups, choice=fit_choice(rows.operators, self.gpu, rows.known, groups[self.key].coefficients))

    def knows_names(self) -> bool:
        """Whether the fit uses tiles from kernel names."""
        return self.tiles == "chosen"

    def predict(self, fit: SectionFit, index: IntArray, *, named: bool = False) -> Array:
        """Times of the rows `index` [s], with tiles as in a prediction without kernel names, or from these names."""
        return class_seconds(self._asked(fit, index, named), [self.rows.leaves[i] for i in index], self.key, fit)

    def features(self, fit: SectionFit, index: IntArray, *, named: bool = False) -> PhaseFeatures:
        """Phase features of the rows `index`, with the same tiles."""
        return class_features(self._asked(fit, index, named), [self.rows.leaves[i] for i in index], self.key, fit)

    def _asked(self, fit: SectionFit, index: IntArray, named: bool) -> KernelProblem:
        """The rows `index` with the tiles of their prediction."""
        if named or self.tiles != "chosen":
            return self.problem.select(index)
        rows, known = self.rows.select(index), None
        if fit.choice is not None:
            known = group_tiles(rows.operators, self.gpu, fit.choice, coefficient_vector(fit.groups[self.key].coefficients))
        return _problem(rows, self.gpu, known, self.priors)

    def _sample(self, train: IntArray) -> IntArray:
        if self.tiles != "free" or len(train) <= MOST_FREE_ROWS:
            return train
        return np.sort(np.random.default_rng(self.seed).choice(train, MOST_FREE_ROWS, replace=False))


def _problem(rows: SectionRows, gpu: GpuSpec, known: KnownTiles | None, priors: Mapping[str, Prior]) -> KernelProblem:
    widest = priors["widest_split"].centre if "widest_split" in priors else 0.0
    return kernel_problem(
        rows.operators,
        gpu,
        sm_clock_hz=rows.sm_clock_hz,
        warm=rows.warm,
        latency_s=rows.latency_s,
        weight=rows.weight,
        known=known,
        widest_split=widest,
    )


def fit_classes(
    problem: KernelProblem, leaves: Sequence[str], key: str, priors: Mapping[str, Prior], start: SectionFit | None
) -> dict[str, GroupFit]:
    """The section's coefficients under `key`, and those of each class with enough rows under its own key."""
    rounds = TILE_ROUNDS if start is None else 2
    known = {} if start is None else start.coefficients()
    whole = fit_group(problem, priors, start=known.get(key), rounds=rounds)
    groups = {key: whole}
    classes = _members(leaves)
    if list(classes) == [key]:
        return groups
    narrowed = class_priors(whole.coefficients, priors, 0.5)
    for leaf, index in classes.items():
        if leaf != key and len(index) >= FEWEST_CLASS_ROWS:
            groups[leaf] = fit_group(problem.select(index), narrowed, start=known.get(leaf), rounds=rounds)
    return groups


def class_priors(whole: Mapping[str, float], priors: Mapping[str, Prior], narrowing: float) -> dict[str, Prior]:
    """Priors of a class around its section; coefficients of the host are the same for all classes."""
    narrowed = around(whole, priors, narrowing)
    offset, floor = whole.get("offset_s", 0.0), whole.get("floor_s", 0.0)
    narrowed["epsilon_s"] = Prior(centre=whole["epsilon_s"], width=0.0 if offset else narrowing * EPSILON_WIDTH)
    narrowed["offset_s"] = Prior(centre=offset, width=narrowing * EPSILON_WIDTH if offset else 0.0)
    if floor:
        narrowed["floor_s"] = Prior(centre=floor, width=FLOOR_WIDTH)
    return narrowed


def class_seconds(problem: KernelProblem, leaves: Sequence[str], key: str, fit: SectionFit) -> Array:
    """Times of kernels [s], each with the coefficients of its class, else of the section; shape (n,)."""
    seconds = np.zeros(len(problem))
    for group, index in _members([leaf if leaf in fit.groups else key for leaf in leaves]).items():
        seconds[index] = predicted_seconds(problem.select(index), fit.groups[group].coefficients)
    return seconds


def class_features(problem: KernelProblem, leaves: Sequence[str], key: str, fit: SectionFit) -> PhaseFeatures:
    """Phase features of kernels, each with the coefficients of its class, else of the section."""
    count = len(problem)
    columns = {"log_clock": np.zeros(count), "tile_area": np.zeros(count), "shares": np.zeros((count, len(SHARES)))}
    for group, index in _members([leaf if leaf in fit.groups else key for leaf in leaves]).items():
        found = predicted_features(problem.select(index), fit.groups[group].coefficients)
        for name, column in columns.items():
            column[index] = getattr(found, name)
    return PhaseFeatures(**columns)


def _shown(operators: Sequence[Operator], leaves: Sequence[str], key: str) -> list[str]:
    """The classes of kernels; `key` for those of classes with few shapes."""
    shapes: dict[str, set[Operator]] = {}
    for operator, leaf in zip(operators, leaves, strict=True):
        shapes.setdefault(leaf, set()).add(operator)
    return [leaf if len(shapes[leaf]) >= FEWEST_CLASS_SHAPES else key for leaf in leaves]


def _members(leaves: Sequence[str]) -> dict[str, IntArray]:
    found: dict[str, list[int]] = {}
    for i, leaf in enumerate(leaves):
        found.setdefault(leaf, []).append(i)
    return {leaf: np.array(index, dtype=np.int64) for leaf, index in found.items()}
