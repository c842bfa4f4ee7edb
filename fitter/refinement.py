"""Residual tiers and intervals of a section: the whole chain, fitted to most rows and tested on the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.frozen import FrozenMapping
from estimator.quantities import Array, IntArray
from fitter.intervals import EXTRAPOLATED_SHARES, FOLDS, folds_of, interval_quantiles, largest_rows
from fitter.kernel_section import KernelSection, SectionFit
from fitter.residual_tier import (
    FEWEST_POINTS,
    Forecast,
    GroupErrors,
    ShapeErrors,
    best_fading,
    forecast,
    shape_errors,
    tier_document,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Tiers and standard deviations of ln(time) by group, and each row's ln(measured / predicted) when it was left out, shape (n,)."""

    tiers: Mapping[str, FrozenMapping[Any]]
    std: Mapping[str, float]
    left_out: Array


PREDICTED: Final = False
NAMED: Final = True
"""Ways to tell a tile: as a prediction does, or by the kernel's name."""


def refine_section(section: KernelSection, fit: SectionFit, trusted: IntArray, seed: int) -> Refinement:
    """What neighbours add to the equations, and how far the result can be trusted; trusted: rows that count."""
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
    all_rows = np.arange(len(rows))
    error = {way: np.log(rows.latency_s / section.predict(fit, all_rows, named=way)) for way in ways}
    tiers: dict[str, FrozenMapping[Any]] = {}
    std: dict[str, float] = {}
    left_out = np.full(len(rows), np.nan)
    for group, index in _served([rows.leaves[i] for i in trusted], section.key, fit, trusted).items():
        own = shape_errors([rows.operators[i] for i in index])
        parts = {
            way: _group_errors(own, error[way][index], found[way].select(index), [_tested(part[way], index) for part in largest])
            for way in ways
        }
        left_out[index] = found[PREDICTED].select(index).errors(parts[PREDICTED].fading)
        std[group] = float(np.sqrt(np.mean(parts[PREDICTED].left_out ** 2)))
        if len(own.operators) >= FEWEST_POINTS:
            tiers[group] = tier_document(own, parts[PREDICTED], parts.get(NAMED), seed=seed)
    return Refinement(tiers=tiers, std=std, left_out=left_out)


def _group_errors(shapes: ShapeErrors, error: Array, left_out: Forecast, largest: Sequence[Forecast]) -> GroupErrors:
    """How a group's rows were forecast, with their tiles told in one way."""
    fading = best_fading([left_out, *largest])
    quantiles = interval_quantiles(shapes, left_out, largest, fading)
    return GroupErrors(ln_error=error, left_out=np.abs(left_out.errors(fading)), fading=fading, quantiles=quantiles)


def _no_forecast(count: int) -> Forecast:
    return Forecast(**{name: np.full(count, np.nan) for name in Forecast.__slots__})


def _tested(found: Forecast, index: IntArray) -> Forecast:
    """The rows among `index` that were forecast."""
    return found.select(index[np.isfinite(found.bare[index])])


def _leave_out(
    section: KernelSection, fit: SectionFit, train: IntArray, test: IntArray, found: Mapping[bool, Forecast]
) -> dict[bool, Forecast]:
    """`found` with the rows `test` as forecast by the chain fitted to `train`, for each way to tell a tile."""
    part = section.fit(train, start=fit)
    rows = section.rows
    both = np.concatenate([train, test])
    served = _served([rows.leaves[i] for i in both], section.key, part, np.arange(len(both)))
    result = {}
    for way, before in found.items():
        error = np.log(rows.latency_s[both] / section.predict(part, both, named=way))
        columns = {name: getattr(before, name).copy() for name in Forecast.__slots__}
        for index in served.values():
            position = np.arange(len(index))
            own_train, own_test = position[index < len(train)], position[index >= len(train)]
            if not len(own_test):
                continue
            one = forecast(shape_errors([rows.operators[both[i]] for i in index]), error[index], own_train, own_test)
            for name, column in columns.items():
                column[both[index[own_test]]] = getattr(one, name)
        result[way] = Forecast(**columns)
    return result


def _served(leaves: Sequence[str], key: str, fit: SectionFit, index: IntArray) -> dict[str, IntArray]:
    """The rows `index`, whose classes are `leaves`, by the group that serves them."""
    found: dict[str, list[int]] = {}
    for leaf, row in zip(leaves, index.tolist(), strict=True):
        found.setdefault(leaf if leaf in fit.groups else key, []).append(row)
    return {group: np.array(rows, dtype=np.int64) for group, rows in found.items()}
