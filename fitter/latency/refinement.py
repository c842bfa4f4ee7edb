"""Residual tiers and intervals of a section, from the whole chain fitted to most rows and tested on the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.engine.design import EQUATION_ERROR
from estimator.model.kriging import PhaseFeatures
from estimator.model.residuals import Fading
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.intervals import EXTRAPOLATED_SHARES, FOLDS, folds_of, interval_quantiles, largest_rows, longest_rows
from fitter.latency.residual_tier import (
    FEWEST_POINTS,
    MOST_KRIGED,
    UNFADED,
    Forecast,
    GroupErrors,
    ShapeErrors,
    best_fading,
    fit_kriging,
    forecast,
    kriged_forecast,
    shape_errors,
    tier_document,
)
from fitter.latency.section import KernelSection, SectionFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Tiers and standard deviations of ln(time) by group."""

    tiers: Mapping[str, FrozenMapping[Any]]
    std: Mapping[str, float]


PREDICTED: Final = False
NAMED: Final = True
"""Sources of a tile: as in a prediction, or from the kernel's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """Rows forecast by their nearest neighbours and, for small groups, by kriging; for large groups both are the same."""

    near: Forecast
    kriged: Forecast

    def select(self, index: IntArray) -> "Forecasts":
        """The rows `index`."""
        return Forecasts(near=self.near.select(index), kriged=self.kriged.select(index))


def refine_section(section: KernelSection, fit: SectionFit, trusted: IntArray, seed: int, expected: float = EQUATION_ERROR) -> Refinement:
    """Residual tiers and standard deviations of a section; trusted: rows that count.

    expected: prior standard deviation of the residuals of the equations [ln].
    """
    rows = section.rows
    shapes = shape_errors([rows.operators[i] for i in trusted])
    fold = folds_of(shapes, seed)
    ways = (PREDICTED, NAMED) if section.knows_names() else (PREDICTED,)
    empty = {way: _no_forecast(len(rows)) for way in ways}
    found = empty
    for number in range(FOLDS):
        found = _leave_out(section, fit, trusted[fold != number], trusted[fold == number], found)
    largest = []
    for share in EXTRAPOLATED_SHARES:
        beyond = trusted[largest_rows(shapes, share)]
        largest.append(_leave_out(section, fit, np.setdiff1d(trusted, beyond), beyond, empty) if len(beyond) else empty)
    long = trusted[longest_rows(shapes)]
    longest = _leave_out(section, fit, np.setdiff1d(trusted, long), long, empty) if len(long) else empty
    all_rows = np.arange(len(rows))
    error = {way: np.log(rows.latency_s / section.predict(fit, all_rows, named=way)) for way in ways}
    tiers: dict[str, FrozenMapping[Any]] = {}
    std: dict[str, float] = {}
    for group, index in _served([rows.leaves[i] for i in trusted], section.key, fit, trusted).items():
        own = shape_errors([rows.operators[i] for i in index])
        parts: dict[bool, GroupErrors] = {}
        for way in ways:
            tested = [found[way].select(index), *(_tested(part[way], index) for part in largest)]
            features = section.features(fit, index, named=way) if _small(own, index) else None
            parts[way] = _group_errors(own, error[way][index], tested, _tested(longest[way], index), features, expected)
        std[group] = float(np.sqrt(np.mean(parts[PREDICTED].left_out ** 2)))
        if len(own.operators) >= FEWEST_POINTS:
            tiers[group] = tier_document(own, parts[PREDICTED], parts.get(NAMED), seed=seed)
    return Refinement(tiers=tiers, std=std)


def _group_errors(
    shapes: ShapeErrors, error: Array, tested: Sequence[Forecasts], longest: Forecasts, features: PhaseFeatures | None, expected: float
) -> GroupErrors:
    """Forecast errors of a group's rows, with tiles from one source.

    tested: all rows, each without its fold, then the largest forecast from the rest.  longest: the longest rows forecast from the rest,
    which set the width of intervals beyond the measured range, not the reach of neighbours.  features: of all rows by the fit, for groups
    small enough for kriging, which is used if its forecasts are better.  expected: as for `refine_section`.
    """
    near, by_kriging = [part.near for part in tested], [part.kriged for part in tested]
    fading = used = best_fading(near)
    chosen, beyond, kriging = near, longest.near, None
    if features is not None:
        unfaded = best_fading(by_kriging, UNFADED)
        if unfaded is not None and _loss(by_kriging, unfaded) < _loss(near, fading):
            chosen, beyond, used = by_kriging, longest.kriged, unfaded
            kriging = (fit_kriging(shapes.points[shapes.index], features, error), unfaded.beyond_share)
    left_out = chosen[0].errors(used)
    quantiles = interval_quantiles(shapes, chosen[0], [*chosen[1:], beyond], used, expected)
    return GroupErrors(ln_error=error, left_out=np.abs(left_out), fading=fading, quantiles=quantiles, kriging=kriging)


def _small(shapes: ShapeErrors, rows: IntArray) -> bool:
    """Whether a group of these rows is small enough for kriging."""
    return len(rows) <= MOST_KRIGED and len(shapes.operators) >= FEWEST_POINTS


def _loss(sets: Sequence[Forecast], fading: Fading | None) -> float:
    """Mean absolute error of forecasts, with equal weights for all sets."""
    return float(np.mean([np.abs(rows.errors(fading)).mean() for rows in sets if len(rows.bare)]))


def _no_forecast(count: int) -> Forecasts:
    nothing = Forecast(**{name: np.full(count, np.nan) for name in Forecast.__slots__})
    return Forecasts(near=nothing, kriged=nothing)


def _tested(found: Forecasts, index: IntArray) -> Forecasts:
    """The rows among `index` that were forecast."""
    return found.select(index[np.isfinite(found.near.bare[index])])


def _leave_out(
    section: KernelSection, fit: SectionFit, train: IntArray, test: IntArray, found: Mapping[bool, Forecasts]
) -> dict[bool, Forecasts]:
    """Update `found` with forecasts of the rows `test` by the chain fitted to `train`, for each source of tiles."""
    part = section.fit(train, start=fit)
    rows = section.rows
    both = np.concatenate([train, test])
    served = _served([rows.leaves[i] for i in both], section.key, part, np.arange(len(both)))
    result = {}
    for way, before in found.items():
        error = np.log(rows.latency_s[both] / section.predict(part, both, named=way))
        columns = {kind: {name: getattr(getattr(before, kind), name).copy() for name in Forecast.__slots__} for kind in Forecasts.__slots__}
        for index in served.values():
            position = np.arange(len(index))
            own_train, own_test = position[index < len(train)], position[index >= len(train)]
            if not len(own_test):
                continue
            shapes = shape_errors([rows.operators[both[i]] for i in index])
            near = kriged = forecast(shapes, error[index], own_train, own_test)
            if _small(shapes, index) and len(own_train):
                features = section.features(part, both[index], named=way)
                kriged = kriged_forecast(near, shapes, features, error[index], own_train, own_test)
            for kind, one in (("near", near), ("kriged", kriged)):
                for name, column in columns[kind].items():
                    column[both[index[own_test]]] = getattr(one, name)
        result[way] = Forecasts(**{kind: Forecast(**own) for kind, own in columns.items()})
    return result


def _served(leaves: Sequence[str], key: str, fit: SectionFit, index: IntArray) -> dict[str, IntArray]:
    """The rows `index`, whose classes are `leaves`, by the group that serves them."""
    found: dict[str, list[int]] = {}
    for leaf, row in zip(leaves, index.tolist(), strict=True):
        found.setdefault(leaf if leaf in fit.groups else key, []).append(row)
    return {group: np.array(rows, dtype=np.int64) for group, rows in found.items()}
