"""One section of kernels – an operator in one precision – as a chain that is fitted to some rows and predicts others.

Library kernels of a section come in classes (attention by head size, mask and length; normalisations by row length).
The section is fitted as a whole first, then each class with priors around the whole.
"""

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from estimator.engine.kernel_table import KernelTimes, kernel_times
from estimator.model.coefficients import BY, Prior, group_key
from estimator.model.kriging import PhaseFeatures, phase_features
from estimator.model.lowering import candidates_of
from estimator.model.phases import members
from estimator.model.timeline import warm_ratio
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, IntArray
from estimator.vocabulary.values import frozen
from fitter.latency.group_fit import (
    EPSILON_WIDTH,
    TILE_ROUNDS,
    GroupFit,
    KernelProblem,
    fit_group,
)
from fitter.latency.residual_tier import shape_errors
from fitter.latency.tile_choice import fit_choice
from fitter.priors import FLOOR_WIDTH, Priors, around
from fitter.rows.columns import KernelRows

Tiles = Literal["none", "free", "chosen"]
"""Source of a kernel's tile: no tile, the fastest candidate, or a model of the library's choice fitted to kernel names
(`estimator.model.tile_choice`)."""

FEWEST_CLASS_ROWS: Final = 12
FEWEST_CLASS_SHAPES: Final = 8
"""Classes with fewer rows, or with fewer shapes (each measured at several clocks), keep the section's coefficients."""

MOST_FITTED: Final = 4000
"""Of more rows without known tiles, a random choice of this many sets the coefficients of a section or class."""


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
        self.shapes = shape_errors(self.operators)
        _, by, library = key.partition(BY)
        self.leaves = [group_key(operator).partition(BY)[0] + by + library for operator in self.operators]
        self.gpu = gpu
        self.priors = dict(priors)
        self.tiles = tiles
        self.seed = seed
        self.last: tuple[SectionFit, bool, KernelTimes] | None = None

    def known(self, groups: Mapping[str, GroupFit]) -> SectionFit | None:
        """The fit of these rows and some others by its groups; None if it may hang on the others: few rows, or tiles by kernel names."""
        own = {key: groups[key] for key in (self.key, *dict.fromkeys(self.leaves)) if key in groups}
        return SectionFit(groups=own, choice=None) if len(self.rows) > MOST_FITTED and self.tiles != "chosen" and own else None

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
        choice = None
        if self.tiles == "chosen":
            choice = fit_choice([self.operators[i] for i in train], self.gpu, self.rows.select(train).tiles, whole.coefficients)
        return SectionFit(groups=groups, choice=choice)

    def served(self, fit: SectionFit, index: IntArray) -> dict[str, IntArray]:
        """The rows `index` by the group that serves them: their class if it was fitted, else the section."""
        leaves = [self.leaves[i] for i in index]
        return {group: index[place] for group, place in members(leaf if leaf in fit.groups else self.key for leaf in leaves).items()}

    def times(self, fit: SectionFit, *, named: bool = False) -> KernelTimes:
        """All rows by the equations, with tiles as in a prediction without kernel names, or from these names.

        The last answer is kept: features are asked for after times.
        """
        if self.last is None or self.last[0] is not fit or self.last[1] != named:
            found = kernel_times(
                self.operators,
                self.gpu,
                {key: one.coefficients for key, one in fit.groups.items()},
                sm_clock_mhz=self.rows.clock_mhz(self.gpu),
                warm=self.rows.l2_warm,
                known=self.rows.tiles if named else None,
                tile_predictors={} if named or fit.choice is None else {self.key: fit.choice},
            )
            self.last = (fit, named, found)
        return self.last[2]

    def errors(self, fit: SectionFit, *, named: bool = False) -> Array:
        """ln(measured / equations) of all rows, shape (n,), with the same tiles."""
        return np.log(self.rows.latency_s / self.times(fit, named=named).equations_s)

    def features(self, fit: SectionFit, index: IntArray, *, named: bool) -> PhaseFeatures:
        """Phase features of the rows `index`, with the same tiles."""
        found, clock_mhz = self.times(fit, named=named).select(index), self.rows.clock_mhz(self.gpu)[index]
        ratio = warm_ratio(found.phases, self.gpu, self.rows.l2_warm[index])
        return phase_features(found.phases, found.coefficients, clock_mhz * HZ_PER_MHZ, ratio)

    def _candidates(self, index: IntArray) -> KernelProblem:
        """The rows `index`, or a random choice of many, with their possible tiles."""
        named = self.tiles == "chosen"
        if not named and len(index) > MOST_FITTED:
            index = np.sort(np.random.default_rng(self.seed).choice(index, MOST_FITTED, replace=False))
        rows = self.rows.select(index)
        widest_split = self.priors["widest_split"].centre if "widest_split" in self.priors else 0.0
        candidates, settled = candidates_of(rows.row_operators(), self.gpu, rows.tiles if named else None, widest_split)
        return KernelProblem(
            candidates=candidates,
            settled=settled,
            choice_hz=self.gpu.sm_clock_max_mhz * HZ_PER_MHZ,
            sm_clock_hz=rows.clock_mhz(self.gpu) * HZ_PER_MHZ,
            ratio=warm_ratio(candidates.take(np.zeros(len(rows), dtype=np.int64)), self.gpu, rows.l2_warm),
            latency_s=rows.latency_s,
            weight=rows.weight,
        )


def class_priors(whole: Mapping[str, float], priors: Mapping[str, Prior], narrowing: float) -> Priors:
    """Priors of a class around its section; coefficients of the host are the same for all classes."""
    narrowed = around(whole, priors, narrowing)
    offset, floor = whole.get("offset_s", 0.0), whole.get("floor_s", 0.0)
    narrowed["epsilon_s"] = Prior(centre=whole["epsilon_s"], width=0.0 if offset else narrowing * EPSILON_WIDTH)
    narrowed["offset_s"] = Prior(centre=offset, width=narrowing * EPSILON_WIDTH if offset else 0.0)
    if floor:
        narrowed["floor_s"] = Prior(centre=floor, width=FLOOR_WIDTH)
    return narrowed
