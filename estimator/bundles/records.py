"""Checks of plain JSON data put together from smaller ones: an object with known fields, a table, a column, a matrix.

Each function here returns a check as those of `estimator.bundles.checks`: it takes a value and its place and gives the value back,
frozen, with the very numbers that stood in the file, or raises BundleError.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import numpy as np

from estimator.bundles import checks
from estimator.bundles.limits import COUNT, Limits
from estimator.errors import BundleError
from estimator.frozen import FrozenMapping
from estimator.specifications import near_match

Check = Callable[[Any, str], Any]

NOTHING: Final[Mapping[str, Check]] = {}


def record(required: Mapping[str, Check], optional: Mapping[str, Check] = NOTHING) -> Check:
    """An object with all of the required fields, and others only if they are optional ones."""
    known = {**required, **optional}

    def check(value: Any, at: str) -> FrozenMapping[Any]:
        mapping = checks.fields_of(value, at, required, optional)
        return FrozenMapping({name: known[name](item, f"{at}.{name}") for name, item in mapping.items()})

    return check


def table(check_item: Check, known: Collection[str] | None = None) -> Check:
    """An object of items that are checked alike, under any names or known ones."""

    def check(value: Any, at: str) -> FrozenMapping[Any]:
        mapping = checks.mapping_of(value, at)
        if known is not None:
            checks.refuse_unknown(mapping, at, known)
        return FrozenMapping({name: check_item(item, f"{at}.{name}") for name, item in mapping.items()})

    return check


def quantity(limits: Limits) -> Check:
    """A number within limits."""

    def check(value: Any, at: str) -> int | float:
        checks.number(value, at, limits)
        return value  # type: ignore[no-any-return]  # a whole number stays one

    return check


def whole(limits: Limits = COUNT) -> Check:
    """A whole number within limits."""
    return lambda value, at: checks.count(value, at, limits)


def or_null(check_value: Check) -> Check:
    """What passes a check, or null for what is not known."""
    return lambda value, at: None if value is None else check_value(value, at)


def text(*, empty: bool = True) -> Check:
    """A text."""
    return lambda value, at: checks.text_of(value, at, empty=empty)


def one_of(known: Collection[str]) -> Check:
    """One of some words."""

    def check(value: Any, at: str) -> str:
        word = checks.text_of(value, at)
        if word not in known:
            raise BundleError(f"{at} = {word[:40]!r} is unknown{near_match(word, known)}; known: {', '.join(known)}")
        return word

    return check


def items(check_item: Check, *, least: int = 0) -> Check:
    """A list of items that are checked alike."""

    def check(value: Any, at: str) -> tuple[Any, ...]:
        found = checks.list_of(value, at)
        if len(found) < least:
            raise BundleError(f"{at} has {len(found)} values where {least} are needed")
        return tuple(check_item(item, f"{at}[{i}]") for i, item in enumerate(found))

    return check


def column(limits: Limits, *, whole_numbers: bool = False) -> Check:
    """A list of numbers within limits, at least one."""

    def check(value: Any, at: str) -> tuple[Any, ...]:
        found = checks.list_of(value, at)
        if not found:
            raise BundleError(f"{at} must hold at least one number")
        kinds = set(map(type, found))
        usual = kinds == {int} if whole_numbers else kinds <= {int, float}
        if not (usual and limits[0] <= min(found) and max(found) <= limits[1] and not _undefined(found, kinds)):
            for i, item in enumerate(found):
                (checks.count if whole_numbers else checks.number)(item, f"{at}[{i}]", limits)
        return tuple(found)

    return check


def _undefined(found: Collection[Any], kinds: Collection[type]) -> bool:
    return float in kinds and any(map(math.isnan, found))


def matrix(limits: Limits) -> Check:
    """A covariance matrix of numbers within limits."""

    def check(value: Any, at: str) -> tuple[Any, ...]:
        rows = tuple(column(limits)(row, f"{at}[{i}]") for i, row in enumerate(checks.list_of(value, at)))
        check_covariance(rows, at)
        return rows

    return check


def check_covariance(rows: tuple[tuple[float, ...], ...], at: str) -> None:
    """Raise BundleError for what is no covariance: not square, not symmetric, or with a combination of variance below zero."""
    for i, row in enumerate(rows):
        if len(row) != len(rows):
            raise BundleError(f"{at}[{i}] has {len(row)} values where {len(rows)} are needed")
        if row[i] < 0.0:
            raise BundleError(f"{at}[{i}][{i}] = {row[i]!r}: a variance must not be negative")
    if not rows:
        return
    values = np.array(rows, dtype=np.float64)
    deviation = np.sqrt(np.diag(values))
    slack = ASYMMETRY * np.outer(deviation, deviation)
    skew = np.argwhere(np.abs(values - values.T) > slack)
    if len(skew):
        i, j = sorted(skew[0].tolist(), reverse=True)
        raise BundleError(f"{at} is not symmetric at [{i}][{j}]")
    known = deviation > 0.0
    if np.any(values[~known]):
        i, j = np.argwhere((values != 0.0) & ~known[:, None])[0].tolist()
        raise BundleError(f"{at}[{i}][{j}] = {rows[i][j]!r} must be 0, as the variance [{i}][{i}] is")
    correlation = (values / np.where(known, deviation, 1.0)[:, None]) / np.where(known, deviation, 1.0)
    try:
        np.linalg.cholesky(correlation + np.diag(np.where(known, INDEFINITENESS * len(rows), 1.0)))
    except np.linalg.LinAlgError as error:
        lowest = float(np.linalg.eigvalsh(correlation).min())
        raise BundleError(f"{at} is no covariance: a combination of its terms has a variance below 0 (eigenvalue {lowest:.3g})") from error


ASYMMETRY: Final = 1e-6
"""Largest difference of mirrored entries, relative to their diagonal [1]: the rounding of an inverse, no more."""

INDEFINITENESS: Final = 1e-6
"""Eigenvalues of a correlation matrix may lie so far below 0, times its size, by the rounding of fits of near multiples [1]."""


def bounded(limits: Mapping[str, Limits], otherwise: Limits) -> Check:
    """Any JSON whose numbers lie within the limits of the name under which they stand, alone or in lists."""

    def check(value: Any, at: str) -> Any:
        return checks.frozen(value, at) if _looked_at(value, at, otherwise) else None

    def _looked_at(value: Any, at: str, own: Limits) -> bool:
        if isinstance(value, Mapping):
            return all(_looked_at(item, f"{at}.{name}", limits.get(name, own)) for name, item in value.items())
        if isinstance(value, list | tuple):
            if set(map(type, value)) == {float} and own[0] <= min(value) and max(value) <= own[1] and not _undefined(value, {float}):
                return True
            return all(_looked_at(item, f"{at}[{i}]", own) for i, item in enumerate(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            checks.number(value, at, own)
        return True

    return check
