"""Residual tiers and intervals of a section, from the whole chain fitted to most rows and tested on the rest."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from estimator.engine.design import EQUATION_ERROR
from estimator.model.kriging import PhaseFeatures
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.intervals import EXTRAPOLATED_SHARES, FOLDS, folds_of, interval_quantiles, largest_rows, longest_rows
from fitter.latency.residual_tier import (
    FEWEST_POINTS,
    MOST_KRIGED,
    Forecast,
    GroupErrors,
    ShapeErrors,
    best_share,
    fit_kriging,
    forecast,
    kriged_forecast,
    no_forecast,
    shape_errors,
    tier_document,
)
from fitter.latency.section import KernelSection, SectionFit

PREDICTED: Final = False
NAMED: Final = True
"""Sources of a tile: as in a prediction, or from the kernel's name."""

NEAR: Final = False
KRIGED: Final = True
"""Corrections of a forecast: by the nearest neighbours, or by kriging; for large groups both are the neighbours'."""

Forecasts = Mapping[tuple[bool, bool], Forecast]
"""All rows of a section forecast by a fit of others (nan: not forecast), by source of the tiles and by correction."""


def refine_section(
    section: KernelSection, fit: SectionFit, trusted: IntArray, seed: int, expected: float = EQUATION_ERROR
) -> tuple[dict[str, FrozenMapping[Any]], dict[str, float]]:
    """Residual tiers and standard deviations of ln(time) by group; trusted: rows that count.

    expected: prior standard deviation of the residuals of the equations [ln].
    """
    shapes = shape_errors([section.operators[i] for i in trusted])
    fold = folds_of(shapes, seed)
    by_fold = _left_out(section, fit, trusted, [trusted[fold == number] for number in range(FOLDS)])
    largest = [_left_out(section, fit, trusted, [trusted[largest_rows(shapes, share)]]) for share in EXTRAPOLATED_SHARES]
    longest = _left_out(section, fit, trusted, [trusted[longest_rows(shapes)]])
    tiers: dict[str, FrozenMapping[Any]] = {}
    std: dict[str, float] = {}
    errors = {named: np.log(section.rows.latency_s / section.predict(fit, named=named)) for named in _ways(section)}
    for group, index in section.served(fit, trusted).items():
        own = shape_errors([section.operators[i] for i in index])
        parts: dict[bool, GroupErrors] = {}
        for named, error in errors.items():
            tested = {
                smooth: [by_fold[named, smooth].select(index), *(_tested(one[named, smooth], index) for one in (*largest, longest))]
                for smooth in (NEAR, KRIGED)
            }
            features = section.features(fit, group, index, named=named) if _small(own, index) else None
            parts[named] = _group_errors(own, error[index], tested, features, expected)
        std[group] = float(np.sqrt(np.mean(parts[PREDICTED].left_out ** 2)))
        if len(own.operators) >= FEWEST_POINTS:
            tiers[group] = tier_document(own, parts[PREDICTED], parts.get(NAMED), seed=seed)
    return tiers, std


def _ways(section: KernelSection) -> tuple[bool, ...]:
    """Sources of tiles of a section's rows."""
    return (PREDICTED, NAMED) if section.tiles == "chosen" else (PREDICTED,)


def _group_errors(
    shapes: ShapeErrors, error: Array, tested: Mapping[bool, Sequence[Forecast]], features: PhaseFeatures | None, expected: float
) -> GroupErrors:
    """Forecast errors of a group's rows, with tiles from one source.

    tested: by correction, all rows, each without its fold, then the largest forecast from the rest, last the longest rows forecast from
    the rest, which set the width of intervals beyond the measured range, not the reach of neighbours.  features: of all rows by the fit,
    for groups small enough for kriging, which is used if its forecasts are better.  expected: as for `refine_section`.
    """
    share = used = best_share(tested[NEAR][:-1])
    chosen, kriging = tested[NEAR], None
    if features is not None:
        smooth = best_share(tested[KRIGED][:-1])
        if smooth is not None and _loss(tested[KRIGED][:-1], smooth) < _loss(tested[NEAR][:-1], share):
            chosen, used = tested[KRIGED], smooth
            kriging = (fit_kriging(shapes.points[shapes.index], features, error), smooth)
    quantiles = interval_quantiles(shapes, chosen[0], chosen[1:], used, expected)
    return GroupErrors(ln_error=error, left_out=np.abs(chosen[0].errors(used)), beyond_share=share, quantiles=quantiles, kriging=kriging)


def _small(shapes: ShapeErrors, rows: IntArray) -> bool:
    """Whether a group of these rows is small enough for kriging."""
    return len(rows) <= MOST_KRIGED and len(shapes.operators) >= FEWEST_POINTS


def _loss(sets: Sequence[Forecast], share: float | None) -> float:
    """Mean absolute error of forecasts, with equal weights for all sets."""
    return float(np.mean([np.abs(rows.errors(share)).mean() for rows in sets if len(rows.bare)]))


def _tested(found: Forecast, index: IntArray) -> Forecast:
    """The rows among `index` that were forecast."""
    return found.select(index[np.isfinite(found.bare[index])])


def _left_out(section: KernelSection, fit: SectionFit, trusted: IntArray, parts: Sequence[IntArray]) -> Forecasts:
    """Each part of the rows forecast by the chain fitted to the other trusted rows."""
    found = {(named, smooth): no_forecast(len(section.rows)) for named in _ways(section) for smooth in (NEAR, KRIGED)}
    for test in parts:
        if not len(test):
            continue
        train = np.setdiff1d(trusted, test)
        part = section.fit(train, start=fit)
        served = section.served(part, np.concatenate([train, test]))
        for named in _ways(section):
            error = np.log(section.rows.latency_s / section.predict(part, named=named))
            for group, index in served.items():
                held = np.isin(index, test)
                own_train, own_test = np.flatnonzero(~held), np.flatnonzero(held)
                if not len(own_test):
                    continue
                shapes = shape_errors([section.operators[i] for i in index])
                near = kriged = forecast(shapes, error[index], own_train, own_test)
                if _small(shapes, index) and len(own_train):
                    features = section.features(part, group, index, named=named)
                    kriged = kriged_forecast(near, shapes, features, error[index], own_train, own_test)
                found[named, NEAR].set_rows(index[own_test], near)
                found[named, KRIGED].set_rows(index[own_test], kriged)
    return found
