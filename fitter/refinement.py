"""Residual tiers and intervals of a section: the whole chain, fitted to most rows and tested on the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.frozen import FrozenMapping
from estimator.quantities import Array, IntArray
from fitter.intervals import FOLDS, folds_of, interval_quantiles, largest_rows
from fitter.kernel_section import KernelSection, SectionFit
from fitter.residual_tier import FEWEST_POINTS, ShapeErrors, corrected, shape_errors, tier_document

NOWHERE: Final = 1e3
"""Distance of the nearest shape where there are too few to speak of neighbours [octave]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Tiers and standard deviations of ln(time) by group, and each row's ln(measured / predicted) when it was left out, shape (n,)."""

    tiers: Mapping[str, FrozenMapping[Any]]
    std: Mapping[str, float]
    left_out: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeftOut:
    """Errors ln(measured / predicted) of rows left out, by the equations alone and with the tier, and the nearest shape's distance."""

    bare: Array
    refined: Array
    distance: Array


def refine_section(section: KernelSection, fit: SectionFit, error: Array, trusted: IntArray, seed: int) -> Refinement:
    """What neighbours add to the equations, and how far the result can be trusted.

    error (n,): ln(measured / equations) of all rows with `fit`; trusted: rows that count.
    """
    rows = section.rows
    shapes = shape_errors([rows.operators[i] for i in trusted])
    fold = folds_of(shapes, seed)
    found = _LeftOut(**{name: np.full(len(error), np.nan) for name in _LeftOut.__slots__})
    for number in range(FOLDS):
        _leave_out(section, fit, trusted[fold != number], trusted[fold == number], found)
    largest = _LeftOut(**{name: np.full(len(error), np.nan) for name in _LeftOut.__slots__})
    beyond = trusted[largest_rows(shapes)]
    if len(beyond):
        _leave_out(section, fit, np.setdiff1d(trusted, beyond), beyond, largest)
    tiers: dict[str, FrozenMapping[Any]] = {}
    std: dict[str, float] = {}
    for group, index in _served([rows.leaves[i] for i in trusted], section.key, fit, trusted).items():
        useful = np.abs(found.refined[index]).mean() < np.abs(found.bare[index]).mean()
        kept = found.refined if useful else found.bare
        std[group] = float(np.sqrt(np.mean(kept[index] ** 2)))
        own = shape_errors([rows.operators[i] for i in index])
        if len(own.operators) < FEWEST_POINTS:
            continue
        forecast = (largest.refined if useful else largest.bare)[index]
        forecast = np.abs(forecast[np.isfinite(forecast)])
        quantiles = interval_quantiles(own, np.abs(kept[index]), found.distance[index], forecast)
        tiers[group] = tier_document(own, error[index] * useful, np.abs(kept[index]), quantiles, seed=seed)
    left_out = found.refined.copy()
    return Refinement(tiers=tiers, std=std, left_out=left_out)


def _leave_out(section: KernelSection, fit: SectionFit, train: IntArray, test: IntArray, found: _LeftOut) -> None:
    """Fit the chain to `train` and write its errors on `test` into `found`."""
    part = section.fit(train, start=fit)
    rows = section.rows
    both = np.concatenate([train, test])
    error = np.log(rows.latency_s[both] / section.predict(part, both))
    leaves = [rows.leaves[i] for i in both]
    for index in _served(leaves, section.key, part, np.arange(len(both))).values():
        own_train, own_test = index[index < len(train)], index[index >= len(train)]
        if not len(own_test):
            continue
        correction, distance = _neighbourhood(shape_errors([rows.operators[both[i]] for i in index]), error, index, own_train, own_test)
        found.bare[both[own_test]] = error[own_test]
        found.refined[both[own_test]] = error[own_test] - correction
        found.distance[both[own_test]] = distance


def _neighbourhood(shapes: ShapeErrors, error: Array, index: IntArray, train: IntArray, test: IntArray) -> tuple[Array, Array]:
    """Correction and nearest distance of the rows `test` of a group; shapes and error of its rows `index`."""
    position = {int(row): i for i, row in enumerate(index)}
    own_train = np.array([position[int(row)] for row in train], dtype=np.int64)
    own_test = np.array([position[int(row)] for row in test], dtype=np.int64)
    if len(np.unique(shapes.index[own_train])) < FEWEST_POINTS:
        return np.zeros(len(test)), np.full(len(test), NOWHERE)
    return corrected(shapes, error[index], own_train, own_test)


def _served(leaves: Sequence[str], key: str, fit: SectionFit, index: IntArray) -> dict[str, IntArray]:
    """The rows `index`, whose classes are `leaves`, by the group that serves them."""
    found: dict[str, list[int]] = {}
    for leaf, row in zip(leaves, index.tolist(), strict=True):
        found.setdefault(leaf if leaf in fit.groups else key, []).append(row)
    return {group: np.array(rows, dtype=np.int64) for group, rows in found.items()}
