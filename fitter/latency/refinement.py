"""Residual tiers and intervals of a section, from the whole chain fitted to most rows and tested on the rest."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from estimator.model.kriging import PhaseFeatures
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.quantities import Array, IntArray
from fitter.latency.intervals import FOLDS, FOLDS_OF_MANY, folds_of, interval_quantiles, largest_rows, longest_rows
from fitter.latency.residual_tier import (
    FEWEST_POINTS,
    Documents,
    Forecast,
    GroupErrors,
    ShapeErrors,
    fit_pattern,
    forecast,
    helps,
    no_forecast,
    pattern_document,
    tier_document,
)
from fitter.latency.section import MOST_FITTED, KernelSection, SectionFit

PREDICTED: Final = False
NAMED: Final = True
"""Sources of a tile: as in a prediction, or from the kernel's name."""


def refine_section(
    section: KernelSection, fit: SectionFit, trusted: IntArray, seed: int, expected: float
) -> tuple[Documents, dict[str, float]]:
    """Residual tiers and standard deviations of ln(time) by group; trusted: rows that count.

    expected: prior standard deviation of the residuals of the equations [ln].
    """
    shapes = section.shapes.of(trusted)
    fold = folds_of(shapes, seed)
    errors = {named: section.errors(fit, named=named) for named in _ways(section)}
    served = section.served(fit, trusted)
    early = trusted[fold < FOLDS_OF_MANY]  # few of a class where its layers fell into other folds
    few = [i for index in served.values() if min(len(index), FOLDS * np.isin(index, early).sum()) <= MOST_FITTED for i in index]
    parts = [trusted[(fold == number) & (np.isin(trusted, few) | (number < FOLDS_OF_MANY))] for number in range(FOLDS)]
    by_fold = _left_out(section, fit, trusted, parts, same=len(trusted) > MOST_FITTED)
    beyond = largest_rows(shapes), longest_rows(shapes)
    extrapolated = [_left_out(section, fit, trusted, [trusted[rows]]) for rows in beyond]
    tiers: Documents = {}
    std: dict[str, float] = {}
    for group, index in served.items():
        own = section.shapes.of(index)
        found: dict[bool, GroupErrors] = {}
        for named, error in errors.items():
            tested = [by_fold[named].select(index), *(_tested(one[named], index) for one in extrapolated)]
            features = section.features(fit, index, named=named) if len(own.operators) >= FEWEST_POINTS else None
            found[named] = group_errors(own, error[index], tested, features, expected)
        std[group] = float(np.sqrt(np.nanmean(found[PREDICTED].left_out ** 2)))
        if len(own.operators) >= FEWEST_POINTS:
            tiers[group] = tier_document(own, found[PREDICTED], found.get(NAMED), seed=seed)
    return tiers, std


def _ways(section: KernelSection) -> tuple[bool, ...]:
    """Sources of tiles of a section's rows."""
    return (PREDICTED, NAMED) if section.tiles == "chosen" else (PREDICTED,)


def refitted(section: KernelSection, fit: SectionFit, trusted: IntArray, known: Mapping[str, FrozenMapping[Any]]) -> Documents | None:
    """Tiers `known` from more rows with trees of `trusted` alone; None where neighbours or kriging hold rows themselves.

    Widths of intervals come from thousands of errors, which some rows hardly change.
    """
    served = section.served(fit, trusted)
    if any("trees" not in known.get(group, ()) for group in served):
        return None
    error, tiers = section.errors(fit), {}
    for group, index in served.items():
        own = section.shapes.of(index)
        pattern = fit_pattern(own, np.arange(len(index)), section.features(fit, index, named=PREDICTED), error[index])
        tiers[group] = FrozenMapping({**known[group], **pattern_document(pattern, own.index)})
    return tiers


def group_errors(
    shapes: ShapeErrors, error: Array, tested: Sequence[Forecast], features: PhaseFeatures | None, expected: float
) -> GroupErrors:
    """Forecast errors of a group's rows, with tiles from one source.

    tested: all rows, each without its fold (nan: not forecast), then the largest and the longest forecast from the rest, which set the
    width of intervals beyond the measured range.  features: of all rows by the fit.
    expected: as for `refine_section`.
    """
    corrected = used = helps(tested[0])
    pattern = None
    if features is not None:
        smooth = [rows.patterned() for rows in tested]
        if helps(smooth[0]):
            tested, used = smooth, True
            pattern = fit_pattern(shapes, np.arange(len(error)), features, error)
    known = np.flatnonzero(np.isfinite(tested[0].bare))
    quantiles = interval_quantiles(shapes.of(known), tested[0].select(known), tested[1:], used, expected)
    return GroupErrors(ln_error=error, left_out=np.abs(tested[0].errors(used)), corrected=corrected, quantiles=quantiles, pattern=pattern)


def _tested(found: Forecast, index: IntArray) -> Forecast:
    """The rows among `index` that were forecast."""
    return found.select(index[np.isfinite(found.bare[index])])


def _left_out(
    section: KernelSection, fit: SectionFit, trusted: IntArray, parts: Sequence[IntArray], *, same: bool = False
) -> dict[bool, Forecast]:
    """Each part of the rows forecast by the chain fitted to the other trusted rows, by source of the tiles; nan: not forecast.

    same: the equations of `fit` serve all parts; leaving out some of thousands of rows would not change them.
    """
    found = {named: no_forecast(len(section.rows)) for named in _ways(section)}
    for test in parts:
        if not len(test):
            continue
        train = np.setdiff1d(trusted, test)
        part = fit if same else section.fit(train, start=fit)
        served = section.served(part, np.concatenate([train, test]))
        for named, all_rows in found.items():
            error = section.errors(part, named=named)
            for index in served.values():
                held = np.isin(index, test)
                own_train, own_test = np.flatnonzero(~held), np.flatnonzero(held)
                if not len(own_test):
                    continue
                shapes = section.shapes.of(index)
                features = section.features(part, index, named=named) if len(shapes.operators) >= FEWEST_POINTS else None
                all_rows.set_rows(index[own_test], forecast(shapes, error[index], own_train, own_test, features))
    return found
