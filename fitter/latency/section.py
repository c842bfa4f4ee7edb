"""One section of kernels – an operator in one precision – as a chain that is fitted to some rows and predicts others.

Library kernels of a section come in classes (attention by head size, mask and length; normalisations by row length).
The section is fitted as a whole first, then each class with priors around the whole.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Literal, TypeVar

import numpy as np

from estimator.model.coefficients import BY, Prior, coefficient_rows, group_key
from estimator.model.kriging import PhaseFeatures
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import Phases
from estimator.model.tile_choice import predicted_tiles
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, IntArray
from estimator.vocabulary.values import frozen
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
from fitter.rows.columns import KernelRows

Tiles = Literal["none", "free", "chosen"]
"""Source of a kernel's tile: no tile, the fastest candidate, or a model of the library's choice fitted to kernel names
(`estimator.model.tile_choice`)."""

FEWEST_CLASS_ROWS: Final = 12
FEWEST_CLASS_SHAPES: Final = 8
"""Classes with fewer rows, or with fewer shapes (each measured at several clocks), keep the section's coefficients."""

MOST_FITTED: Final = 4000
"""Of more rows without known tiles, a random choice of this many sets the coefficients of a section or class."""

Label = TypeVar("Label", bound=Hashable)


def members(labels: Iterable[Label]) -> dict[Label, IntArray]:
    """Positions of each label, in first-seen order."""
    found: dict[Label, list[int]] = {}
    for i, label in enumerate(labels):
        found.setdefault(label, []).append(i)
    return {label: np.array(index, dtype=np.int64) for label, index in found.items()}


@frozen
class SectionFit:
    """Fit of a section: coefficients of the section and of its classes, and the library's tile choice, if known."""

    groups: Mapping[str, GroupFit]
    choice: Mapping[str, object] | None


class KernelSection:
    """The rows of a section, for any number of fits."""

    def __init__(self, key: str, rows: KernelRows, gpu: GpuSpec, priors: Mapping[str, Prior], tiles: Tiles, *, seed: int) -> None:
        self.key = key
        self.rows = rows
        self.operators = rows.row_operators()
        _, by, library = key.partition(BY)
        self.leaves = [group_key(operator).partition(BY)[0] + by + library for operator in self.operators]
        self.gpu = gpu
        self.priors = dict(priors)
        self.tiles = tiles
        self.seed = seed
        self.last: tuple[SectionFit, bool, KernelProblem] | None = None

    def fit(self, train: IntArray, start: SectionFit | None = None) -> SectionFit:
        """Coefficients and tiles from the rows `train`, starting from those of a similar fit."""
        known = {} if start is None else {key: fit.coefficients for key, fit in start.groups.items()}
        rounds = TILE_ROUNDS if start is None else 2
        whole = fit_group(self._candidates(train), self.priors, start=known.get(self.key), rounds=rounds)
        groups = {self.key: whole}
        narrowed = class_priors(whole.coefficients, self.priors, 0.5)
        for leaf, place in members(self.leaves[i] for i in train).items():
            own = train[place]
            if leaf != self.key and len(own) >= FEWEST_CLASS_ROWS and len({self.operators[i] for i in own}) >= FEWEST_CLASS_SHAPES:
                groups[leaf] = fit_group(self._candidates(own), narrowed, start=known.get(leaf), rounds=rounds)
        if self.tiles != "chosen":
            return SectionFit(groups=groups, choice=None)
        choice = fit_choice([self.operators[i] for i in train], self.gpu, self._names(train), whole.coefficients)
        return SectionFit(groups=groups, choice=choice)

    def served(self, fit: SectionFit, index: IntArray) -> dict[str, IntArray]:
        """The rows `index` by the group that serves them: their class if it was fitted, else the section."""
        leaves = [self.leaves[i] for i in index]
        return {group: index[place] for group, place in members(leaf if leaf in fit.groups else self.key for leaf in leaves).items()}

    def predict(self, fit: SectionFit, *, named: bool = False) -> Array:
        """Times of all rows [s], with tiles as in a prediction without kernel names, or from these names; shape (n,)."""
        problem, seconds = self._chosen(fit, named), np.zeros(len(self.rows))
        for group, index in self.served(fit, np.arange(len(self.rows))).items():
            seconds[index] = predicted_seconds(problem.select(index), fit.groups[group].coefficients)
        return seconds

    def features(self, fit: SectionFit, group: str, index: IntArray, *, named: bool = False) -> PhaseFeatures:
        """Phase features of the rows `index` of one group, with the same tiles."""
        return predicted_features(self._chosen(fit, named).select(index), fit.groups[group].coefficients)

    def _chosen(self, fit: SectionFit, named: bool) -> KernelProblem:
        """All rows with the tile of their prediction, the last one asked for again at once."""
        if self.last is None or self.last[0] is not fit or self.last[1] != named:
            coefficients, _ = coefficient_rows({key: one.coefficients for key, one in fit.groups.items()}, self.leaves)
            everything, choices = np.arange(len(self.rows)), {} if fit.choice is None else {self.key: fit.choice}
            keys = [self.key] * len(self.rows)
            known = self._names(everything) if named else predicted_tiles(self.operators, self.gpu, choices, coefficients, keys)
            self.last = (fit, named, self._lowered(everything, phases=lower(self.operators, self.gpu, coefficients, known)))
        return self.last[2]

    def _candidates(self, index: IntArray) -> KernelProblem:
        """The rows `index`, or a random choice of many, with their possible tiles."""
        if self.tiles == "chosen":
            return self._lowered(index, self._names(index))
        if len(index) > MOST_FITTED:
            index = np.sort(np.random.default_rng(self.seed).choice(index, MOST_FITTED, replace=False))
        return self._lowered(index)

    def _names(self, index: IntArray) -> KnownTiles:
        """Tiles of the rows `index` from their kernels' names."""
        return KnownTiles(tile_m=self.rows.tile_m[index], tile_n=self.rows.tile_n[index], split=self.rows.split_k[index])

    def _lowered(self, index: IntArray, known: KnownTiles | None = None, phases: Phases | None = None) -> KernelProblem:
        rows = self.rows.select(index)
        return kernel_problem(
            [self.operators[i] for i in index],
            self.gpu,
            sm_clock_hz=rows.clock_mhz(self.gpu) * HZ_PER_MHZ,
            warm=rows.l2_warm,
            latency_s=rows.latency_s,
            weight=rows.weight,
            known=known,
            phases=phases,
            widest_split=self.priors["widest_split"].centre if "widest_split" in self.priors else 0.0,
        )


def class_priors(whole: Mapping[str, float], priors: Mapping[str, Prior], narrowing: float) -> dict[str, Prior]:
    """Priors of a class around its section; coefficients of the host are the same for all classes."""
    narrowed = around(whole, priors, narrowing)
    offset, floor = whole.get("offset_s", 0.0), whole.get("floor_s", 0.0)
    narrowed["epsilon_s"] = Prior(centre=whole["epsilon_s"], width=0.0 if offset else narrowing * EPSILON_WIDTH)
    narrowed["offset_s"] = Prior(centre=offset, width=narrowing * EPSILON_WIDTH if offset else 0.0)
    if floor:
        narrowed["floor_s"] = Prior(centre=floor, width=FLOOR_WIDTH)
    return narrowed
